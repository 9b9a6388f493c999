"""The rollout server `uni_agent_cpu`: our embedded engine behind the methods that verl calls on a server actor.

It answers as verl's own vLLM server does (`workers/rollout/vllm_rollout/vllm_async_server.py`, 0.9.1), with two
differences: a turn cut by its limit ends by `length`, not `completed`, and `extra_fields` has `weight_spans`. Nothing
here needs Ray: `replica.py` makes an actor of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

from uni_agent.engine.base import SamplingParams, TokenOutput
from uni_agent.engine.embedded import EmbeddedBackend
from uni_agent.errors import ContextLengthError, ModelError
from uni_agent.optional import load

_NO_STOP: Final = (-1,)  # no id is that
_STOP_REASONS: Final = {"stop": "completed", "length": "length", "abort": "aborted"}
# What verl or a caller may send along; any other value than these asks for something that is not there.
_NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "n": (1, None),
    "presence_penalty": (0, 0.0, None),
    "frequency_penalty": (0, 0.0, None),
    "stop": (None, [], ()),
    "prompt_logprobs": (None,),
    "min_tokens": (0, None),
    "detokenize": (True, False, None),
    "skip_special_tokens": (True, False, None),
    "include_stop_str_in_output": (True, False, None),
}


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """What a server is made of.

    `model` is the folder of the weights to begin with. `prompt_length` and `response_length` are verl's, in tokens, and
    `max_context` its `max_model_len`, or None for the model's own window. `seed` is the root of the draws of requests
    without one. `options` are further arguments of `EmbeddedBackend` (`rollout.engine_kwargs.uni_agent_cpu`).
    """

    model: Path
    prompt_length: int
    response_length: int
    max_context: int | None = None
    max_batch: int = 64
    repetition_penalty: float = 1.0
    ignore_eos: bool = False
    seed: int = 0
    options: Mapping[str, Any] | None = None


class RolloutServer:
    """One engine, and what verl asks of a rollout server. Made on an event loop; `start` comes first.

    Between `abort_all_requests` and `resume_generation` a new request waits; with `reject_request` it comes back at
    once, empty and `aborted`, for a server that has left the load balancer and will not resume soon.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        options: dict[str, Any] = {
            "device": "cpu",
            "dtype": "float32",
            "max_context": config.max_context,
            "max_batch": config.max_batch,
            # verl gives every turn a fresh request id, so conversations are found again by their tokens.
            "share_prefixes": True,
            "seed": config.seed,
            **(config.options or {}),
        }
        self._engine = EmbeddedBackend(config.model, **options)
        self._replica: Any = None  # verl's module of that name
        # Weights are named by a counter: verl may call two sets of them by one step, or rename the ones it has.
        self._names = count()
        self._updates = 0
        self._step: int | None = None
        self._steps: dict[str, int | None] = {}

    async def start(self) -> None:
        """Load the model. Raises ConfigError when that cannot be."""
        # verl takes seconds to import: not while the first request waits for its answer.
        self._replica = await asyncio.to_thread(
            load, "verl.workers.rollout.replica", extra="train", needed_for="the rollout server"
        )
        await self._engine.start()
        await self._name_weights(None)

    async def close(self) -> None:
        """Fail what runs and free the model."""
        await self._engine.close()

    # ------------------------------------------------------------------------------------------ LLMServerClient

    async def generate(
        self,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: list[Any] | None = None,
        video_data: list[Any] | None = None,
        audio_data: list[Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
        priority: int = 0,
    ) -> Any:
        """One continuation, as verl's `TokenOutput`.

        `log_probs` is None unless `sampling_params` asks for `logprobs`. `extra_fields`: `global_steps` of the weights
        that sampled the last token, `min_global_steps` and `max_global_steps` when several did, `num_cached_tokens`,
        and `weight_spans` `[[global step, start, end], …]`. Raises ContextLengthError for a prompt that fills the
        window, ModelError for media and for sampling options that the engine has not.
        """
        del mm_processor_kwargs, priority
        if image_data or video_data or audio_data:
            raise ModelError("rollout.name=uni_agent_cpu reads text alone; the request has images, video or audio")
        prompt = [int(token) for token in prompt_ids]
        asked = dict(sampling_params)
        wants_logprobs = bool(asked.pop("logprobs", False))
        output = await self._engine.generate(request_id, prompt, self._sampling(prompt, asked))
        return self._answer(output, wants_logprobs)

    def _sampling(self, prompt: list[int], asked: dict[str, Any]) -> SamplingParams:
        stop = tuple(int(token) for token in asked.pop("stop_token_ids", None) or ())
        if not asked.pop("ignore_eos", self._config.ignore_eos):
            stop += self._engine.eos_ids
        seed = asked.pop("seed", None)
        sampling = SamplingParams(
            temperature=_number(asked, "temperature", 1.0),
            top_p=_number(asked, "top_p", 1.0),
            top_k=int(_number(asked, "top_k", -1)),
            min_p=_number(asked, "min_p", 0.0),
            repetition_penalty=_number(asked, "repetition_penalty", self._config.repetition_penalty),
            max_tokens=self._limit(prompt, asked),
            seed=None if seed is None else int(seed),
            stop_token_ids=stop or _NO_STOP,
        )
        foreign = sorted(key for key, value in asked.items() if value not in _NEUTRAL.get(key, ()))
        if foreign:
            raise ModelError(f"rollout.name=uni_agent_cpu has no sampling option {', '.join(foreign)}")
        return sampling

    def _limit(self, prompt: list[int], asked: dict[str, Any]) -> int:
        """At most so many new tokens, by verl's rules: what is asked, else what the configured lengths leave."""
        window = self._engine.max_context
        if window is not None and len(prompt) >= window:
            raise ContextLengthError(f"prompt of {len(prompt)} tokens, context window of {window}")
        config = self._config
        left = config.prompt_length + config.response_length - len(prompt)
        given = [asked.pop(key, None) for key in ("max_tokens", "max_new_tokens")]
        limit = next((int(value) for value in given if value is not None), min(config.response_length, left))
        return max(1, limit if window is None else min(limit, window - len(prompt)))

    def _answer(self, output: TokenOutput, wants_logprobs: bool) -> Any:
        spans = [[self._steps.get(span.version), span.start, span.end] for span in output.weight_spans]
        steps = [step for step, _, _ in spans if step is not None]
        extra: dict[str, Any] = {
            "global_steps": steps[-1] if steps else self._step,
            "num_cached_tokens": output.cached_tokens,
            "weight_spans": spans,
        }
        if len(set(steps)) > 1:
            extra |= {"min_global_steps": min(steps), "max_global_steps": max(steps)}
        return self._replica.TokenOutput(
            token_ids=output.token_ids,
            log_probs=output.logprobs if wants_logprobs else None,
            stop_reason=_STOP_REASONS[output.finish_reason],
            num_preempted=0,
            extra_fields=extra,
        )

    # --------------------------------------------------------------------------------------------------- weights

    async def update_weights(self, tensors: Mapping[str, Any], global_steps: int | None = None) -> int:
        """Replace the weights by `tensors` (numpy arrays by name); how many running requests went on with them.

        None as `global_steps` keeps the step that was told last. Raises ModelError, with the old weights in place, when
        a name or a shape is not the model's.
        """
        torch: Any = load("torch", extra="embedded", needed_for="the rollout server")
        # A copy: what comes out of Ray's object store is read-only, which torch warns of.
        new = {name: torch.from_numpy(array.copy()) for name, array in tensors.items()}
        name = str(next(self._names))
        self._steps[name] = self._step if global_steps is None else global_steps
        went_on = await self._engine.update_weights(new, version=name)
        self._updates += 1
        self._step = self._steps[name]
        self._forget_old_names()
        return went_on

    async def set_global_steps(self, global_steps: int) -> None:
        """Call the present weights those of another step."""
        await self._name_weights(global_steps)

    async def _name_weights(self, global_steps: int | None) -> None:
        name = str(next(self._names))
        self._steps[name] = self._step = global_steps
        await self._engine.set_version(name)
        self._forget_old_names()

    def _forget_old_names(self) -> None:
        """Keep as many as a request can have lived through."""
        while len(self._steps) > 1024:
            del self._steps[next(iter(self._steps))]

    async def status(self) -> dict[str, Any]:
        """`updates` of the weights so far, and the `global_steps` that they are of."""
        return {"updates": self._updates, "global_steps": self._step}

    # --------------------------------------------------------------------------------------------- RolloutReplica

    async def abort_all_requests(self, reject_request: bool = False) -> dict[str, Any]:
        """End everything within a decode step, with what it has. `aborted_count` says how much that was."""
        count = await self._engine.abort(reject=reject_request)
        return {"aborted_count": count, "request_ids": []}

    async def resume_generation(self) -> None:
        """Serve again."""
        await self._engine.resume()

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Nothing slept: the weights lie in main memory beside those of the trainer."""
        del tags

    async def sleep(self) -> None:
        """Drop the caches. What runs goes on, so that nobody waits for a server that sleeps."""
        await self._engine.clear_cache()

    async def clear_kv_cache(self) -> None:
        """Drop the keys and values of all conversations."""
        await self._engine.clear_cache()

    async def release_kv_cache(self) -> None:
        """Drop the keys and values of all conversations."""
        await self._engine.clear_cache()

    async def resume_kv_cache(self) -> None:
        """Caches grow by themselves."""

    async def start_profile(self, **_: Any) -> None:
        """No profiler."""

    async def stop_profile(self) -> None:
        """No profiler."""


def _number(asked: dict[str, Any], key: str, default: float) -> float:
    value = asked.pop(key, None)
    return default if value is None else float(value)
