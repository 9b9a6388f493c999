"""A turn as a message object.

The whole prompt is `input_tokens`, whatever the engine had cached: the first event of a stream states it before
anything is known of the cache, clients that compact go by the sum, and nobody is billed.
"""

from __future__ import annotations

import base64
import json
from typing import Any, cast

from uni_agent.gateway.canonical import FinishedTurn, FinishReason, TurnHead, call_id
from uni_agent.tokens.parsers import jsontext
from uni_agent.types import ToolCall

_REASONS: dict[FinishReason, str] = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "context": "max_tokens",
    "stop_sequence": "stop_sequence",
}
_CUT = ("length", "context")


def answer(turn: FinishedTurn) -> dict[str, Any]:
    """The message object. Texts of nothing but whitespace are no blocks: the API refuses them in a history."""
    said = turn.message
    content: list[dict[str, Any]] = []
    if said.reasoning.strip():
        content.append({"type": "thinking", "thinking": said.reasoning, "signature": signature(turn.head)})
    if said.content.strip():
        content.append(text_block(said.content))
    for index, call in enumerate(said.tool_calls):
        content.append(call_block(turn.head, index, call.name, call_input(call)))
    return {**message(turn.head, content), **ending(turn), "usage": usage(turn)}


def message(head: TurnHead, content: list[dict[str, Any]]) -> dict[str, Any]:
    """The message object of a turn that has not ended; its output is not counted yet."""
    return {
        "id": f"msg_{head.id}",
        "type": "message",
        "role": "assistant",
        "model": head.model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(head.prompt_tokens, 0),
    }


def ending(turn: FinishedTurn) -> dict[str, Any]:
    """`stop_reason` and `stop_sequence`.

    A turn that was cut says so even when it has calls, since the last one may be half. Otherwise calls come first: the
    client has to answer them, whatever ended the text behind them.
    """
    reason: FinishReason = turn.finish_reason
    if turn.message.tool_calls and reason not in _CUT:
        reason = "tool_calls"
    elif reason == "tool_calls" and not turn.message.tool_calls:
        reason = "stop"
    return {
        "stop_reason": _REASONS[reason],
        "stop_sequence": turn.stop_sequence if reason == "stop_sequence" else None,
    }


def usage(turn: FinishedTurn) -> dict[str, Any]:
    """The tokens of a turn; `output_tokens_details` when it thought."""
    out = _usage(turn.head.prompt_tokens, turn.usage.completion_tokens)
    if turn.reasoning_tokens:
        out["output_tokens_details"] = {"thinking_tokens": turn.reasoning_tokens}
    return out


def signature(head: TurnHead) -> str:
    """The signature of a turn's thinking: clients drop thinking that has none. It names the turn and proves nothing."""
    return base64.b64encode(f"turn {head.id}".encode()).decode()


def text_block(text: str) -> dict[str, Any]:
    """A block of text."""
    return {"type": "text", "text": text}


def call_block(head: TurnHead, index: int, name: str, values: dict[str, Any]) -> dict[str, Any]:
    """The block of call `index` of a turn."""
    return {"type": "tool_use", "id": call_id("toolu_", head.id, index), "name": name, "input": values}


def call_input(call: ToolCall) -> dict[str, Any]:
    """The arguments of a call. What is no JSON object comes as Claude Code writes it, which `call_of` reads back."""
    if not call.error:
        return call.arguments
    if not call.raw_arguments.strip():
        return {}
    decoded = _object_of(call.raw_arguments)
    if decoded is not None:  # refused for another reason, such as an unknown name: the client says so itself
        return decoded
    # Clients in JavaScript count UTF-16 units.
    length = len(call.raw_arguments.encode("utf-16-le", "surrogatepass")) // 2
    return {"__unparsedToolInput": {"raw": call.raw_arguments, "len": length}}


def _usage(prompt: int, completion: int) -> dict[str, Any]:
    return {
        "input_tokens": prompt,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": completion,
    }


def _object_of(text: str) -> dict[str, Any] | None:
    """The JSON object that `text` is, or None; None also for one that no client could take (NaN, nested too deeply)."""
    try:
        jsontext.loads(text)
        decoded: Any = json.loads(text)
    except ValueError:
        return None
    return cast("dict[str, Any]", decoded) if isinstance(decoded, dict) else None
