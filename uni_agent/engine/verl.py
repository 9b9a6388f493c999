"""verl's server client as an engine: the trainer's own rollout servers, asked through the object verl hands out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Literal, Protocol, cast

from uni_agent.engine.base import OnTokens, PromptImage, SamplingParams, TokenOutput, WeightSpan
from uni_agent.engine.checked import FinishReason, GenerationCall, Sampled, count, mapping, token_limit
from uni_agent.engine.http import is_context_error
from uni_agent.engine.images import pil_image
from uni_agent.engine.vllm import merged
from uni_agent.errors import ContextLengthError, ModelError, UniAgentError


class VerlClient(Protocol):
    """What is used of verl's `LLMServerClient` (0.9.1) and its subclasses.

    The answer has `token_ids`, `log_probs`, `routed_experts`, `stop_reason`, `num_preempted` and `extra_fields`.
    """

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], image_data: Any = None
    ) -> Any:
        """One answer; see above. `image_data` is None or a list of PIL images."""
        ...


class VerlBackend:
    """A SamplingBackend over verl's `client`, which keeps a request id on one server.

    `engine` is `rollout.name`: it decides how the seed is called. `max_context` is `rollout.max_model_len`, which the
    client does not tell. verl returns whole answers, so `on_tokens` is never called; a cancelled call frees its place
    at the load balancer, but the server, which was given another id, samples on.

    verl calls a natural end and a cut alike `completed`: the output ends by `length` when it has as many tokens as were
    asked for and no stop token at its end.

    `weight_spans` name `global_steps`, span by span where the server tells its own `weight_spans`. verl's
    `FullyAsyncLLMServerClient` goes on after an abort by itself and joins the parts without saying where: with
    `own_aborts` the plain call of its parent is used instead, so that an abort is seen here and each part keeps the
    weights that sampled it. Without it an answer that spans several steps has no `weight_spans`, and `extra` has
    `min_global_steps` and `max_global_steps`. `extra` also has the rest of `extra_fields`, and `num_preempted` when it
    is told. `routed_experts` are passed on as they come, mostly with rows for the prompt.

    Images are passed as verl's own loops do it: PIL images in `image_data`, beside ids whose placeholders are already
    as many as the processor makes them.
    """

    def __init__(
        self,
        client: VerlClient,
        *,
        engine: Literal["vllm", "sglang", "other"] = "vllm",
        max_context: int | None = None,
        own_aborts: bool = False,
    ) -> None:
        self._generate = _plain_call(client) if own_aborts else client.generate
        self._engine = engine
        self._max_context = max_context
        self._started = False

    @property
    def max_context(self) -> int | None:
        """The window that was given, or None."""
        return self._max_context

    async def start(self) -> None:
        """Accept calls; the servers are the trainer's."""
        self._started = True

    @property
    def reads_media(self) -> bool:
        """True: images are passed as `image_data`."""
        return True

    async def generate(
        self,
        request_id: str,
        prompt_ids: list[int],
        sampling: SamplingParams,
        *,
        on_tokens: OnTokens | None = None,
        media: Sequence[PromptImage] = (),
    ) -> TokenOutput:
        """Sample one continuation. Raises ContextLengthError for a full window, else ModelError."""
        del on_tokens
        if not self._started:
            raise ModelError("the engine is not started")
        limit = token_limit(prompt_ids, sampling, self._max_context, "verl's client")
        call = GenerationCall("", request_id, list(prompt_ids), sampling, limit)
        fields = self._fields(call)
        images: dict[str, Any] = {}
        if media:
            images["image_data"] = await asyncio.to_thread(lambda: [pil_image(image.media) for image in media])
        try:
            answer = await self._generate(request_id, prompt_ids=call.prompt_ids, sampling_params=fields, **images)
        except UniAgentError:
            raise
        except Exception as error:  # Ray wraps whatever the server raised
            cls = ContextLengthError if is_context_error(str(error)) else ModelError
            raise cls(f"verl's server failed: {type(error).__name__}: {error}") from error
        return _read(answer, call)

    def _fields(self, call: GenerationCall) -> dict[str, Any]:
        """The call's sampling as verl's servers read it; they change the dict, so it is a new one each time."""
        sampling = call.sampling
        fields: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "repetition_penalty": sampling.repetition_penalty,
            "max_tokens": call.max_tokens,
            "logprobs": True,
        }
        if sampling.stop_token_ids:
            fields["stop_token_ids"] = list(sampling.stop_token_ids)
        if sampling.min_p:
            fields["min_p"] = sampling.min_p
        if sampling.seed is not None:
            fields["sampling_seed" if self._engine == "sglang" else "seed"] = sampling.seed
        return merged(fields, sampling.extra)

    async def release(self, request_id: str) -> None:
        """Do nothing: the servers drop by themselves what is old."""
        del request_id

    async def close(self) -> None:
        """Refuse further calls; the servers go on."""
        self._started = False


def _plain_call(client: VerlClient) -> Callable[..., Awaitable[Any]]:
    """The plain `LLMServerClient.generate`, bound to `client`, also where its class hides aborts in a loop."""
    for cls in type(client).__mro__:
        if cls.__name__ == "LLMServerClient":
            return partial(cast("Any", cls).generate, client)
    return client.generate


def _read(answer: Any, call: GenerationCall) -> TokenOutput:
    raw = getattr(answer, "token_ids", None)
    logprobs = getattr(answer, "log_probs", None)
    ids = None if raw is None else list(raw)
    finish = _finish(getattr(answer, "stop_reason", None), ids or [], call)
    extra = dict(mapping(getattr(answer, "extra_fields", None)))
    checked, logs = Sampled(ids, None, None if logprobs is None else list(logprobs), finish).checked(call)
    first, last = extra.get("min_global_steps"), extra.get("max_global_steps")
    step = first if first == last else None
    if first is None and last is None:
        step = extra.get("global_steps")
    preempted = getattr(answer, "num_preempted", None)
    if preempted is not None:
        extra["num_preempted"] = preempted
    return TokenOutput(
        checked,
        logs,
        finish,
        weight_spans=_spans(extra.pop("weight_spans", None), step, len(checked)),
        routed_experts=getattr(answer, "routed_experts", None),
        cached_tokens=count(extra.get("num_cached_tokens")),
        extra=extra,
    )


def _spans(told: Any, step: Any, length: int) -> tuple[WeightSpan, ...]:
    """What the server itself says of its tokens, `[[step, start, end], …]`; else all of them are of `step`."""
    if told:
        return tuple(WeightSpan(str(at), int(start), int(end)) for at, start, end in told if at is not None)
    return (WeightSpan(str(step), 0, length),) if step is not None and length else ()


def _finish(reason: Any, ids: list[Any], call: GenerationCall) -> FinishReason:
    if reason in ("aborted", "abort"):
        return "abort"
    if reason == "length":
        return "length"
    if reason not in ("completed", "stop", None):
        raise ModelError(f"verl's server ends with stop_reason {reason!r}, which is none that is known")
    stopped = bool(ids) and ids[-1] in call.sampling.stop_token_ids
    return "stop" if stopped or len(ids) < call.max_tokens else "length"
