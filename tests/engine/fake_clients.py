"""verl's server client and Tinker's sampling client as their callers see them: only the sampling is played."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


@dataclass
class Answer:
    """One answer; a stop id is appended at a `stop`. `edit` changes the finished answer, `error` is raised instead."""

    ids: list[int] = field(default_factory=lambda: [1, 2])
    finish: str = "stop"
    delay: float = 0.0
    edit: Callable[[Any], None] | None = None
    error: Exception | None = None

    async def played(self, stops: list[int], limit: int) -> tuple[list[int], str]:
        """The ids and how they end, within the limit."""
        await asyncio.sleep(self.delay)
        if self.error is not None:
            raise self.error
        ids = [*self.ids, stops[0]] if self.finish == "stop" and stops else list(self.ids)
        return (ids[:limit], "length") if len(ids) > limit else (ids, self.finish)


class FakeVerlClient:
    """`LLMServerClient.generate` of verl 0.9.1 over a vLLM server: `completed` for a natural end and a cut alike."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.calls: list[dict[str, Any]] = []
        self.images: list[Any] = []
        self.cancelled = 0

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], image_data: Any = None
    ) -> Any:
        self.images.append(image_data)
        self.calls.append({"request_id": request_id, "prompt_ids": prompt_ids, **sampling_params})
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        limit = sampling_params.pop("max_tokens")  # as the real server does
        try:
            ids, finish = await answer.played(sampling_params.get("stop_token_ids", []), limit)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        output = SimpleNamespace(
            token_ids=ids,
            log_probs=[-0.5] * len(ids),
            routed_experts=None,
            stop_reason="aborted" if finish == "abort" else "completed",
            num_preempted=None,
            extra_fields={"global_steps": 3, "min_global_steps": 3, "max_global_steps": 3, "num_cached_tokens": 1},
        )
        if answer.edit is not None:
            answer.edit(output)
        return output


class FakeTinkerSdk:
    """The two records of the SDK that a request is made of."""

    class ModelInput:
        """Token ids."""

        @staticmethod
        def from_ints(tokens: list[int]) -> list[int]:
            return list(tokens)

    class SamplingParams(SimpleNamespace):
        """Keeps what it is given."""


class FakeTinkerClient:
    """`SamplingClient.sample` of tinker 0.38. `abort` is not a way in which it ends: the SDK raises then."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.prompts: list[Any] = []
        self.params: list[Any] = []

    def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Awaitable[Any]:
        assert num_samples == 1
        self.prompts.append(prompt)
        self.params.append(sampling_params)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return self._answer(answer, sampling_params)

    async def _answer(self, answer: Answer, params: Any) -> Any:
        ids, finish = await answer.played(getattr(params, "stop", []), params.max_tokens)
        sequence = SimpleNamespace(tokens=ids, logprobs=[-0.5] * len(ids), stop_reason=finish, sequence_id="s1")
        response = SimpleNamespace(sequences=[sequence], prompt_cache_hit_tokens=2)
        if answer.edit is not None:
            answer.edit(response)
        return response
