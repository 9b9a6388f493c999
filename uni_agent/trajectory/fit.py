"""Trajectories cut to a length, with an account of what was cut."""

from __future__ import annotations

from dataclasses import replace

from uni_agent.engine.base import WeightSpan
from uni_agent.tokens.cache import Span
from uni_agent.trajectory.trajectory import Trajectory

TOO_LONG = "max_length"
"""The reason under which cut tokens are dropped."""


def fit(trajectory: Trajectory, *, max_prompt: int | None = None, max_response: int | None = None) -> Trajectory:
    """`trajectory` with at most `max_prompt` prompt and `max_response` response tokens; itself when it fits.

    A prompt that is too long loses nothing: what is behind its first `max_prompt` tokens moves to the front of the
    response, as context. A response that is too long loses its end: sampled tokens there are counted in `dropped` under
    `max_length`. `extra["cut"]` has the number of `tokens` of any kind and the `turn` that was cut in two (or None).
    Messages and `num_turns` stay: they say what happened.

    Raises ValueError for a limit below 1, and for a trajectory with images that would have to be cut: which of them
    the cut tokens belong to is not known.
    """
    for limit in (max_prompt, max_response):
        if limit is not None and limit < 1:
            raise ValueError(f"a limit of {limit} tokens leaves nothing")
    if max_prompt is not None and len(trajectory.prompt_ids) > max_prompt:
        trajectory = _moved(trajectory, max_prompt)
    if max_response is not None and len(trajectory.response_ids) > max_response:
        trajectory = _cut(trajectory, max_response)
    return trajectory


def _moved(t: Trajectory, limit: int) -> Trajectory:
    """The end of the prompt as the beginning of the response."""
    count = len(t.prompt_ids) - limit
    return replace(
        t,
        prompt_ids=t.prompt_ids[:limit],
        response_ids=t.prompt_ids[limit:] + t.response_ids,
        response_mask=[0] * count + t.response_mask,
        response_logprobs=None if t.response_logprobs is None else [0.0] * count + t.response_logprobs,
        spans=(
            Span("observation", 0, 0, count),
            *(Span(s.kind, s.turn, s.start + count, s.end + count) for s in t.spans),
        ),
        weight_spans=tuple(WeightSpan(w.version, w.start + count, w.end + count) for w in t.weight_spans),
        routed_experts=None if t.routed_experts is None else [(at + count, rows) for at, rows in t.routed_experts],
    )


def _cut(t: Trajectory, limit: int) -> Trajectory:
    if t.multi_modal_data:
        raise ValueError(f"trajectory {t.id!r}: {len(t.response_ids)} response tokens, and one with images is not cut")
    lost = sum(s.end - max(s.start, limit) for s in t.spans if s.kind == "sampled" and s.end > limit)
    dropped = {**t.dropped, TOO_LONG: t.dropped.get(TOO_LONG, 0) + lost} if lost else t.dropped
    before = t.extra.get("cut", {"tokens": 0})["tokens"]
    half = (t.turns[s.turn] for s in t.spans if s.kind == "sampled" and s.start < limit < s.end)
    cut = {"tokens": before + len(t.response_ids) - limit, "turn": next(half, None)}
    experts = None
    if t.routed_experts is not None:
        experts = [(at, rows[: limit - at]) for at, rows in t.routed_experts if at < limit]
    weights = (w for w in t.weight_spans if w.start < limit)
    return replace(
        t,
        response_ids=t.response_ids[:limit],
        response_mask=t.response_mask[:limit],
        response_logprobs=None if t.response_logprobs is None else t.response_logprobs[:limit],
        spans=tuple(replace(s, end=min(s.end, limit)) for s in t.spans if s.start < limit),
        weight_spans=tuple(replace(w, end=min(w.end, limit)) for w in weights),
        routed_experts=experts,
        dropped=dropped,
        extra={**t.extra, "cut": cut},
    )
