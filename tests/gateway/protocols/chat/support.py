"""A client's side of Chat Completions, and turns as the gateway commits them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from uni_agent.gateway.canonical import FinishedTurn, ModelRequest, TurnHead, Wire
from uni_agent.gateway.protocols.base import ProtocolAdapter
from uni_agent.gateway.protocols.openai_chat import OpenAIChatAdapter
from uni_agent.tokens.base import ArgumentsDelta, ParsedOutput, ParserEvent
from uni_agent.tokens.graph import StrictMatcher
from uni_agent.types import Message, ToolCall, Usage

FIXTURES = Path(__file__).parent / "fixtures"
ADAPTER: ProtocolAdapter = OpenAIChatAdapter()
HEAD = TurnHead(id="0123456789abcdef01234567", model="policy", created=1_760_000_000, prompt_tokens=11)
BASH: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "run",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}
PATCH: dict[str, Any] = {"type": "custom", "custom": {"name": "apply_patch", "description": "edit"}}
HI: dict[str, Any] = {"role": "user", "content": "hi"}


def read(*messages: Any, **body: Any) -> ModelRequest:
    """A request as the adapter reads it; `hi` alone when no message is given."""
    return read_body({"model": "m", "messages": list(messages) or [HI], **body})


def read_body(body: Any) -> ModelRequest:
    return ADAPTER.read(Wire("openai_chat", "/v1/chat/completions", {}, body))


def call(name: str, arguments: str, *, error: str | None = None) -> ToolCall:
    decoded: dict[str, Any] = {} if error else json.loads(arguments)
    return ToolCall("internal", name, decoded, arguments, error)


def turn(
    content: str = "", *calls: ToolCall, reasoning: str = "", finish: Any = None, head: TurnHead = HEAD, **fields: Any
) -> FinishedTurn:
    message = Message("assistant", content, reasoning, calls)
    usage = Usage(prompt_tokens=11, completion_tokens=5, cached_tokens=3)
    return FinishedTurn(head, message, finish or ("tool_calls" if calls else "stop"), usage, **fields)


def as_shown(events: Iterable[ParserEvent], parsed: ParsedOutput) -> Message:
    """The message that a client is shown: a broken call has what its events said as its text."""
    said: dict[int, str] = {}
    for event in events:
        if isinstance(event, ArgumentsDelta):
            said[event.index] = said.get(event.index, "") + event.text
    calls = [
        replace(call, raw_arguments=said.get(i, "")) if call.error else call for i, call in enumerate(parsed.tool_calls)
    ]
    return Message("assistant", parsed.content, parsed.reasoning, tuple(calls))


def stream(request: ModelRequest, events: Sequence[ParserEvent], turn: FinishedTurn) -> bytes:
    """A whole streamed answer, with a heartbeat behind each event."""
    encoder = ADAPTER.stream(request, turn.head)
    middle = b"".join(encoder.event(event) + encoder.heartbeat() for event in events)
    return encoder.opening() + middle + encoder.finish(turn)


def chunks(data: bytes) -> list[dict[str, Any]]:
    """The events of a stream, `[DONE]` left out. Fails on anything that is no `data:` event."""
    out: list[dict[str, Any]] = []
    for block in data.decode().removesuffix("\n\n").split("\n\n"):
        assert block.startswith("data: ") and "\n" not in block
        if block != "data: [DONE]":
            out.append(json.loads(block.removeprefix("data: ")))
    return out


def joined(data: bytes) -> dict[str, Any]:
    """The message and the end that a client makes of a stream: texts joined, calls by index."""
    message: dict[str, Any] = {"role": "", "content": ""}
    calls: dict[int, dict[str, Any]] = {}
    ends: list[str] = []
    for chunk in chunks(data):
        for choice in chunk["choices"]:
            delta = choice["delta"]
            ends += [choice["finish_reason"]] if choice["finish_reason"] else []
            for key in ("role", "content", "reasoning_content"):
                if key in delta:
                    message[key] = message.get(key, "") + delta[key]
            for piece in delta.get("tool_calls", []):
                _join(calls.setdefault(piece["index"], {}), {k: v for k, v in piece.items() if k != "index"})
            if "function_call" in delta:
                _join(message.setdefault("function_call", {}), delta["function_call"])
    if calls:
        message["tool_calls"] = [calls[i] for i in range(len(calls))]
    return {"message": message, "finish_reasons": ends}


def _join(into: dict[str, Any], piece: dict[str, Any]) -> None:
    for key, value in piece.items():
        if isinstance(value, dict):
            _join(into.setdefault(key, {}), value)  # pyright: ignore[reportUnknownArgumentType]
        else:
            into[key] = into.get(key, "") + value


def same(stored: Sequence[Message], returned: Sequence[Message]) -> bool:
    """Whether two histories mean the same to the session graph."""
    matcher = StrictMatcher()
    one, other = matcher.read(stored), matcher.read(returned)
    return len(one) == len(other) and all(map(matcher.same, one, other))
