"""Requests, turns and streams for the tests of the Messages adapter."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from uni_agent.gateway.canonical import FinishedTurn, FinishReason, ModelRequest, TurnHead, Wire
from uni_agent.gateway.protocols.anthropic_messages import AnthropicMessagesAdapter
from uni_agent.tokens.base import ArgumentsDelta, ParserEvent, ToolSchema
from uni_agent.tokens.graph import Reading, StrictMatcher
from uni_agent.tokens.parsers.hermes import HermesToolParser
from uni_agent.tokens.parsers.reasoning import OutputParser
from uni_agent.types import Message, ToolCall, Usage

FIXTURES = Path(__file__).parent / "fixtures"
ADAPTER = AnthropicMessagesAdapter()
HEAD = TurnHead("0123456789abcdef01234567", "my-model", 1_700_000_000, 140)
USER: dict[str, Any] = {"role": "user", "content": "go"}

Frame = tuple[str, dict[str, Any]]


def wire(body: Mapping[str, Any], path: str = "/v1/messages") -> Wire:
    """A request as it comes."""
    return Wire("anthropic_messages", path, {"anthropic-version": "2023-06-01"}, body)


def body(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A small request."""
    return {"model": "m", "max_tokens": 64, "messages": list(messages) or [USER], **fields}


def read(*messages: dict[str, Any], **fields: Any) -> ModelRequest:
    """`body`, read."""
    return ADAPTER.read(wire(body(*messages, **fields)))


def said_by(text: str, tools: Sequence[ToolSchema] = (), *, step: int = 7) -> tuple[list[ParserEvent], Message]:
    """The events of a generation that arrives `step` characters at a time, and the message they tell."""
    stream = OutputParser(HermesToolParser(), reasoning=True).stream(tools)
    events = [event for i in range(0, len(text), step) for event in stream.feed(text[i : i + step])]
    last, parsed = stream.finish()
    events += last
    return events, Message("assistant", parsed.content, parsed.reasoning, _shown(parsed.tool_calls, events))


def finished(
    message: Message, reason: FinishReason = "stop", *, stop: str = "", cached: int = 0, thought: int = 0
) -> FinishedTurn:
    """A committed turn that says `message`."""
    return FinishedTurn(HEAD, message, reason, Usage(HEAD.prompt_tokens, 20, cached), thought, stop)


def streamed(events: Sequence[ParserEvent], turn: FinishedTurn) -> bytes:
    """The whole stream of a turn."""
    encoder = ADAPTER.stream(read(), turn.head)
    return b"".join([encoder.opening(), *(encoder.event(event) for event in events), encoder.finish(turn)])


def frames(stream: bytes) -> list[Frame]:
    """Event name and data of each frame; every frame has exactly these two lines."""
    out: list[Frame] = []
    assert stream.endswith(b"\n\n")
    for part in stream.decode().removesuffix("\n\n").split("\n\n"):
        event, data = part.split("\n")
        assert event.startswith("event: ") and data.startswith("data: ")
        decoded = cast("dict[str, Any]", json.loads(data.removeprefix("data: ")))
        assert decoded["type"] == event.removeprefix("event: ")
        out.append((decoded["type"], decoded))
    return out


def assembled(stream: bytes) -> dict[str, Any]:
    """The message that a strict client reads out of a stream; a call's input is its JSON text."""
    message: dict[str, Any] = {}
    content: list[dict[str, Any]] = []
    live: int | None = None
    for name, data in frames(stream):
        match name:
            case "message_start":
                message = dict(data["message"])
            case "content_block_start":
                assert live is None and data["index"] == len(content)
                live = data["index"]
                content.append(dict(data["content_block"]))
            case "content_block_delta":
                assert data["index"] == live
                _extend(content[-1], data["delta"])
            case "content_block_stop":
                assert data["index"] == live
                live = None
            case "message_delta":
                assert live is None
                message.update(data["delta"])
                message["usage"] = {**message["usage"], **data["usage"]}
            case "message_stop":
                assert live is None
                message["complete"] = True
            case _:
                assert name == "ping"
    return {**message, "content": content}


def echoed(message: Mapping[str, Any], *, thinking: bool = True) -> dict[str, Any]:
    """An assembled or whole answer as Claude Code sends it back: text it cannot parse stands under its own key."""
    content: list[dict[str, Any]] = []
    for block in message["content"]:
        if block["type"] == "thinking" and not thinking:
            continue
        content.append({**block, "input": _parsed(block["input"])} if block["type"] == "tool_use" else block)
    return {"role": "assistant", "content": content}


def readings(messages: Sequence[Message]) -> list[Reading]:
    """What messages mean."""
    return StrictMatcher().read(messages)


def same(stored: Message, returned: Message) -> bool:
    """Whether `returned` stands for `stored`."""
    (one,), (other,) = readings([stored]), readings([returned])
    return StrictMatcher().same(one, other)


def recorded(client: str) -> list[dict[str, Any]]:
    """The requests of a client: {scenario, conversation, path, body}. A tool list that came before is stored once."""
    out: list[dict[str, Any]] = []
    lists: list[Any] = []
    for line in (FIXTURES / f"{client}.jsonl").read_text(encoding="utf-8").removesuffix("\n").split("\n"):
        row = json.loads(line)
        tools = row["body"].get("tools")
        if isinstance(tools, int):
            row["body"]["tools"] = lists[tools]
        elif tools is not None:
            lists.append(tools)
        out.append(row)
    return out


def _shown(calls: Sequence[ToolCall], events: Sequence[ParserEvent]) -> tuple[ToolCall, ...]:
    """`calls` as a client was shown them: the text of a broken one is what was streamed of it."""
    out: list[ToolCall] = []
    for index, call in enumerate(calls):
        text = "".join(e.text for e in events if isinstance(e, ArgumentsDelta) and e.index == index)
        out.append(ToolCall(call.id, call.name, call.arguments, text, call.error))
    return tuple(out)


def _extend(block: dict[str, Any], delta: dict[str, Any]) -> None:
    match block["type"], delta["type"]:
        case "text", "text_delta":
            block["text"] += delta["text"]
        case "thinking", "thinking_delta":
            assert not block["signature"]
            block["thinking"] += delta["thinking"]
        case "thinking", "signature_delta":
            block["signature"] = delta["signature"]
        case "tool_use", "input_json_delta":
            block["input"] = (block["input"] or "") + delta["partial_json"]
        case other:
            raise AssertionError(f"a delta that does not fit its block: {other}")


def _parsed(written: Any) -> Any:
    if not isinstance(written, str):
        return written
    decoded: Any = {}
    try:
        decoded = json.loads(written or "{}")
    except ValueError:
        decoded = None
    if isinstance(decoded, dict):
        return cast("dict[str, Any]", decoded)
    return {"__unparsedToolInput": {"raw": written, "len": len(written)}}
