"""Helpers for the parser tests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from uni_agent.tokens.base import (
    ArgumentsDelta,
    CallStarted,
    ParsedOutput,
    ParserEvent,
    TextDelta,
    ToolParser,
    ToolSchema,
)
from uni_agent.tokens.parsers import HermesToolParser, XMLToolParser


def tool(name: str, required: Iterable[str] = (), additional: Any = None, **properties: Any) -> ToolSchema:
    """A schema; a property is a JSON type or a whole schema."""
    schemas = {key: {"type": value} if isinstance(value, str) else value for key, value in properties.items()}
    parameters: dict[str, Any] = {"type": "object", "properties": schemas, "required": list(required)}
    if additional is not None:
        parameters["additionalProperties"] = additional
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


BASH = tool("bash", ["command"], command="string")
WRITE = tool("write_file", ["path", "content"], path="string", content="string")
TOOLS = [BASH, WRITE]


def hermes() -> HermesToolParser:
    return HermesToolParser(new_id="call_{}".format)


def xml() -> XMLToolParser:
    return XMLToolParser(new_id="call_{}".format)


def xml_call(name: str, **values: str) -> str:
    parts = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{parts}</function>\n</tool_call>"


def hermes_call(name: str, arguments: Any) -> str:
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def streamed(
    parser: ToolParser, pieces: Iterable[str], tools: list[ToolSchema]
) -> tuple[list[ParserEvent], ParsedOutput]:
    stream = parser.stream(tools)
    events = [event for piece in pieces for event in stream.feed(piece)]
    rest, result = stream.finish()
    return events + rest, result


def cuts(text: str, *, pairs: bool = True) -> Iterator[list[str]]:
    """Every way to cut `text` once (and twice), then into single characters."""
    for i in range(len(text) + 1):
        yield [text[:i], text[i:]]
        for j in range(i, len(text) + 1) if pairs else ():
            yield [text[:i], text[i:j], text[j:]]
    yield list(text)


def check_events(events: list[ParserEvent], result: ParsedOutput) -> None:
    """The events say the same as the result."""
    texts = [event for event in events if isinstance(event, TextDelta)]
    assert "".join(event.text for event in texts if not event.reasoning) == result.content
    assert "".join(event.text for event in texts if event.reasoning) == result.reasoning
    started = [(event.index, event.name) for event in events if isinstance(event, CallStarted)]
    assert started == [(index, call.name) for index, call in enumerate(result.tool_calls)]
    for index, call in enumerate(result.tool_calls):
        joined = "".join(event.text for event in events if isinstance(event, ArgumentsDelta) and event.index == index)
        assert joined
        if call.error is None:
            assert json.loads(joined) == call.arguments
        else:
            assert call.arguments == {}


def agree(parser: ToolParser, text: str, tools: list[ToolSchema], *, pairs: bool = True) -> ParsedOutput:
    """`parse(text)`, after checking that every cut of `text` gives the same."""
    whole = parser.parse(text, tools)
    for pieces in cuts(text, pairs=pairs):
        events, result = streamed(parser, pieces, tools)
        assert result == whole, pieces
        check_events(events, result)
    return whole
