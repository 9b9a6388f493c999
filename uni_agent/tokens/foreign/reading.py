"""What the `renderers` package reads out of a generation, as this package says it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from uni_agent.tokens.base import (
    ArgumentsDelta,
    CallStarted,
    ParsedOutput,
    ParserEvent,
    TextDelta,
    ToolSchema,
)
from uni_agent.tokens.parsers import jsontext
from uni_agent.tokens.parsers.output import random_id
from uni_agent.tokens.parsers.schema import unknown_tool
from uni_agent.types import ToolCall

_PROBLEMS = {
    "invalid_json": "The tool call is not valid JSON",
    "unclosed_block": "The tool call is not complete",
    "missing_name": "The tool call has no name",
    "malformed_structure": "The tool call is not in the model's own format",
}


def output_of(response: Any, tools: Sequence[ToolSchema]) -> ParsedOutput:
    """A `ParsedResponse` as a ParsedOutput. Every call, broken or not, is in it, in order."""
    calls = tuple(_call(i, parsed, tools) for i, parsed in enumerate(response.tool_calls))
    usable = any(call.error is None for call in calls)
    return ParsedOutput(
        content=response.content or "",
        reasoning=response.reasoning_content or "",
        tool_calls=calls,
        marker_seen=bool(calls) and not usable,
    )


def _call(index: int, parsed: Any, tools: Sequence[ToolSchema]) -> ToolCall:
    """`raw_arguments` is the JSON of a usable call's arguments, and the whole block of a broken one."""
    name, raw = parsed.name if isinstance(parsed.name, str) else "", str(parsed.raw)
    arguments, error = _arguments(parsed)
    unknown = unknown_tool(name, tools) if name else _PROBLEMS["missing_name"]
    error = _PROBLEMS.get(str(parsed.status)) or unknown or error
    if error:
        return ToolCall(random_id(index), name, raw_arguments=raw, error=error)
    return ToolCall(random_id(index), name, arguments, jsontext.dumps(arguments))


def _arguments(parsed: Any) -> tuple[dict[str, Any], str | None]:
    value = parsed.arguments
    try:
        if isinstance(value, str):
            value = jsontext.loads(value)
        # The package's own reader takes what strict consumers could not take back: NaN, deep nesting, surrogates.
        value = jsontext.loads(jsontext.dumps(value))
    except (ValueError, TypeError, RecursionError) as error:
        return {}, f"The arguments are not valid JSON: {error}"
    if isinstance(value, dict):
        return cast("dict[str, Any]", value), None
    return {}, "The arguments must be a JSON object ({} for none)"


class ParseAtEnd:
    """A generation that is read when it is whole: nothing is shown before."""

    def __init__(self, read: Callable[[str], ParsedOutput]) -> None:
        self._read = read
        self._parts: list[str] = []

    def feed(self, text: str) -> list[ParserEvent]:
        """Nothing yet."""
        self._parts.append(text)
        return []

    def finish(self) -> tuple[list[ParserEvent], ParsedOutput]:
        """All events at once, and the whole result."""
        result = self._read("".join(self._parts))
        events: list[ParserEvent] = []
        if result.reasoning:
            events.append(TextDelta(result.reasoning, reasoning=True))
        if result.content:
            events.append(TextDelta(result.content))
        for i, call in enumerate(result.tool_calls):
            events += [CallStarted(i, call.name), ArgumentsDelta(i, call.raw_arguments or "{}")]
        return events, result
