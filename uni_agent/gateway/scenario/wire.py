"""Reads single things out of a request's body, whatever its form. Nothing here raises on a body."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

_LONGEST_JSON = 65_536
"""Headers that hold JSON are small; what is longer is not read."""


def entries(body: Mapping[str, Any]) -> list[Any]:
    """The list of messages or items, [] where there is none."""
    for key in ("messages", "input"):
        found = body.get(key)
        if isinstance(found, list):
            return cast("list[Any]", found)
        if isinstance(found, str):
            return [{"role": "user", "content": found}]
    return []


def last_texts(body: Mapping[str, Any]) -> Iterator[str]:
    """The texts of the last message or item, one for each part."""
    last: Any = next(reversed(entries(body)), None)
    if isinstance(last, dict):
        yield from texts(cast("dict[str, Any]", last).get("content"))


def system_texts(body: Mapping[str, Any]) -> Iterator[str]:
    """The texts of a top-level system prompt (`system`, `instructions`)."""
    yield from texts(body.get("system", body.get("instructions")))


def texts(content: Any) -> Iterator[str]:
    """The texts of a content: a string, or the parts that have a `text`."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in cast("list[Any]", content):
            text: Any = cast("dict[str, Any]", part).get("text") if isinstance(part, dict) else part
            if isinstance(text, str):
                yield text


def tool_types(body: Mapping[str, Any]) -> list[str]:
    """The `type` of each tool, "" where it has none."""
    tools = body.get("tools")
    if not isinstance(tools, list):
        return []
    kinds: list[Any] = [
        cast("dict[str, Any]", tool).get("type") if isinstance(tool, dict) else "" for tool in cast("list[Any]", tools)
    ]
    return [kind if isinstance(kind, str) else "" for kind in kinds]


def offers_tools(body: Mapping[str, Any]) -> bool:
    """Whether the request offers tools, in `tools` or as an input item of its own (Codex)."""
    if body.get("tools") or body.get("functions"):
        return True
    return any(
        isinstance(entry, dict) and cast("dict[str, Any]", entry).get("type") == "additional_tools"
        for entry in entries(body)[:16]
    )


def values(body: Any, path: str) -> Iterator[Any]:
    """What stands at a dotted `path` (`output_config.format.type`, `system.0.text`, `tools.*.type`)."""
    found: list[Any] = [body]
    for step in path.split("."):
        found = [inner for value in found for inner in _inner(value, step)]
    yield from found


def _inner(value: Any, step: str) -> list[Any]:
    if isinstance(value, Mapping):
        mapping = cast("Mapping[str, Any]", value)
        if step == "*":
            return list(mapping.values())
        return [mapping[step]] if step in mapping else []
    if isinstance(value, list):
        items = cast("list[Any]", value)
        if step == "*":
            return items
        try:
            return [items[int(step)]]
        except (ValueError, IndexError):
            return []
    return []


def json_object(text: Any) -> dict[str, Any]:
    """The JSON object that `text` is, {} when it is none."""
    if not isinstance(text, str) or len(text) > _LONGEST_JSON:
        return {}
    try:
        decoded: Any = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", decoded) if isinstance(decoded, dict) else {}


def word(value: Any) -> str:
    """`value` if it is a string, else ""."""
    return value if isinstance(value, str) else ""
