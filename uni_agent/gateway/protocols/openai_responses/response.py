"""A turn as output items, and the Response object around them."""

from __future__ import annotations

import json
from typing import Any, Literal, cast

from uni_agent.gateway.canonical import FinishedTurn, ModelRequest, TurnHead, call_id
from uni_agent.gateway.protocols.openai_responses.ids import item_id, thinking_handle
from uni_agent.gateway.protocols.openai_responses.request import Dialect
from uni_agent.gateway.protocols.openai_responses.tools import ClientTool
from uni_agent.types import ToolCall, Usage

Item = dict[str, Any]
Status = Literal["in_progress", "completed", "incomplete", "failed"]


def dialect_of(request: ModelRequest) -> Dialect:
    """What the reader kept for the answer."""
    return cast(Dialect, request.dialect)


def output_items(request: ModelRequest, turn: FinishedTurn) -> list[Item]:
    """The turn's items: thinking, then the text as one message, then the calls; without what it does not have."""
    dialect, turn_id, message = dialect_of(request), turn.head.id, turn.message
    items: list[Item] = []
    if message.reasoning:
        items.append(reasoning_item(dialect, turn_id, 0, message.reasoning))
    if message.content:
        items.append(message_item(turn_id, 0, message.content))
    for index, call in enumerate(message.tool_calls):
        items.append(call_item(dialect, turn_id, index, call, arguments_text(call)))
    if items and cut_short(turn) and not (message.tool_calls and message.tool_calls[-1].error is None):
        mark_incomplete(items[-1])
    return items


def finished_response(request: ModelRequest, turn: FinishedTurn, output: list[Item]) -> dict[str, Any]:
    """The Response object of a committed turn that said `output`."""
    cut = cut_short(turn)
    response = response_object(request, turn.head, "incomplete" if cut else "completed", output)
    response["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
    response["usage"] = usage_object(turn.usage, turn.reasoning_tokens)
    return response


def response_object(request: ModelRequest, head: TurnHead, status: Status, output: list[Item]) -> dict[str, Any]:
    """A Response object without an ending."""
    return {
        "id": f"resp_{head.id}",
        "object": "response",
        "created_at": head.created,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": head.model,
        "output": output,
        "usage": None,
        **dialect_of(request).echo,
    }


def usage_object(usage: Usage, reasoning_tokens: int) -> dict[str, Any]:
    """Tokens of the prompt and the turn."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def cut_short(turn: FinishedTurn) -> bool:
    """Whether the turn ended where it could not go on."""
    return turn.finish_reason in ("length", "context")


def mark_incomplete(item: Item) -> None:
    """Say that the turn was cut inside `item`."""
    if "status" in item:
        item["status"] = "incomplete"


def reasoning_item(dialect: Dialect, turn_id: str, number: int, text: str | None) -> Item:
    """Thinking: as a summary for a client that asks for summaries, otherwise as reasoning text.

    Never both, since clients that show both would show it twice. `text` is None for an item
    that has only begun.
    """
    summary = [summary_part(text)] if text is not None and dialect.summary else []
    item: Item = {"id": item_id("rs_", turn_id, number), "type": "reasoning", "summary": summary}
    if not dialect.summary:
        item["content"] = [] if text is None else [reasoning_part(text)]
    if dialect.handles:
        item["encrypted_content"] = thinking_handle(turn_id)
    item["status"] = "in_progress" if text is None else "completed"
    return item


def reasoning_part(text: str) -> Item:
    """A part of thinking."""
    return {"type": "reasoning_text", "text": text}


def summary_part(text: str) -> Item:
    """A part of a summary."""
    return {"type": "summary_text", "text": text}


def message_item(turn_id: str, number: int, text: str | None) -> Item:
    """A message; `text` is None for one that has only begun."""
    return {
        "id": item_id("msg_", turn_id, number),
        "type": "message",
        "status": "in_progress" if text is None else "completed",
        "role": "assistant",
        "content": [] if text is None else [text_part(text)],
    }


def text_part(text: str) -> Item:
    """A part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def call_item(dialect: Dialect, turn_id: str, index: int, call: ToolCall, arguments: str) -> Item:
    """A call in the client's own words.

    A call of a custom tool that does not give it one text as `input` goes out as a function call. The client refuses
    it, as it should: half a patch or script must not run, and what comes back is what the model wrote.
    """
    tool = dialect.tools.get(call.name, ClientTool(call.name))
    given = custom_input(dialect, call)
    names = {"name": tool.name, **({"namespace": tool.namespace} if tool.namespace else {})}
    item: Item = {
        "id": item_id("fc_" if given is None else "ctc_", turn_id, index),
        "type": "function_call" if given is None else "custom_tool_call",
        "status": "completed",
        "call_id": call_id("call_", turn_id, index),
        **names,
    }
    return {**item, "arguments": arguments} if given is None else {**item, "input": given}


def custom_input(dialect: Dialect, call: ToolCall) -> str | None:
    """The text that `call` gives to a custom tool, None when it is no whole call of one."""
    tool = dialect.tools.get(call.name)
    if tool is None or not tool.custom or call.error is not None or call.arguments.keys() != {"input"}:
        return None
    given = call.arguments["input"]
    return given if isinstance(given, str) else None


def arguments_text(call: ToolCall) -> str:
    """The JSON of a call's arguments as the model wrote it where that is JSON; a broken call's text as it is."""
    if call.error is not None:
        return call.raw_arguments or "{}"
    try:
        if json.loads(call.raw_arguments) == call.arguments:
            return call.raw_arguments
    except (ValueError, RecursionError):
        pass
    return json.dumps(call.arguments, ensure_ascii=False)
