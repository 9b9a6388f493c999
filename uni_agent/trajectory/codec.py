"""A trajectory as JSON data and back, exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from uni_agent.tokens.cache import Span
from uni_agent.trajectory import plain
from uni_agent.trajectory.trajectory import Trajectory

_KINDS = ("sampled", "observation", "closing")


def trajectory_to_json(trajectory: Trajectory) -> dict[str, Any]:
    """See `Trajectory.to_json`; the data shares lists with the trajectory."""
    t = trajectory
    return {
        "id": t.id,
        "session_id": t.session_id,
        "prompt_ids": t.prompt_ids,
        "response_ids": t.response_ids,
        "response_mask": t.response_mask,
        "response_logprobs": plain.floats_to_json(t.response_logprobs),
        "spans": [[span.kind, span.turn, span.start, span.end] for span in t.spans],
        "weight_spans": [plain.weight_span_to_json(span) for span in t.weight_spans],
        "routed_experts": _experts_to_json(t),
        "multi_modal_data": [plain.media_to_json(media) for media in t.multi_modal_data],
        "reward": None if t.reward is None else plain.float_to_json(t.reward),
        "reward_info": t.reward_info,
        "num_turns": t.num_turns,
        "scenario": t.scenario,
        "tags": list(t.tags),
        "drift": list(t.drift),
        "materialization_reason": t.materialization_reason,
        "exit_reason": t.exit_reason,
        "accounting": t.accounting.to_dict(),
        "messages": [plain.message_to_json(message) for message in t.messages],
        "message_turns": list(t.message_turns),
        "tools": list(t.tools),
        "turns": list(t.turns),
        "trained": list(t.trained),
        "branched_from": t.branched_from,
        "continues": t.continues,
        "abandoned": t.abandoned,
        "extra": t.extra,
    }


def trajectory_from_json(data: Any) -> Trajectory:
    """See `Trajectory.from_json`."""
    raw = plain.mapping(data, "trajectory")
    for key in ("id", "prompt_ids", "response_ids", "response_mask", "response_logprobs", "spans"):
        if key not in raw:
            raise ValueError(f"trajectory: {key!r} is missing")
    account = plain.mapping(raw.get("accounting", {}), "accounting")
    trajectory = Trajectory(
        id=plain.text(raw, "id"),
        session_id=plain.text(raw, "session_id"),
        prompt_ids=plain.ints_from_json(raw["prompt_ids"], "prompt_ids"),
        response_ids=plain.ints_from_json(raw["response_ids"], "response_ids"),
        response_mask=plain.ints_from_json(raw["response_mask"], "response_mask"),
        response_logprobs=plain.floats_from_json(raw["response_logprobs"], "response_logprobs"),
        spans=tuple(_span(span) for span in plain.items(raw, "spans")),
        weight_spans=tuple(plain.weight_span_from_json(span) for span in plain.items(raw, "weight_spans")),
        routed_experts=_experts_from_json(raw.get("routed_experts")),
        multi_modal_data=tuple(plain.media_from_json(media) for media in plain.items(raw, "multi_modal_data")),
        reward=None if raw.get("reward") is None else plain.float_from_json(raw["reward"]),
        reward_info=dict(plain.mapping(raw.get("reward_info", {}), "reward_info")),
        num_turns=plain.integer(raw.get("num_turns", 0), "num_turns"),
        dropped={k: plain.integer(v, k) for k, v in plain.mapping(account.get("dropped", {}), "dropped").items()},
        tools=tuple(dict(plain.mapping(tool, "tools")) for tool in plain.items(raw, "tools")),
        turns=tuple(plain.ints_from_json(raw.get("turns", []), "turns")),
        extra=dict(plain.mapping(raw.get("extra", {}), "extra")),
    )
    return replace(trajectory, **_words(raw))


def _words(raw: Mapping[str, Any]) -> dict[str, Any]:
    abandoned, continues, branch = raw.get("abandoned", False), raw.get("continues"), raw.get("branched_from")
    if not isinstance(abandoned, bool):
        raise ValueError(f"abandoned: expected true or false, got {abandoned!r}")
    tags, drift = plain.items(raw, "tags"), plain.items({"drift": raw.get("drift", [])}, "drift")
    if not all(isinstance(word, str) for word in (*tags, *drift)):
        raise ValueError("tags, drift: expected texts")
    numbers = [n if n is None else plain.integer(n, "message_turns") for n in plain.items(raw, "message_turns")]
    return {
        "scenario": plain.text(raw, "scenario"),
        "materialization_reason": plain.text(raw, "materialization_reason"),
        "exit_reason": plain.text(raw, "exit_reason"),
        "tags": tuple(tags),
        "drift": tuple(drift),
        "messages": tuple(plain.message_from_json(message) for message in plain.items(raw, "messages")),
        "message_turns": tuple(numbers),
        "branched_from": None if branch is None else plain.integer(branch, "branched_from"),
        "continues": None if continues is None else plain.text(raw, "continues"),
        "abandoned": abandoned,
    }


def _span(data: Any) -> Span:
    kind, turn, start, end = plain.parts(data, 4, "spans: expected [kind, turn, start, end]")
    if kind not in _KINDS:
        raise ValueError(f"spans: {kind!r} is none of {', '.join(_KINDS)}")
    return Span(kind, *(plain.integer(number, "spans") for number in (turn, start, end)))


def _experts_to_json(trajectory: Trajectory) -> list[Any] | None:
    if trajectory.routed_experts is None:
        return None
    return [[start, plain.array_to_json(rows)] for start, rows in trajectory.routed_experts]


def _experts_from_json(data: Any) -> list[tuple[int, Any]] | None:
    if data is None:
        return None
    pairs = (plain.parts(pair, 2, "routed_experts: expected [start, rows]") for pair in plain.items({"x": data}, "x"))
    return [(plain.integer(start, "routed_experts"), plain.array_from_json(rows)) for start, rows in pairs]
