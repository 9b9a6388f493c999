"""The seam to whatever samples tokens: token ids in, token ids and logprobs out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast, runtime_checkable

from uni_agent.types import Media


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample. None means the engine's own default.

    `max_tokens` is the cap on new tokens of this call. `stop_token_ids` end the turn and are part of the output.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class WeightSpan:
    """Tokens [`start`, `end`) of one output were sampled by the weights named `version`."""

    version: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """One generation.

    `token_ids` [T] are exactly what was sampled, the stop token included when one was sampled. `logprobs` [T] belong to
    them at the sampling temperature, or None when the engine gives none. `finish_reason`: `stop` (a stop token),
    `length` (cap or context window), `abort` (the engine gave up; the text is no answer). `routed_experts` is
    [T, layers, top_k] or None. `cached_tokens` counts prompt tokens that the engine did not compute again.
    """

    token_ids: list[int]
    logprobs: list[float] | None
    finish_reason: Literal["stop", "length", "abort"]
    weight_spans: tuple[WeightSpan, ...] = ()
    routed_experts: Any = None
    cached_tokens: int = 0
    extra: dict[str, Any] = field(default_factory=dict[str, Any])


OnTokens = Callable[[Sequence[int]], bool]
"""Takes the next sampled ids as they arrive; True asks the engine to stop there."""


@runtime_checkable
class SamplingBackend(Protocol):
    """Token ids in, token ids + logprobs out.

    `generate` raises ModelError when the engine fails and is safe to cancel: a cancelled call leaves nothing behind.
    Calls run concurrently; the same `request_id` over turns may be used for cache affinity. `prompt_ids` is only valid
    during the call: what is kept longer is copied. `start` loads, `close`
    frees; both are idempotent. `max_context` is the window in tokens, or None when the engine does not say.

    `on_tokens` receives the ids in order while they are sampled, on the event loop; joined, they are the beginning of
    the output's `token_ids`. An engine that cannot stream never calls it, one that cannot stop early ignores what it
    returns. After a stop on request the output holds what was sampled until then, with `finish_reason` "stop" and no
    stop token. Once ids were handed over a failed call is not repeated: it raises.
    """

    @property
    def max_context(self) -> int | None: ...

    async def start(self) -> None: ...

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling: SamplingParams, *, on_tokens: OnTokens | None = None
    ) -> TokenOutput: ...

    async def release(self, request_id: str) -> None:
        """Forget what is cached for `request_id`; unknown ids are fine."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PromptImage:
    """An image of a prompt, and where its placeholders stand: `length` ids from `start` on."""

    media: Media
    start: int
    length: int


class MediaBackend(SamplingBackend, Protocol):
    """A SamplingBackend that takes the images of a prompt beside its ids; `reads_media` says that it does.

    `media` are the images in the order in which they stand in `prompt_ids`, each with as many placeholders as the
    model's image processor asks for. Without images the keyword is left out.
    """

    @property
    def reads_media(self) -> bool: ...

    async def generate(
        self,
        request_id: str,
        prompt_ids: list[int],
        sampling: SamplingParams,
        *,
        on_tokens: OnTokens | None = None,
        media: Sequence[PromptImage] = (),
    ) -> TokenOutput: ...


def media_backend(backend: SamplingBackend) -> MediaBackend | None:
    """`backend` where it takes images, else None."""
    return cast("MediaBackend", backend) if getattr(backend, "reads_media", False) is True else None
