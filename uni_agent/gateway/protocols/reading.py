"""How every adapter reads what clients write: nothing of a history is refused that the model once said."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from uni_agent.gateway.errors import invalid, unsupported
from uni_agent.tokens.base import ToolSchema
from uni_agent.tokens.parsers.jsontext import check_depth, levels
from uni_agent.types import Media, Message, ToolCall

Parts = list[str | Media]

UNPARSED = ("__unparsedToolInput", "INVALID_JSON")
"""Keys under which clients send back arguments that they could not parse (Claude Code, pydantic-ai)."""


def mapping(value: Any, param: str) -> dict[str, Any]:
    """`value` if it is a JSON object. Raises GatewayError."""
    if not isinstance(value, dict):
        raise invalid(f"{param}: expected an object, got {kind_of(value)}", param)
    return cast("dict[str, Any]", value)


def listing(value: Any, param: str) -> list[Any]:
    """`value` if it is a JSON array, [] for null. Raises GatewayError."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise invalid(f"{param}: expected an array, got {kind_of(value)}", param)
    return cast("list[Any]", value)


def text(value: Any, param: str) -> str:
    """`value` if it is a string, "" for null. Raises GatewayError."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise invalid(f"{param}: expected a string, got {kind_of(value)}", param)
    return value


def whole(value: Any, param: str, *, least: int = 1) -> int | None:
    """`value` if it is a whole number of at least `least`, None for null. Raises GatewayError."""
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or value < least:
        raise invalid(f"{param}: expected a whole number of at least {least}, got {value!r:.80}", param)
    return value


def number(value: Any, param: str, low: float, high: float) -> float | None:
    """`value` if it is a number in [low, high], None for null. Raises GatewayError."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise invalid(f"{param}: expected a number from {low:g} to {high:g}, got {value!r:.80}", param)
    return float(value)


def flag(body: Mapping[str, Any], key: str, *, default: bool = False, at: str = "") -> bool:
    """The boolean under `key`, `default` for null. Raises GatewayError; `at` begins the path that it names."""
    value = body.get(key)
    if value is not None and not isinstance(value, bool):
        raise invalid(f"{at}{key}: expected a boolean, got {kind_of(value)}", at + key)
    return default if value is None else value


def kind_of(value: Any) -> str:
    """The JSON type of `value`, for messages."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(cast("type[Any]", type(value)), "a number")


def too_deep(value: Any) -> bool:
    """Whether `value` is nested more deeply than templates and `json.dumps`, which recurse, can walk."""
    try:
        check_depth(value)
    except ValueError:
        return True
    return False


def plain(value: Any, param: str) -> Any:
    """`value` if it can be written as JSON again. Raises GatewayError for NaN, infinities and too deep nesting."""
    try:
        for level in levels(value):
            for item in level:
                if isinstance(item, float) and not math.isfinite(item):
                    raise invalid(f"{param}: {item} is no JSON", param)
    except ValueError as error:
        raise invalid(f"{param}: {error}", param) from error
    return value


def call_of(id_: Any, name: Any, arguments: Any) -> ToolCall:
    """A call of the history, whatever its arguments are: broken ones keep their text and have `error` set.

    `arguments` is JSON text or a decoded value. Empty text and null are {}.
    """
    if isinstance(arguments, dict):
        values = cast("dict[str, Any]", arguments)
        raw = unparsed(values)
        if raw is None:
            return _call(id_, name, values, _dumped(values))
        arguments = raw
    written = arguments if isinstance(arguments, str) else _dumped(arguments)
    if not written.strip() or written.strip() == "null":
        return ToolCall(_word(id_), _word(name), {}, "{}")
    try:
        decoded: Any = json.loads(written)
    except (ValueError, RecursionError) as error:
        return ToolCall(_word(id_), _word(name), {}, written, f"arguments are not JSON: {error}")
    if not isinstance(decoded, dict):
        return ToolCall(_word(id_), _word(name), {}, written, f"arguments are {kind_of(decoded)}, not an object")
    values = cast("dict[str, Any]", decoded)
    raw = unparsed(values)
    return _call(id_, name, values, written) if raw is None else call_of(id_, name, raw)


def _call(id_: Any, name: Any, values: dict[str, Any], written: str) -> ToolCall:
    if too_deep(values):  # a call of the model's own that nests so deep was kept as text, too
        return ToolCall(_word(id_), _word(name), {}, written, "arguments are nested too deeply")
    return ToolCall(_word(id_), _word(name), values, written)


def unparsed(values: Mapping[str, Any]) -> str | None:
    """The text that the model wrote, when a client sends its arguments back as not parsed; else None."""
    if len(values) != 1:
        return None
    inner: Any = next((values[key] for key in UNPARSED if key in values), None)
    if isinstance(inner, dict):
        inner = cast("dict[str, Any]", inner).get("raw")
    return inner if isinstance(inner, str) else None


def message_of(role: Any, parts: Sequence[str | Media], **fields: Any) -> Message:
    """A message of text and media in their order. Texts are joined as they are."""
    content = "".join(part for part in parts if isinstance(part, str))
    has_media = any(isinstance(part, Media) for part in parts)
    return Message(role, content, parts=tuple(parts) if has_media else (), **fields)


def image(url: Any, param: str) -> Media:
    """The image of a `data:` URL. Raises GatewayError: addresses are not fetched on a client's behalf."""
    address = text(url, param)
    head, comma, data = address.partition(",")
    if not head.startswith("data:") or not comma or not head.endswith(";base64"):
        raise unsupported(
            f"{param}: only images inside the request can be read, as data:image/png;base64,…; got {address[:60]!r}",
            param,
        )
    return image_data(head.removeprefix("data:").removesuffix(";base64"), data, param)


def image_data(media_type: Any, data: Any, param: str) -> Media:
    """The image in base64 `data`. Raises GatewayError."""
    try:
        return Media("image", base64.b64decode(text(data, param), validate=True), text(media_type, param))
    except (binascii.Error, ValueError) as error:
        raise invalid(f"{param}: the image is no base64: {error}", param) from error


def merged(messages: Iterable[Message]) -> list[Message]:
    """`messages` with runs of assistant messages as one each: clients split a turn over several items.

    Empty assistant messages are left out. Texts are joined with a line break when both have some, calls in order.
    """
    out: list[Message] = []
    for message in messages:
        if message.role != "assistant":
            out.append(message)
        elif message.content or message.reasoning or message.tool_calls or message.parts:
            if out and out[-1].role == "assistant":
                out[-1] = _joined(out[-1], message)
            else:
                out.append(message)
    return out


def _joined(first: Message, second: Message) -> Message:
    return replace(
        first,
        content="\n".join(filter(None, (first.content, second.content))),
        reasoning="\n".join(filter(None, (first.reasoning, second.reasoning))),
        tool_calls=first.tool_calls + second.tool_calls,
        parts=(),
    )


def function_schema(name: str, description: Any, parameters: Any) -> ToolSchema:
    """An OpenAI function schema with nothing but what templates show."""
    function: dict[str, Any] = {"name": name}
    if isinstance(description, str) and description:
        function["description"] = description
    schema: dict[str, Any] = cast("dict[str, Any]", parameters) if isinstance(parameters, dict) else {}
    function["parameters"] = schema or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _dumped(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError as error:
        raise invalid("the arguments of a tool call are nested too deeply") from error


def _word(value: Any) -> str:
    return value if isinstance(value, str) else ""
