"""A finished turn as a chat completion."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from uni_agent.gateway.canonical import FinishedTurn, TurnHead, call_id
from uni_agent.gateway.protocols.openai_chat.dialect import ChatDialect
from uni_agent.tokens.parsers import jsontext
from uni_agent.types import ToolCall

_LEAST_LOGPROB = -9999.0
"""What OpenAI writes for a probability that is too small; JSON has no infinity."""

_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f]")


def completion(dialect: ChatDialect, turns: Sequence[FinishedTurn]) -> dict[str, Any]:
    """The `chat.completion` object of `turns`, which answer one prompt."""
    head = turns[0].head
    out: dict[str, Any] = {
        "id": completion_id(head),
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "choices": [_choice(dialect, turn, i) for i, turn in enumerate(turns)],
        "usage": usage(turns),
    }
    if dialect.token_ids:
        out["prompt_token_ids"] = turns[0].prompt_ids
    return out


def completion_id(head: TurnHead) -> str:
    """The id of the answer."""
    return f"chatcmpl-{head.id}"


def usage(turns: Sequence[FinishedTurn]) -> dict[str, Any]:
    """The tokens of `turns`; their prompt is counted once."""
    first = turns[0].usage
    sampled = sum(turn.usage.completion_tokens for turn in turns)
    return {
        "prompt_tokens": first.prompt_tokens,
        "completion_tokens": sampled,
        "total_tokens": first.prompt_tokens + sampled,
        "prompt_tokens_details": {"cached_tokens": first.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": sum(turn.reasoning_tokens for turn in turns)},
    }


def ending(dialect: ChatDialect, turn: FinishedTurn) -> str:
    """`finish_reason`: with calls it is theirs, unless the last one was cut off, which no client should run."""
    calls = turn.message.tool_calls
    cut = turn.finish_reason in ("length", "context")
    if calls and not (cut and calls[-1].error):
        return "function_call" if dialect.legacy else "tool_calls"
    return "length" if cut else "stop"


def is_custom(dialect: ChatDialect, name: str) -> bool:
    """Whether a call of `name` is answered in the form of custom tools."""
    return name in dialect.custom and not dialect.legacy


def wire_call(dialect: ChatDialect, turn_id: str, index: int, call: ToolCall) -> dict[str, Any]:
    """Call `index` of a turn."""
    id_ = call_id("call", turn_id, index)
    if is_custom(dialect, call.name):
        return {"id": id_, "type": "custom", "custom": {"name": call.name, "input": custom_input(call)}}
    return {"id": id_, "type": "function", "function": {"name": call.name, "arguments": arguments_text(call)}}


def arguments_text(call: ToolCall) -> str:
    """The arguments as the joined events of the stream write them; the raw text of a broken call."""
    raw = call.raw_arguments
    if call.error:
        return raw or "{}"
    if raw.startswith("{"):
        try:
            if jsontext.loads(raw) == call.arguments:
                return _without_controls(raw)
        except ValueError:
            pass  # the raw text of formats that are no JSON
    return json.dumps(call.arguments, ensure_ascii=False)


def custom_input(call: ToolCall) -> str:
    """The free text of a call of a custom tool; what the model wrote instead when it is none."""
    value = call.arguments.get("input")
    return value if isinstance(value, str) and len(call.arguments) == 1 else arguments_text(call)


def logprobs(turn: FinishedTurn) -> dict[str, Any] | None:
    """The sampled tokens with their logprobs; None when the engine gives none."""
    if turn.logprobs is None:
        return None
    texts = [*turn.token_texts, *[""] * (len(turn.logprobs) - len(turn.token_texts))]
    return {"content": [_token(text, value) for text, value in zip(texts, turn.logprobs, strict=False)]}


def _choice(dialect: ChatDialect, turn: FinishedTurn, index: int) -> dict[str, Any]:
    out: dict[str, Any] = {
        "index": index,
        "message": _message(dialect, turn),
        "logprobs": logprobs(turn) if dialect.logprobs else None,
        "finish_reason": ending(dialect, turn),
    }
    if dialect.token_ids:
        out["token_ids"] = turn.token_ids
    return out


def _message(dialect: ChatDialect, turn: FinishedTurn) -> dict[str, Any]:
    said = turn.message
    calls = [wire_call(dialect, turn.head.id, i, call) for i, call in enumerate(said.tool_calls)]
    out: dict[str, Any] = {"role": "assistant", "content": said.content or (None if calls else ""), "refusal": None}
    if said.reasoning:
        out["reasoning_content"] = out["reasoning"] = said.reasoning
    if calls and dialect.legacy:
        out["function_call"] = calls[0]["function"]
    elif calls:
        out["tool_calls"] = calls
    return out


def _token(text: str, logprob: float) -> dict[str, Any]:
    # A token that is part of a character has no text, so its bytes are not known either.
    known = "\ufffd" not in text and not any("\ud800" <= char <= "\udfff" for char in text)
    value = _LEAST_LOGPROB if math.isnan(logprob) else max(logprob, _LEAST_LOGPROB)
    return {"token": text, "logprob": value, "bytes": list(text.encode()) if known else None, "top_logprobs": []}


def _without_controls(raw: str) -> str:
    """JSON text whose strings hold raw control characters, as strict JSON."""
    if not _CONTROL.search(raw):
        return raw
    return _STRING.sub(lambda string: _CONTROL.sub(lambda char: f"\\u{ord(char[0]):04x}", string[0]), raw)
