"""What holds for every trajectory. Each check raises ValueError that says what does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from uni_agent.engine.base import WeightSpan
from uni_agent.tokens.cache import Span
from uni_agent.types import Message


def lengths(ids: Sequence[int], mask: Sequence[int], logprobs: Sequence[float] | None) -> None:
    """Ids, mask and logprobs are of one length."""
    if len(mask) != len(ids):
        raise ValueError(f"{len(ids)} response ids but a mask of {len(mask)}")
    if logprobs is not None and len(logprobs) != len(ids):
        raise ValueError(f"{len(ids)} response ids but {len(logprobs)} logprobs")


def spans(values: Sequence[Span], mask: Sequence[int], turn_count: int) -> None:
    """Spans tile the response, and the mask is 1 in sampled spans alone, 0 elsewhere."""
    end = 0
    for span in values:
        if span.start != end or span.end < span.start:
            raise ValueError(f"span {span.start}:{span.end} does not follow on token {end}")
        if not 0 <= span.turn < turn_count:
            raise ValueError(f"span {span.start}:{span.end} belongs to turn number {span.turn} of {turn_count}")
        part = mask[span.start : span.end]
        allowed = {0, 1} if span.kind == "sampled" else {0}
        if not set(part) <= allowed:
            raise ValueError(f"the mask of {span.kind} span {span.start}:{span.end} holds {set(part) - allowed}")
        end = span.end
    if end != len(mask):
        raise ValueError(f"the spans end at token {end} of {len(mask)}")


def weights(values: Sequence[WeightSpan], length: int) -> None:
    """Weight spans lie in the response."""
    for span in values:
        if not 0 <= span.start <= span.end <= length:
            raise ValueError(f"weight span {span.start}:{span.end} does not lie in {length} response ids")


def experts(values: Sequence[tuple[int, Any]] | None, prompt: int, response: int) -> None:
    """Rows of experts lie in the trajectory."""
    for start, rows in values or ():
        if start < -prompt or start + len(rows) > response:
            raise ValueError(
                f"routed_experts has rows for tokens {start}:{start + len(rows)} of {prompt} + {response} tokens"
            )


def turns(
    ids: Sequence[int],
    tags: Sequence[str],
    drift: Sequence[str],
    messages: Sequence[Message],
    message_turns: Sequence[int | None],
) -> None:
    """Tags and drift belong to turns, and messages to turns or to none."""
    if tags and len(tags) != len(ids):
        raise ValueError(f"{len(ids)} turns but {len(tags)} tags")
    if drift and len(drift) != len(ids):
        raise ValueError(f"{len(ids)} turns but {len(drift)} entries of drift")
    if message_turns and len(message_turns) != len(messages):
        raise ValueError(f"{len(messages)} messages but {len(message_turns)} message_turns")
    if unknown := set(message_turns) - {None, *ids}:
        raise ValueError(f"message_turns names turns {sorted(filter(None, unknown))}, which are not among its turns")
