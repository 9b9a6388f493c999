"""Splits thinking from the rest before calls are looked for: a call that the model only considered never runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum, auto

from uni_agent.tokens.base import ParsedOutput, ParserEvent, StreamingParse, TextDelta, ToolParser, ToolSchema

_OPEN = "<think>"
_CLOSE = "</think>"


class OutputParser:
    """A tool parser for a model that thinks.

    `reasoning`: whether to look for thinking at all; without it the text goes to `tool_parser` as it is.
    `starts_in_reasoning`: the prompt ends inside `<think>`, so the text begins in thinking.

    Rules: `<think>` counts at the beginning of the text (whitespace before it is dropped) and, after that, at the start
    of a line of content, never inside a call. The first `</think>` ends it; without one everything is thinking and
    there is no call. One line break after `<think>` and all line breaks after `</think>` belong to the markup. Thinking
    that is only whitespace is none; several pieces of it are joined with a line break.
    """

    def __init__(self, tool_parser: ToolParser, *, reasoning: bool, starts_in_reasoning: bool = False) -> None:
        self._tool_parser = tool_parser
        self._reasoning = reasoning
        self._starts_in_reasoning = starts_in_reasoning

    def parse(self, text: str, tools: Sequence[ToolSchema]) -> ParsedOutput:
        """What `text` says. Never raises."""
        stream = self.stream(tools)
        stream.feed(text)
        return stream.finish()[1]

    def stream(self, tools: Sequence[ToolSchema]) -> StreamingParse:
        """The same for a text that arrives in pieces."""
        inner = self._tool_parser.stream(tools)
        if not self._reasoning:
            return inner
        return _ReasoningStream(self._tool_parser, tools, inner, thinking=self._starts_in_reasoning)


class _At(Enum):
    START = auto()  # nothing but whitespace so far
    OPENED = auto()  # right after <think>
    THINKING = auto()
    CLOSED = auto()  # right after </think>
    CONTENT = auto()


class _ReasoningStream:
    """One generation. `_held` is the unread end of the text: at most a part of a tag."""

    def __init__(
        self, parser: ToolParser, tools: Sequence[ToolSchema], inner: StreamingParse, *, thinking: bool
    ) -> None:
        self._parser = parser
        self._tools = tools
        self._inner = inner
        self._prefilled = thinking
        self._at = _At.START
        self._held = ""
        self._last = "\n"  # the character before what is read next, as content
        self._space: list[str] = []  # whitespace that is dropped unless something follows
        self._thought: list[str] = []  # the piece of thinking at hand
        self._thoughts: list[str] = []
        self._events: list[ParserEvent] = []

    @property
    def thinking(self) -> bool:
        """Whether what comes next is thinking, its closing tag included."""
        return self._at in (_At.OPENED, _At.THINKING) or (self._at is _At.START and self._prefilled)

    @property
    def at_content(self) -> bool:
        """Whether what comes next is content, not thinking and not part of a call."""
        return not self.thinking and bool(getattr(self._inner, "at_content", False))

    def feed(self, text: str) -> list[ParserEvent]:
        """Read on; returns what became certain."""
        self._read(self._held + text, final=False)
        return self._take()

    def finish(self) -> tuple[list[ParserEvent], ParsedOutput]:
        """The remaining events and the whole result."""
        self._read(self._held, final=True)
        if self._at is _At.START and not self._prefilled:
            self._content("".join(self._space))
        events, result = self._inner.finish()
        self._events += events
        marker = result.marker_seen
        if self._thought and self._at is _At.THINKING and not result.tool_calls:
            considered = self._parser.parse("".join(self._thought), self._tools)
            marker = marker or considered.marker_seen or bool(considered.tool_calls)
        return self._take(), replace(result, reasoning="".join(self._thoughts), marker_seen=marker)

    def _take(self) -> list[ParserEvent]:
        events, self._events = self._events, []
        return events

    def _read(self, data: str, *, final: bool) -> None:
        steps = {
            _At.START: self._start,
            _At.OPENED: self._opened,
            _At.THINKING: self._thinking,
            _At.CLOSED: self._closed,
            _At.CONTENT: self._in_content,
        }
        at, position = None, 0
        while position < len(data) and at is not self._at:  # a step that stays in its state has read all it can
            at = self._at
            position = steps[at](data, position, final)
        self._held = data[position:]

    def _start(self, data: str, position: int, final: bool) -> int:
        start = _skip_space(data, position)
        self._space.append(data[position:start])
        if data.startswith(_OPEN, start):
            self._at = _At.OPENED
            self._space.clear()
            return start + len(_OPEN)
        rest = data[start : start + len(_OPEN)]
        if not _OPEN.startswith(rest) or final:
            self._at = _At.THINKING if self._prefilled else _At.CONTENT
            space = "".join(self._space)
            self._space.clear()
            (self._think if self._prefilled else self._content)(space)
        return start

    def _opened(self, data: str, position: int, _: bool) -> int:
        self._at = _At.THINKING
        self._thought.clear()
        return position + (data[position] == "\n")

    def _thinking(self, data: str, position: int, final: bool) -> int:
        end = data.find(_CLOSE, position)
        if end < 0:
            end = len(data) if final else len(data) - _partial(data, position, _CLOSE)
            self._think(data[position:end])
            return end
        self._think(data[position:end])
        self._at = _At.CLOSED
        self._thought.clear()
        self._space.clear()
        return end + len(_CLOSE)

    def _closed(self, data: str, position: int, _: bool) -> int:
        while position < len(data) and data[position] == "\n":
            position += 1
        if position < len(data):
            self._at = _At.CONTENT
            self._last = "\n"
        return position

    def _in_content(self, data: str, position: int, final: bool) -> int:
        while (start := data.find(_OPEN, position)) >= 0:
            self._content(data[position:start])
            position = start + len(_OPEN)
            if self._last in "\n>" and getattr(self._inner, "at_content", False):
                self._at = _At.OPENED
                return position
            self._content(_OPEN)
        end = len(data) if final else len(data) - _partial(data, position, _OPEN)
        self._content(data[position:end])
        return end

    def _think(self, text: str) -> None:
        """More of the thinking; whitespace at its beginning waits for the first word."""
        if not text:
            return
        begun = bool(self._thought) and not self._space
        self._thought.append(text)
        if not begun:
            self._space.append(text)
            if text.isspace():
                return
            text = "".join(self._space)
            self._space.clear()
            if self._thoughts and not self._thoughts[-1].endswith("\n"):
                text = "\n" + text
        self._thoughts.append(text)
        self._events.append(TextDelta(text, reasoning=True))

    def _content(self, text: str) -> None:
        if text:
            self._last = text[-1]
            self._events += self._inner.feed(text)


def _partial(data: str, position: int, tag: str) -> int:
    """How many characters at the end of `data`, from `position` on, may be the beginning of `tag`."""
    most = min(len(tag) - 1, len(data) - position)
    return next((n for n in range(most, 0, -1) if data.endswith(tag[:n])), 0)


def _skip_space(data: str, position: int) -> int:
    while position < len(data) and data[position].isspace():
        position += 1
    return position
