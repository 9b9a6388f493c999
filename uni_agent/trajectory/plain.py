"""Messages, images, arrays and spans as plain JSON data and back, exactly."""

from __future__ import annotations

import base64
import binascii
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from uni_agent.engine.base import WeightSpan
from uni_agent.optional import load
from uni_agent.types import Media, Message, ToolCall

_ODD = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def message_to_json(message: Message) -> dict[str, Any]:
    """All fields of `message`; empty ones are left out."""
    out: dict[str, Any] = {"role": message.role}
    if message.content:
        out["content"] = message.content
    if message.reasoning:
        out["reasoning"] = message.reasoning
    if message.tool_calls:
        out["tool_calls"] = [_call_to_json(call) for call in message.tool_calls]
    if message.tool_call_id:
        out["tool_call_id"] = message.tool_call_id
    if message.name:
        out["name"] = message.name
    if message.parts:
        out["parts"] = [part if isinstance(part, str) else media_to_json(part) for part in message.parts]
    return out


def message_from_json(data: Any) -> Message:
    """The message that `message_to_json` was given; unknown keys are passed over. Raises ValueError otherwise."""
    raw = mapping(data, "message")
    role = raw.get("role")
    if role not in ("system", "user", "assistant", "tool"):
        raise ValueError(f"message: role {role!r} is none of system, user, assistant, tool")
    return Message(
        role=role,
        content=text(raw, "content"),
        reasoning=text(raw, "reasoning"),
        tool_calls=tuple(_call_from_json(call) for call in items(raw, "tool_calls")),
        tool_call_id=text(raw, "tool_call_id"),
        name=text(raw, "name"),
        parts=tuple(part if isinstance(part, str) else media_from_json(part) for part in items(raw, "parts")),
    )


def media_to_json(media: Media) -> dict[str, Any]:
    """`{kind, data (base64), media_type}`."""
    return {"kind": media.kind, "data": base64.b64encode(media.data).decode(), "media_type": media.media_type}


def media_from_json(data: Any) -> Media:
    """The inverse of `media_to_json`. Raises ValueError for what is no image."""
    raw = mapping(data, "media")
    if raw.get("kind") != "image":
        raise ValueError(f"media: kind {raw.get('kind')!r} is not known; only images are")
    return Media("image", _bytes(raw, "data"), text(raw, "media_type"))


def array_to_json(rows: Any) -> dict[str, Any] | None:
    """An array as `{"npy": base64 of a .npy file}`, nested lists as `{"list": …}`, None as None.

    Tensors are written as arrays. Raises ValueError for arrays of objects.
    """
    if rows is None:
        return None
    if isinstance(rows, list | tuple):
        return {"list": rows}
    numpy = _numpy()
    file = io.BytesIO()
    numpy.save(file, numpy.asarray(rows), allow_pickle=False)
    return {"npy": base64.b64encode(file.getvalue()).decode()}


def array_from_json(data: Any) -> Any:
    """The inverse of `array_to_json`. Raises ValueError for other data, MissingExtraError without numpy."""
    if data is None:
        return None
    raw = mapping(data, "array")
    if "list" in raw:
        return items(raw, "list")
    return _numpy().load(io.BytesIO(_bytes(raw, "npy")), allow_pickle=False)


def float_to_json(value: float) -> float | str:
    """`value`, or its name (`NaN`, `Infinity`, `-Infinity`), which strict JSON cannot hold as a number."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def float_from_json(value: Any) -> float:
    """The inverse of `float_to_json`. Raises ValueError for what is no number."""
    if isinstance(value, str) and value in _ODD:
        return _ODD[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected a number, got {value!r}")
    return value


def floats_to_json(values: Sequence[float] | None) -> list[float | str] | None:
    """Numbers [T], or None."""
    if values is None:
        return None
    # One sum tells whether all of them are finite; overflow only costs the slow path.
    return list(values) if math.isfinite(sum(values)) else [float_to_json(value) for value in values]


def floats_from_json(data: Any, what: str) -> list[float] | None:
    """The inverse of `floats_to_json`. Raises ValueError that names `what`."""
    if data is None:
        return None
    values = _list(data, what)
    if set(map(type, values)) <= {float, int}:
        return cast("list[float]", values)
    return [float_from_json(value) for value in values]


def ints_from_json(data: Any, what: str) -> list[int]:
    """A list of integers. Raises ValueError that names `what`."""
    values = _list(data, what)
    if not set(map(type, values)) <= {int}:
        raise ValueError(f"{what}: expected integers")
    return values


def weight_span_to_json(span: WeightSpan) -> list[Any]:
    """`[version, start, end]`."""
    return [span.version, span.start, span.end]


def weight_span_from_json(data: Any) -> WeightSpan:
    """The inverse of `weight_span_to_json`. Raises ValueError for other data."""
    version, start, end = parts(data, 3, "weight_spans: expected [version, start, end]")
    if not isinstance(version, str):
        raise ValueError("weight_spans: a version is text")
    return WeightSpan(version, integer(start, "weight_spans"), integer(end, "weight_spans"))


def parts(data: Any, count: int, expected: str) -> list[Any]:
    """`data` if it is a list of `count` values. Raises ValueError that says what was `expected`."""
    if not isinstance(data, list | tuple) or len(cast("list[Any]", data)) != count:
        raise ValueError(expected)
    return list(cast("list[Any]", data))


def mapping(data: Any, what: str) -> Mapping[str, Any]:
    """`data`. Raises ValueError that names `what` when it is no JSON object."""
    if not isinstance(data, dict):
        raise ValueError(f"{what}: expected an object, got {type(data).__name__}")
    return cast("dict[str, Any]", data)


def integer(value: Any, what: str) -> int:
    """`value`. Raises ValueError that names `what` when it is no whole number."""
    if type(value) is not int:
        raise ValueError(f"{what}: expected an integer, got {value!r}")
    return value


def text(raw: Mapping[str, Any], key: str, default: str = "") -> str:
    """The text under `key`. Raises ValueError for another type."""
    value = raw.get(key, default)
    if not isinstance(value, str):
        raise ValueError(f"{key}: expected text, got {type(value).__name__}")
    return value


def items(raw: Mapping[str, Any], key: str) -> list[Any]:
    """The list under `key`, empty when it is not there. Raises ValueError for another type."""
    return _list(raw.get(key, []), key)


def _list(data: Any, what: str) -> list[Any]:
    if not isinstance(data, list | tuple):
        raise ValueError(f"{what}: expected a list, got {type(data).__name__}")
    return list(cast("list[Any]", data))


def _bytes(raw: Mapping[str, Any], key: str) -> bytes:
    try:
        return base64.b64decode(text(raw, key), validate=True)
    except binascii.Error as error:
        raise ValueError(f"{key}: not base64: {error}") from error


def _call_to_json(call: ToolCall) -> dict[str, Any]:
    out: dict[str, Any] = {"id": call.id, "name": call.name, "arguments": call.arguments}
    out["raw_arguments"] = call.raw_arguments
    if call.error is not None:
        out["error"] = call.error
    if call.note:
        out["note"] = call.note
    return out


def _call_from_json(data: Any) -> ToolCall:
    raw = mapping(data, "tool_calls")
    return ToolCall(
        id=text(raw, "id"),
        name=text(raw, "name"),
        arguments=dict(mapping(raw.get("arguments", {}), "arguments")),
        raw_arguments=text(raw, "raw_arguments"),
        error=None if raw.get("error") is None else text(raw, "error"),
        note=text(raw, "note"),
    )


def _numpy() -> Any:
    return load("numpy", extra="embedded", needed_for="routed_experts")
