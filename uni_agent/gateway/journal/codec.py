"""A committed turn as JSON data and back, exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uni_agent.tokens.graph import TurnRecord
from uni_agent.trajectory.plain import (
    array_from_json,
    array_to_json,
    floats_from_json,
    floats_to_json,
    integer,
    ints_from_json,
    items,
    mapping,
    message_from_json,
    message_to_json,
    text,
    weight_span_from_json,
    weight_span_to_json,
)

_DRIFTS = ("new", "clean", "realigned", "forked")
_INTENTS = ("auto", "retry", "resample")


def turn_to_json(record: TurnRecord) -> dict[str, Any]:
    """All fields of `record` as JSON data that shares its lists; its size is that of what the turn added.

    Raises ValueError for routed experts that are no array of numbers.
    """
    out: dict[str, Any] = {
        "id": record.id,
        "sibling": record.sibling,
        "parent": record.parent,
        "messages": [message_to_json(message) for message in record.messages],
        "context_ids": record.context_ids,
        "closing": record.closing,
        "context_experts": array_to_json(record.context_experts),
        "message": message_to_json(record.message),
        "ids": record.ids,
        "logprobs": floats_to_json(record.logprobs),
        "weight_spans": [weight_span_to_json(span) for span in record.weight_spans],
        "routed_experts": array_to_json(record.routed_experts),
        "finish_reason": record.finish_reason,
        "cut": record.cut,
        "drift": record.drift,
        "intent": record.intent,
        "tag": record.tag,
        "prepared_at": record.prepared_at,
        "committed_at": record.committed_at,
        "continues": record.continues,
    }
    if record.tools or record.tools == []:
        out["tools"] = list(record.tools)
    if record.template_kwargs:
        out["template_kwargs"] = dict(record.template_kwargs)
    return out


def turn_from_json(data: dict[str, Any]) -> TurnRecord:
    """The record that `turn_to_json` was given; unknown keys are passed over. Raises ValueError for other data."""
    try:
        return _record(mapping(data, "turn"))
    except KeyError as error:
        raise ValueError(f"turn: {error} is missing") from error


def _record(raw: Mapping[str, Any]) -> TurnRecord:
    return TurnRecord(
        id=integer(raw["id"], "id"),
        sibling=_number(raw, "sibling"),
        parent=_number(raw, "parent"),
        tools=[dict(mapping(tool, "tools")) for tool in items(raw, "tools")] if "tools" in raw else (),
        template_kwargs=dict(mapping(raw.get("template_kwargs", {}), "template_kwargs")),
        messages=tuple(message_from_json(message) for message in items(raw, "messages")),
        context_ids=ints_from_json(raw["context_ids"], "context_ids"),
        closing=integer(raw.get("closing", 0), "closing"),
        context_experts=array_from_json(raw.get("context_experts")),
        message=message_from_json(raw["message"]),
        ids=ints_from_json(raw["ids"], "ids"),
        logprobs=floats_from_json(raw["logprobs"], "logprobs"),
        weight_spans=tuple(weight_span_from_json(span) for span in items(raw, "weight_spans")),
        routed_experts=array_from_json(raw.get("routed_experts")),
        finish_reason=text(raw, "finish_reason"),
        cut=_bool(raw["cut"], "cut"),
        drift=_word(raw, "drift", _DRIFTS),
        intent=_word(raw, "intent", _INTENTS),
        tag=text(raw, "tag"),
        prepared_at=integer(raw["prepared_at"], "prepared_at"),
        committed_at=integer(raw["committed_at"], "committed_at"),
        continues=_number(raw, "continues"),
    )


def _word(raw: Mapping[str, Any], key: str, words: tuple[str, ...]) -> Any:
    value = raw[key]
    if value not in words:
        raise ValueError(f"{key}: {value!r} is none of {', '.join(words)}")
    return value


def _number(raw: Mapping[str, Any], key: str) -> int | None:
    value = raw.get(key)
    return None if value is None else integer(value, key)


def _bool(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{what}: expected true or false, got {value!r}")
    return value
