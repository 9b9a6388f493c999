"""A client's side of the Responses API, and turns as the gateway commits them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from uni_agent.gateway.canonical import FinishedTurn, FinishReason, ModelRequest, TurnHead, Wire, call_id
from uni_agent.gateway.protocols.openai_responses import OpenAIResponsesAdapter
from uni_agent.tokens.base import ParserEvent, ToolParser
from uni_agent.tokens.graph import StrictMatcher
from uni_agent.tokens.parsers.hermes import HermesToolParser
from uni_agent.tokens.parsers.reasoning import OutputParser
from uni_agent.types import Message, Usage

FIXTURE = Path(__file__).parent / "fixtures" / "recorded.jsonl"
ADAPTER = OpenAIResponsesAdapter()
HEAD = TurnHead(id="0123456789abcdef01234567", model="policy", created=1_760_000_000, prompt_tokens=11)

PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"command": {"type": "string"}}}
BASH: dict[str, Any] = {"type": "function", "name": "bash", "parameters": PARAMETERS, "strict": False}
PATCH: dict[str, Any] = {
    "type": "custom",
    "name": "apply_patch",
    "description": "edit",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
AGENTS: dict[str, Any] = {
    "type": "namespace",
    "name": "multi_agent_v1",
    "tools": [{"type": "function", "name": "spawn_agent", "parameters": {"type": "object"}}],
}
TOOLS = [BASH, {**PATCH, "format": {"type": "text"}}, AGENTS]
USAGE = Usage(prompt_tokens=11, completion_tokens=7, cached_tokens=3)


def read_body(body: Any) -> ModelRequest:
    return ADAPTER.read(Wire("openai_responses", "/v1/responses", {}, body))


def read(*items: Any, **body: Any) -> ModelRequest:
    """A request as the adapter reads it; a user's `go` alone when no item is given."""
    return read_body({"model": "m", "input": list(items) or [user("go")], "tools": TOOLS, **body})


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def result(id_: str, output: Any = "ok", kind: str = "function_call_output") -> dict[str, Any]:
    return {"type": kind, "call_id": id_, "output": output}


@dataclass(frozen=True)
class Said:
    """What a model's text says: the turn that is committed, and the events that came before."""

    turn: FinishedTurn
    events: list[ParserEvent]


def say(
    request: ModelRequest,
    text: str,
    *,
    finish: FinishReason = "stop",
    pieces: int = 3,
    head: TurnHead = HEAD,
    parser: ToolParser | None = None,
) -> Said:
    """`text` read by the parsers that read real turns, in pieces of some characters."""
    stream = OutputParser(parser or HermesToolParser(), reasoning=True).stream(request.tools)
    events: list[ParserEvent] = []
    for i in range(0, len(text), pieces):
        events += stream.feed(text[i : i + pieces])
    last, parsed = stream.finish()
    calls = tuple(replace(call, id=call_id("call", head.id, i)) for i, call in enumerate(parsed.tool_calls))
    message = Message("assistant", parsed.content, parsed.reasoning, calls)
    return Said(FinishedTurn(head, message, finish, USAGE, reasoning_tokens=2), [*events, *last])


def streamed(request: ModelRequest, said: Said) -> list[dict[str, Any]]:
    """The data of all events of a turn that ends well."""
    encoder = ADAPTER.stream(request, said.turn.head)
    sent = [encoder.opening(), *map(encoder.event, said.events), encoder.finish(said.turn)]
    return parsed_frames(b"".join(sent))


def parsed_frames(data: bytes) -> list[dict[str, Any]]:
    """The data of each event. Every frame must name its event, and nothing may stand between frames."""
    out: list[dict[str, Any]] = []
    for block in data.decode().split("\n\n")[:-1]:
        event, line = block.split("\n")
        value = json.loads(line.removeprefix("data: "))
        assert event == f"event: {value['type']}"
        out.append(value)
    return out


def kinds(events: Sequence[dict[str, Any]]) -> list[str]:
    """The types of events in order, runs of one type as one."""
    names = [event["type"].removeprefix("response.") for event in events]
    return [name for i, name in enumerate(names) if i == 0 or names[i - 1] != name]


def same(stored: Sequence[Message], returned: Sequence[Message]) -> bool:
    """Whether two histories mean the same."""
    matcher = StrictMatcher()
    mine, other = matcher.read(stored), matcher.read(returned)
    return len(mine) == len(other) and all(map(matcher.same, mine, other))


@dataclass(frozen=True)
class Recorded:
    """One request of a real client: its body, and the assistant turn that it was served, or None."""

    body: dict[str, Any]
    served: dict[str, Any] | None


@cache
def recordings() -> dict[str, list[Recorded]]:
    """Recording → its requests in order; static texts and schemas are shortened."""
    first, *rest = map(json.loads, FIXTURE.read_text().strip().split("\n"))
    parts: list[Any] = first["parts"]

    def expanded(body: dict[str, Any]) -> dict[str, Any]:
        lists = {key: [parts[i] for i in body[key]] for key in ("tools", "input") if isinstance(body.get(key), list)}
        return {**body, **lists}

    return {line["name"]: [Recorded(expanded(one["body"]), one["served"]) for one in line["requests"]] for line in rest}
