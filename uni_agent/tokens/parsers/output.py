"""What the parsers share: collecting events, content and calls."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from uni_agent.tokens.base import (
    ArgumentsDelta,
    CallStarted,
    ParsedOutput,
    ParserEvent,
    StreamingParse,
    TextDelta,
    ToolSchema,
)
from uni_agent.types import ToolCall

IdFactory = Callable[[int], str]
"""Call index → id, unique over a conversation."""


def random_id(index: int) -> str:
    """`call_<index>_<8 hex digits>`."""
    return f"call_{index}_{secrets.token_hex(4)}"


class StreamedParser(ABC):
    """A tool parser that is written once, for text in pieces. `new_id` gives the ids of the calls."""

    def __init__(self, new_id: IdFactory = random_id) -> None:
        self._new_id = new_id

    def parse(self, text: str, tools: Sequence[ToolSchema]) -> ParsedOutput:
        """What `text` says; broken calls have `error` set. Never raises."""
        stream = self.stream(tools)
        stream.feed(text)
        return stream.finish()[1]

    @abstractmethod
    def stream(self, tools: Sequence[ToolSchema]) -> StreamingParse:
        """The same for a text that arrives in pieces."""


class Output:
    """The result of one generation as it grows.

    Content is kept as written, except that whitespace next to a call is dropped and texts separated by calls are
    joined with one newline. The joined `TextDelta`s are the content: trailing whitespace waits until something follows.
    """

    def __init__(self, tools: Sequence[ToolSchema], new_id: IdFactory) -> None:
        self.tools = tools
        self.markup = False
        self._new_id = new_id
        self._events: list[ParserEvent] = []
        self._content: list[str] = []
        self._space: list[str] = []
        self._after_call = False
        self._calls: list[ToolCall] = []

    def text(self, text: str) -> None:
        """Add to the content."""
        if self._after_call:
            text = text.lstrip()
            if text and self._content:
                self._space = ["\n"]
            self._after_call = not text
        body = text.rstrip()
        if body:
            piece = "".join(self._space) + body
            self._space = []
            self._content.append(piece)
            self._events.append(TextDelta(piece))
        if len(text) > len(body):
            self._space.append(text[len(body) :])

    def start(self, name: str) -> None:
        """A call begins. Every call is started once and ended once, broken or not."""
        self._space.clear()
        self._after_call = True
        self._events.append(CallStarted(len(self._calls), name))

    def arguments(self, text: str) -> None:
        """More of the JSON of the current call's arguments."""
        if text:
            self._events.append(ArgumentsDelta(len(self._calls), text))

    def end(self, call: ToolCall) -> None:
        """The current call as it turned out; its id is given here."""
        index = len(self._calls)
        self._calls.append(
            ToolCall(
                id=self._new_id(index),
                name=call.name,
                arguments={} if call.error else call.arguments,
                raw_arguments=call.raw_arguments,
                error=call.error,
                note=call.note,
            )
        )

    def broken(self, raw: str, error: str) -> None:
        """A call without a name that nothing was announced of."""
        self.start("")
        self.arguments(raw or "{}")
        self.end(ToolCall("", "", raw_arguments=raw, error=error))

    def take_events(self) -> list[ParserEvent]:
        """Events since the last call."""
        events, self._events = self._events, []
        return events

    def result(self) -> ParsedOutput:
        """The whole. Trailing whitespace that follows text, not a call, is part of the content."""
        if self._space and not self._after_call:
            piece = "".join(self._space)
            self._space.clear()
            self._content.append(piece)
            self._events.append(TextDelta(piece))
        usable = any(call.error is None for call in self._calls)
        return ParsedOutput(
            content="".join(self._content),
            tool_calls=tuple(self._calls),
            marker_seen=self.markup and not usable,
        )
