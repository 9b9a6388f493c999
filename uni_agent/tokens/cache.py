"""The record of one token chain: which ids stand in it, which of them were sampled, and by what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from uni_agent.engine.base import TokenOutput, WeightSpan

SpanKind = Literal["sampled", "observation", "closing"]
"""`sampled` by the model · `observation` rendered from messages · `closing` an end token added after a length cut."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens [`start`, `end`) of `response_ids` came in as one piece, at turn `turn` (counted from 0)."""

    kind: SpanKind
    turn: int
    start: int
    end: int


@dataclass(slots=True)
class RolloutCache:
    """One chain: a prompt, then sampled and context tokens in turn. Append-only: ids once in are never re-encoded.

    `prompt_ids` [P]; `response_ids`, `response_mask` (1 = sampled) and `response_logprobs` (0.0 where the mask is 0)
    all [T]. `response_logprobs` is None once any generation came without logprobs: numbers are never made up.
    `weight_spans` index `response_ids`. `routed_experts` is the engine's latest value, or None.
    """

    request_id: str
    prompt_ids: list[int] = field(default_factory=list[int])
    response_ids: list[int] = field(default_factory=list[int])
    response_mask: list[int] = field(default_factory=list[int])
    response_logprobs: list[float] | None = field(default_factory=list[float])
    spans: list[Span] = field(default_factory=list[Span])
    weight_spans: list[WeightSpan] = field(default_factory=list[WeightSpan])
    routed_experts: Any = None
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    extra_fields: dict[str, Any] = field(default_factory=dict[str, Any])
    _joined: list[int] = field(default_factory=list[int], init=False, repr=False, compare=False)

    def __len__(self) -> int:
        """Tokens in the chain: prompt and response."""
        return len(self.prompt_ids) + len(self.response_ids)

    @property
    def ids(self) -> list[int]:
        """The whole chain [P + T]: a live view, to be read only. It costs what was added since it was last read."""
        if not self._joined:
            self._joined.extend(self.prompt_ids)
        self._joined.extend(self.response_ids[len(self._joined) - len(self.prompt_ids) :])
        return self._joined

    @property
    def sampled(self) -> int:
        """How many tokens of the chain the model sampled."""
        return sum(span.end - span.start for span in self.spans if span.kind == "sampled")

    def append_sampled(self, output: TokenOutput, turn: int) -> Span:
        """Commit one generation. Raises ValueError when logprobs and ids differ in length; then nothing is changed."""
        if output.logprobs is not None and len(output.logprobs) != len(output.token_ids):
            raise ValueError(f"engine returned {len(output.token_ids)} ids but {len(output.logprobs)} logprobs")
        start = len(self.response_ids)
        span = self._append("sampled", output.token_ids, 1, turn)
        if output.logprobs is None:
            self.response_logprobs = None
        elif self.response_logprobs is not None:
            self.response_logprobs.extend(output.logprobs)
        self.weight_spans.extend(WeightSpan(w.version, w.start + start, w.end + start) for w in output.weight_spans)
        if output.routed_experts is not None:
            self.routed_experts = output.routed_experts
        return span

    def append_context(self, ids: Sequence[int], turn: int, kind: SpanKind = "observation") -> Span:
        """Append tokens that the model did not sample: mask 0, logprob 0.0."""
        span = self._append(kind, ids, 0, turn)
        if self.response_logprobs is not None:
            self.response_logprobs.extend([0.0] * len(ids))
        return span

    def sampled_spans(self) -> Iterator[Span]:
        """The spans of sampled tokens, in order."""
        return (span for span in self.spans if span.kind == "sampled")

    def _append(self, kind: SpanKind, ids: Sequence[int], mask: int, turn: int) -> Span:
        start = len(self.response_ids)
        self.response_ids.extend(ids)
        self.response_mask.extend([mask] * len(ids))
        span = Span(kind, turn, start, len(self.response_ids))
        self.spans.append(span)
        return span
