"""Tool use over plain text, for servers that know no tools: described in the system prompt, parsed from the text."""

from __future__ import annotations

import json
from collections.abc import Sequence

from uni_agent.tokens.base import ToolSchema
from uni_agent.types import Message

_FORMAT = (
    "Call a tool by writing its name and arguments as JSON inside tags, in exactly this form:\n"
    '<tool_call>\n{"name": "tool_name", "arguments": {"argument": "value"}}\n</tool_call>'
)


def text_prompt(tools: Sequence[ToolSchema]) -> str:
    """The paragraph of the system prompt that describes `tools` and the form of a call; "" without tools."""
    if not tools:
        return ""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return f"# Tools\n\nYou may call these tools:\n<tools>\n{listed}\n</tools>\n\n{_FORMAT}"


def text_view(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[Message]:
    """`messages` without tool roles and calls: tools in the system prompt, calls and results as text."""
    described = text_prompt(tools)
    out: list[Message] = []
    for message in messages:
        if message.role == "tool":
            out.append(Message("user", f"<tool_response>\n{message.content}\n</tool_response>"))
        elif message.tool_calls:
            calls = "\n".join(
                _call_text(c.name, c.raw_arguments or json.dumps(c.arguments)) for c in message.tool_calls
            )
            out.append(Message("assistant", f"{message.content}\n{calls}".strip()))
        else:
            out.append(Message(message.role, message.content))
    if described and out and out[0].role == "system":
        out[0] = Message("system", f"{out[0].content}\n\n{described}")
    elif described:
        out.insert(0, Message("system", described))
    return _merge_users(out)


def _call_text(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'


def _merge_users(messages: list[Message]) -> list[Message]:
    """Adjacent user messages become one: several servers refuse two in a row."""
    out: list[Message] = []
    for message in messages:
        if out and message.role == "user" and out[-1].role == "user":
            out[-1] = Message("user", f"{out[-1].content}\n{message.content}")
        else:
            out.append(message)
    return out
