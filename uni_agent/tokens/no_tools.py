"""The parser of models that call no tools: all text is content."""

from __future__ import annotations

from collections.abc import Sequence

from uni_agent.tokens.base import ParsedOutput, ParserEvent, TextDelta, ToolSchema


class NoToolParser:
    """Finds no calls."""

    def parse(self, text: str, tools: Sequence[ToolSchema]) -> ParsedOutput:
        """`text` as content."""
        del tools
        return ParsedOutput(text)

    def stream(self, tools: Sequence[ToolSchema]) -> NoToolStream:
        """The same in pieces."""
        del tools
        return NoToolStream()


class NoToolStream:
    """One generation without calls."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def feed(self, text: str) -> list[ParserEvent]:
        """`text` as an event."""
        self._parts.append(text)
        return [TextDelta(text)] if text else []

    def finish(self) -> tuple[list[ParserEvent], ParsedOutput]:
        """The whole text."""
        return [], ParsedOutput("".join(self._parts))
