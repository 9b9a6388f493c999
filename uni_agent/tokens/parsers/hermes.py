r"""The Hermes format: JSON inside tags (Qwen2.5, Qwen3, Hermes).

    <tool_call>
    {"name": "bash", "arguments": {"command": "ls"}}
    </tool_call>

Rules, where the format itself is silent:

- Inside a JSON string a tag is text. A raw line break followed by a tag is not: no valid JSON string holds one, so the
  string was never closed, and the calls after it are still found.
- One object per pair of tags. When the closing tag is missing a complete object still counts; a cut one is an error.
- `arguments` may be an object encoded as a string. Missing `arguments` are `{}`; null, lists and scalars are errors.
- A tag in quotes or backticks is prose. Any other `<tool_call>` is an attempt: it gives a call or exactly one error.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, cast

from uni_agent.tokens.base import ParsedOutput, ParserEvent, ToolSchema
from uni_agent.tokens.parsers import jsontext
from uni_agent.tokens.parsers.json_scanner import CallScanner
from uni_agent.tokens.parsers.lexer import Item, Lexer, Tag, Token
from uni_agent.tokens.parsers.output import Output, StreamedParser
from uni_agent.tokens.parsers.schema import unknown_tool
from uni_agent.types import ToolCall

EXPECTED = 'Write a call as\n<tool_call>\n{"name": "tool", "arguments": {"key": "value"}}\n</tool_call>'


class HermesToolParser(StreamedParser):
    """Reads the Hermes format."""

    def stream(self, tools: Sequence[ToolSchema]) -> HermesStream:
        """The same for a text that arrives in pieces."""
        return HermesStream(Output(tools, self._new_id))


class _At(Enum):
    CONTENT = auto()
    HEAD = auto()  # after the opening tag
    OBJECT = auto()
    TAIL = auto()  # after the object, before the closing tag
    BROKEN = auto()  # what the tag opened is no object


class HermesStream:
    """One generation in the Hermes format."""

    def __init__(self, output: Output) -> None:
        self._out = output
        self._lexer = Lexer(Tag.CALL, Tag.END_CALL)
        self._at = _At.CONTENT
        self._scanner = CallScanner()
        self._body: list[str] = []
        self._tail: list[str] = []
        self._started = False

    @property
    def at_content(self) -> bool:
        """Whether what comes next is content, not part of a call."""
        return self._at is _At.CONTENT

    def feed(self, text: str) -> list[ParserEvent]:
        """Read on; returns what became certain."""
        for item in self._lexer.feed(text):
            self._read(item)
        return self._out.take_events()

    def finish(self) -> tuple[list[ParserEvent], ParsedOutput]:
        """The remaining events and the whole result."""
        for item in self._lexer.finish():
            self._read(item)
        if self._at is not _At.CONTENT:
            self._end_call(closed=False)
        result = self._out.result()
        return self._out.take_events(), result

    def _read(self, item: Item) -> None:
        if isinstance(item, str):
            self._text(item)
        elif self._at is _At.CONTENT:
            self._out.markup = True
            if item.tag is Tag.CALL:
                self._open()
            else:
                self._out.text(item.raw)
        elif self._at is _At.OBJECT and self._scanner.in_string and not item.line_start:
            self._text(item.raw)
        else:
            self._tag(item)

    def _tag(self, token: Token) -> None:
        """A tag that ends the call at hand; an opening one begins the next."""
        if token.tag is Tag.END_CALL:
            self._end_call(closed=True)
            return
        if self._at is not _At.HEAD:
            self._end_call(closed=False)
        self._open()

    def _open(self) -> None:
        self._at = _At.HEAD
        self._scanner = CallScanner()
        self._body, self._tail = [], []
        self._started = False

    def _text(self, text: str) -> None:
        if self._at is _At.CONTENT:
            self._out.text(text)
        elif self._at is _At.HEAD:
            self._head(text)
        elif self._at is _At.OBJECT:
            self._object(text)
        else:
            (self._tail if self._at is _At.TAIL else self._body).append(text)

    def _head(self, text: str) -> None:
        if not self._body and text[0] in "`'\"":
            self._at = _At.CONTENT
            self._out.text(Tag.CALL.value + text)
            return
        body = text.lstrip()
        if len(text) > len(body):
            self._body.append(text[: len(text) - len(body)])
        if body:
            self._at = _At.OBJECT if body[0] == "{" else _At.BROKEN
            self._text(body)

    def _object(self, text: str) -> None:
        used = self._scanner.feed(text)
        self._body.append(text[:used])
        if piece := self._scanner.take_object():
            self._start(self._scanner.name or "")
            self._out.arguments(piece)
        if self._scanner.done:
            self._at = _At.TAIL
            if used < len(text):
                self._tail.append(text[used:])

    def _start(self, name: str) -> None:
        if not self._started:
            self._started = True
            self._out.start(name)

    def _end_call(self, *, closed: bool) -> None:
        at, self._at = self._at, _At.CONTENT
        tail = "".join(self._tail)
        junk = closed and bool(tail.strip())
        body = ("".join(self._body) + (tail if closed else "")).strip()
        if at in (_At.HEAD, _At.BROKEN):
            self._out.broken(body, _no_object(body, closed=closed))
        else:
            self._finish_object(body, cut=at is _At.OBJECT and not closed, junk=junk)
        if not closed:
            self._out.text(tail)

    def _finish_object(self, body: str, *, cut: bool, junk: bool) -> None:
        scanner = self._scanner
        arguments: dict[str, Any] = {}
        error: str | None
        if cut:
            error = f"The tool call is not complete: its JSON object does not end. {EXPECTED}"
        elif junk:
            error = f"There is text after the JSON object of the tool call. Write one object per tool call. {EXPECTED}"
        else:
            arguments, error = self._decode(body)
        raw = scanner.raw_arguments
        if error and (cut or junk or not raw):
            raw = body
        started = self._started
        self._start(scanner.name or "")
        if not started:
            self._out.arguments(jsontext.dumps(arguments) if error is None else raw)
        elif error is None:
            self._out.arguments(scanner.take_object())
        self._out.end(ToolCall("", scanner.name or "", arguments, raw, error))

    def _decode(self, body: str) -> tuple[dict[str, Any], str | None]:
        """The arguments of a complete object, or a sentence on what is wrong with it."""
        try:
            call = cast("dict[str, Any]", jsontext.loads(body))
        except ValueError as error:
            return {}, f"The tool call is not valid JSON: {error}. {EXPECTED}"
        if self._scanner.repeated:
            return {}, f"The tool call has {self._scanner.repeated!r} twice. {EXPECTED}"
        name = call.get("name")
        if not isinstance(name, str) or not name:
            return {}, f"The tool call has no name: 'name' must be the name of a tool. {EXPECTED}"
        if problem := unknown_tool(name, self._out.tools):
            return {}, problem
        return _decode_arguments(call.get("arguments", {}))


def _decode_arguments(arguments: Any) -> tuple[dict[str, Any], str | None]:
    if isinstance(arguments, str):
        try:
            arguments = jsontext.loads(arguments)
        except ValueError as error:
            return {}, f"'arguments' is a string that is not valid JSON: {error}. {EXPECTED}"
    if isinstance(arguments, dict):
        return cast("dict[str, Any]", arguments), None
    kind = "null" if arguments is None else f"a {type(arguments).__name__}"
    return {}, f"'arguments' must be a JSON object ({{}} for none), not {kind}. {EXPECTED}"


def _no_object(body: str, *, closed: bool) -> str:
    if not body:
        return f"The tool call is {'empty' if closed else 'not complete'}. {EXPECTED}"
    try:
        jsontext.loads(body)
    except ValueError:
        return f"The text inside <tool_call> is not JSON. {EXPECTED}"
    return f"The tool call must be a JSON object. {EXPECTED}"
