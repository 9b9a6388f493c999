"""The conversation of a Chat request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from typing import Any

from uni_agent.gateway.errors import invalid, unsupported
from uni_agent.gateway.protocols.reading import (
    Parts,
    call_of,
    image,
    kind_of,
    listing,
    mapping,
    merged,
    message_of,
    plain,
    text,
)
from uni_agent.types import Message, Role, ToolCall

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_REFUSED = {
    "file": "files",
    "input_file": "files",
    "input_audio": "audio",
    "audio": "audio",
    "audio_url": "audio",
    "video_url": "video",
}


def read_messages(value: Any) -> tuple[list[Message], tuple[str, ...]]:
    """The messages, and the roles that nobody knows (they are read as the user's). Raises GatewayError."""
    if value is None:
        raise invalid("messages: a request needs them", "messages")
    raw = listing(value, "messages")
    if not raw:
        raise invalid("messages: there is no message", "messages")
    unknown: dict[str, None] = {}
    messages = [_message(item, f"messages[{i}]", unknown) for i, item in enumerate(raw)]
    return _adjacent(messages), tuple(f"messages: role {role!r}" for role in unknown)


def _adjacent(messages: Iterable[Message]) -> list[Message]:
    """`messages` with neighbouring assistant messages as one where they are pieces of one turn.

    Text behind text or calls begins another turn: it was sampled behind a turn that nobody answered. An empty message
    that stands alone is a turn like others.
    """
    out: list[Message] = []
    for assistant, group in groupby(messages, key=lambda message: message.role == "assistant"):
        run = list(group)
        if not assistant or len(run) == 1:
            out += run
            continue
        turns: list[list[Message]] = [[]]
        for message in run:
            if message.content.strip() and any(piece.content.strip() or piece.tool_calls for piece in turns[-1]):
                turns.append([])
            turns[-1].append(message)
        out += [message for turn in turns for message in merged(turn)] or run[:1]
    return out


def _message(raw: Any, param: str, unknown: dict[str, None]) -> Message:
    fields = mapping(raw, param)
    named = fields.get("role")
    if not isinstance(named, str) or not named:
        raise invalid(f"{param}.role: expected a role, got {kind_of(named)}", f"{param}.role")
    role = _ROLES.get(named)
    if role is None:
        unknown[named[:40]] = None
        role = "user"
    name = fields.get("name")
    message = _said(fields, role, param)
    return replace(message, name=name) if isinstance(name, str) else message


def _said(fields: dict[str, Any], role: Role, param: str) -> Message:
    parts, thoughts = _parts(fields.get("content"), f"{param}.content", role)
    if role == "tool":
        return message_of(role, parts, tool_call_id=text(fields.get("tool_call_id"), f"{param}.tool_call_id"))
    if role != "assistant":
        return message_of(role, parts)
    # Some clients send both names of thinking: they say the same.
    named = [text(fields.get(key), f"{param}.{key}") for key in ("reasoning_content", "reasoning")]
    reasoning = named[0] or named[1] or "\n".join(filter(None, thoughts))
    if not any(parts):
        parts = [text(fields.get("refusal"), f"{param}.refusal")]
    return message_of(role, parts, reasoning=reasoning, tool_calls=_calls(fields, param))


def _parts(content: Any, param: str, role: Role) -> tuple[Parts, list[str]]:
    """The texts and images of a content, and the thinking that stands in it."""
    if content is None or isinstance(content, str):
        return [content or ""], []
    if not isinstance(content, list):
        raise invalid(f"{param}: expected a string or an array of parts, got {kind_of(content)}", param)
    parts: Parts = []
    thoughts: list[str] = []
    for i, raw in enumerate(listing(content, param)):
        where = f"{param}[{i}]"
        part = {"type": "text", "text": raw} if isinstance(raw, str) else mapping(raw, where)
        if role == "assistant" and part.get("type") in ("thinking", "reasoning", "redacted_thinking"):
            thoughts.append(text(part.get("thinking") or part.get("text"), where))
        else:
            parts.append(_part(part, where, role))
    return parts, thoughts


def _part(part: dict[str, Any], param: str, role: Role) -> Any:
    kind = part.get("type")
    if not isinstance(kind, str):
        raise invalid(f"{param}.type: expected a string, got {kind_of(kind)}", f"{param}.type")
    if key := _TEXTS.get(kind):
        return text(part.get(key), f"{param}.{key}")
    if kind in ("image_url", "input_image"):
        if role not in ("user", "tool"):
            raise unsupported(f"{param}: an image cannot stand in a message of role {role!r}", param)
        value = part.get("image_url")
        return image(value.get("url") if isinstance(value, dict) else value, f"{param}.image_url")  # pyright: ignore
    if what := _REFUSED.get(kind):
        raise unsupported(f"{param}: {what} cannot be read by this model; send text or images", param)
    raise unsupported(f"{param}: parts of type {kind[:40]!r} cannot be read; send text or images", param)


def _calls(fields: dict[str, Any], param: str) -> tuple[ToolCall, ...]:
    calls = [
        _call(mapping(raw, f"{param}.tool_calls[{i}]"), f"{param}.tool_calls[{i}]")
        for i, raw in enumerate(listing(fields.get("tool_calls"), f"{param}.tool_calls"))
    ]
    if not calls and (older := fields.get("function_call")) is not None:
        calls = [_call({"function": older}, f"{param}.function_call")]
    return tuple(calls)


def _call(raw: dict[str, Any], param: str) -> ToolCall:
    if raw.get("type") == "custom":
        custom = mapping(raw.get("custom"), f"{param}.custom")
        return call_of(raw.get("id"), custom.get("name"), {"input": text(custom.get("input"), f"{param}.custom.input")})
    function = mapping(raw.get("function"), f"{param}.function")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        plain(arguments, f"{param}.function.arguments")
    return call_of(raw.get("id"), function.get("name"), arguments)
