"""Content blocks: what of them the model is shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from uni_agent.gateway.errors import invalid, unsupported
from uni_agent.gateway.protocols import reading
from uni_agent.gateway.protocols.reading import Parts, kind_of, mapping, text
from uni_agent.tokens.parsers.jsontext import check_value
from uni_agent.types import ToolCall

Block = Mapping[str, Any]
Reference = Callable[[str], str]
"""Tool name → what a `tool_reference` to it says."""

_TEXT_KEYS = ("title", "source", "url", "text", "content")


def clean(value: str) -> str:
    """`value` with halves of surrogate pairs as U+FFFD: clients cut texts between them, and they have no UTF-8."""
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return value


def blocks_of(content: Any, param: str) -> list[tuple[Block, str]]:
    """The blocks of `content` and their paths; a string is one block of text, null and "" are none.

    Raises GatewayError.
    """
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [({"type": "text", "text": content}, param)]
    if not isinstance(content, list):
        raise invalid(f"{param}: expected a string or an array of blocks, got {kind_of(content)}", param)
    items = cast("list[Any]", content)
    return [(mapping(item, f"{param}[{i}]"), f"{param}[{i}]") for i, item in enumerate(items)]


def kind(block: Block, param: str) -> str:
    """The type of a block. Raises GatewayError."""
    value = block.get("type")
    if not isinstance(value, str):
        raise invalid(f"{param}.type: expected the type of a block, got {kind_of(value)}", f"{param}.type")
    return value


def parts_of(content: Any, param: str, reference: Reference) -> Parts:
    """Texts and media of `content` in their order, empty texts left out. Raises GatewayError."""
    out: Parts = []
    for block, path in blocks_of(content, param):
        out += parts_of_block(block, path, reference)
    return out


def parts_of_block(block: Block, param: str, reference: Reference) -> Parts:
    """Texts and media of one block.

    Blocks of tools that a server ran, and of types unknown here, are the text they carry. Raises GatewayError when a
    block carries none: then the model would miss something without anybody knowing.
    """
    match kind(block, param):
        case "text":
            return _some(text(block.get("text"), f"{param}.text"))
        case "image":
            return _image(mapping(block.get("source"), f"{param}.source"), f"{param}.source")
        case "document":
            return _document(block, param, reference)
        case "tool_reference":
            return [clean(reference(clean(text(block.get("tool_name"), f"{param}.tool_name"))))]
        case other:
            carried = "\n".join(_carried(block))
            if not carried:
                raise unsupported(f"{param}: a block of type {other!r:.60} cannot be shown to the model", param)
            return _some(carried)


def call_of_block(block: Block, param: str) -> ToolCall:
    """The call of a `tool_use` block, whatever its input is. Raises GatewayError for a name that is no string."""
    id_, name = (clean(text(block.get(key), f"{param}.{key}")) for key in ("id", "name"))
    given: Any = block.get("input")
    call = reading.call_of(id_, name, given)
    if clean(call.raw_arguments) != call.raw_arguments:
        call = reading.call_of(id_, name, clean(call.raw_arguments))
    try:
        check_value(call.arguments)
    except ValueError as error:
        written = clean(json.dumps(call.arguments, ensure_ascii=False))
        decoded: dict[str, Any] = json.loads(written)
        # Text that a client gives back as not parsed stays what the model wrote: it names a stored turn.
        unparsed = isinstance(given, dict) and reading.unparsed(cast("dict[str, Any]", given)) is not None
        if not unparsed and _usable(decoded):  # escapes of half a surrogate pair, which are now U+FFFD
            return replace(call, arguments=decoded, raw_arguments=written)
        return replace(call, arguments={}, error=f"arguments cannot be used: {error}")
    return call


def _usable(arguments: dict[str, Any]) -> bool:
    try:
        check_value(arguments)
    except ValueError:
        return False
    return True


def _image(source: Block, param: str) -> Parts:
    match source.get("type"):
        case "base64":
            return [reading.image_data(source.get("media_type"), source.get("data"), f"{param}.data")]
        case "url":
            return [reading.image(source.get("url"), f"{param}.url")]
        case other:
            raise unsupported(f"{param}: only images inside the request can be read, not {other!r:.60}", param)


def _document(block: Block, param: str, reference: Reference) -> Parts:
    """A document that is text; its title and context stand before it."""
    source = mapping(block.get("source"), f"{param}.source")
    head = [f"{text(block.get(key), f'{param}.{key}')}\n" for key in ("title", "context") if block.get(key)]
    match source.get("type"):
        case "text":
            body: Parts = _some(text(source.get("data"), f"{param}.source.data"))
        case "content":
            body = parts_of(source.get("content"), f"{param}.source.content", reference)
        case other:
            raise unsupported(
                f"{param}.source: only documents of text can be read, not {other!r:.60}", f"{param}.source"
            )
    return [*(clean(line) for line in head), *body]


def _carried(block: Block) -> list[str]:
    """Every text of a block, in the order of `_TEXT_KEYS`."""
    out: list[str] = []
    for key in _TEXT_KEYS:
        value: Any = block.get(key)
        if isinstance(value, str):
            out += [value] if value else []
        elif isinstance(value, dict):
            out += _carried(cast("dict[str, Any]", value))
        elif isinstance(value, list):
            for item in cast("list[Any]", value):
                out += _carried(cast("dict[str, Any]", item)) if isinstance(item, dict) else []
    return out


def _some(value: str) -> Parts:
    return [clean(value)] if value else []
