"""Messages in the form and order that chat templates expect."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from uni_agent.tokens.parsers.jsontext import check_depth
from uni_agent.types import Media, Message, ToolCall


def template_message(message: Message, *, split_thinking: bool) -> dict[str, Any]:
    """The dict that a template reads: arguments as an object, thinking apart, empty fields left out.

    The content of a message with images is a list of parts, runs of text as one each.

    `split_thinking`: thinking that a client left inside the content is moved to where the template looks for it.
    """
    reasoning, content = message.reasoning, message.content
    if split_thinking and message.role == "assistant" and not reasoning and not message.parts:
        reasoning, content = thinking_apart(content)
    out: dict[str, Any] = {"role": message.role, "content": _part_dicts(message) if message.parts else content}
    if reasoning:
        out["reasoning_content"] = out["thinking"] = reasoning  # the two names that templates use
    if message.tool_calls:
        out["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments_of(call)}}
            for call in message.tool_calls
        ]
    if message.role == "tool":
        out["tool_call_id"] = message.tool_call_id
    if message.name:
        out["name"] = message.name
    return out


def joined_parts(parts: Sequence[str | Media]) -> list[str | Media]:
    """`parts` with texts that stand next to each other as one, and without empty ones."""
    out: list[str | Media] = []
    for part in parts:
        if isinstance(part, str) and out and isinstance(last := out[-1], str):
            out[-1] = last + part
        elif part != "":
            out.append(part)
    return out


def _part_dicts(message: Message) -> list[dict[str, str]]:
    return [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": part.kind}
        for part in joined_parts(message.parts)
    ]


def arguments_of(call: ToolCall) -> dict[str, Any]:
    """The arguments of a call, of a refused one too when the model wrote an object; otherwise {}."""
    if call.arguments or not call.error:
        return call.arguments
    try:
        decoded: Any = json.loads(call.raw_arguments)
        check_depth(decoded)  # a value that no template can walk stands for itself, as text
    except (ValueError, RecursionError):
        return {}
    return cast(dict[str, Any], decoded) if isinstance(decoded, dict) else {}


def thinking_apart(content: str) -> tuple[str, str]:
    """The thinking at the start of `content` and the rest; ("", content) when it does not start so."""
    if content.lstrip().startswith("<think>") and content.count("</think>") == 1:
        head, _, rest = content.partition("</think>")
        return head.lstrip().removeprefix("<think>").strip("\n"), rest.lstrip("\n")
    return "", content


def in_call_order(messages: Sequence[Message], calls: Sequence[ToolCall] = ()) -> list[Message]:
    """`messages` with each run of tool results in the order of the calls they answer.

    `calls` are those of the assistant turn in front of `messages`. Results of unknown calls come last in their run.
    """
    out: list[Message] = []
    run: list[Message] = []

    def flush() -> None:
        order = {call.id: i for i, call in reversed(list(enumerate(calls)))}
        out.extend(sorted(run, key=lambda message: order.get(message.tool_call_id, len(order))))
        run.clear()

    for message in messages:
        if message.role == "tool":
            run.append(message)
            continue
        flush()
        if message.role == "assistant":
            calls = message.tool_calls
        out.append(message)
    flush()
    return out


def reminder(text: str) -> str:
    """A system message's text for templates that take no system message at its place."""
    return f"<system-reminder>\n{text}\n</system-reminder>"


def with_reminders(messages: Sequence[Message], *, keep_first: bool) -> list[Message]:
    """`messages` with system messages as user-side reminders, each at its place.

    A reminder joins the user message next to it, since some templates refuse two user turns in a row. `keep_first`
    leaves a system message that opens the conversation.
    """
    out: list[Message] = []
    pending: list[str] = []
    for i, message in enumerate(messages):
        if message.role == "system" and not (keep_first and i == 0):
            pending.append(reminder(message.content))
        elif pending and message.role == "user":
            out.append(_with_text(message, before="\n\n".join([*pending, ""])))
            pending = []
        else:
            _settle(out, pending)
            out.append(message)
    _settle(out, pending)
    return out


def _settle(out: list[Message], pending: list[str]) -> None:
    if pending and out and out[-1].role == "user":
        out[-1] = _with_text(out[-1], after="\n\n".join(["", *pending]))
    elif pending:
        out.append(Message(role="user", content="\n\n".join(pending)))
    pending.clear()


def _with_text(message: Message, *, before: str = "", after: str = "") -> Message:
    parts = (before, *message.parts, after) if message.parts else ()
    return replace(message, content=before + message.content + after, parts=parts)
