r"""The XML format of Qwen3-Coder, Qwen3.5 and later.

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>
    </tool_call>

A value is raw text, exactly one line break off at each end, so markup inside it is told from the call's own by where it
stands and what follows. A reading is taken only if the call around it stays well formed:

- `</parameter>` ends a value if nothing but whitespace stands between it and the next parameter, `</function>` (itself
  followed by `</tool_call>`, another call or the end), or the end. Anywhere else it is text.
- `<parameter=KEY>` at a line start ends a value that was not closed if the schema knows KEY and the call has no
  KEY yet: a parameter can be given once, so the opener of a given one is text. So is an unknown KEY in a value.
- Without `</parameter>`, a value ends at `</function>` and `</tool_call>` at line starts, and at one of them alone only
  if nothing follows.
- A value may hold whole calls: `<function=…>` and `</function>` at line starts are counted, and nothing ends the value
  inside such a pair. Closing tags that follow a finished call show that its end was text; the value goes on.
- If a value then never ends although the text ends like a call, the counting was wrong (the value held one half of a
  pair): the value ends at the first complete end of a call, and what follows is read without counting.
- A call without `</function>` or `</tool_call>` at the end of the text was cut off: an error, never half a value.
- A malformed opener is left out with its value and named in `note`. Without `<tool_call>`, `<function=NAME>` begins a
  call at a line start if NAME is a known tool. `<tool_call>` in quotes or backticks is prose; any other one gives a
  call or exactly one error.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from uni_agent.tokens.base import ParsedOutput, ParserEvent, ToolSchema
from uni_agent.tokens.parsers.lexer import Item, Lexer, Tag, Token
from uni_agent.tokens.parsers.output import Output, StreamedParser
from uni_agent.tokens.parsers.schema import tool_names
from uni_agent.tokens.parsers.xml_call import EXPECTED, XMLCall
from uni_agent.tokens.parsers.xml_value import ValueReader


class XMLToolParser(StreamedParser):
    """Reads the XML format."""

    def stream(self, tools: Sequence[ToolSchema]) -> XMLStream:
        """The same for a text that arrives in pieces."""
        return XMLStream(Output(tools, self._new_id))


class _At(Enum):
    CONTENT = auto()
    HEAD = auto()  # after <tool_call>
    BROKEN = auto()  # <tool_call> without a function
    BODY = auto()  # between the parameters
    SKIP = auto()  # after a malformed opener
    VALUE = auto()
    AFTER = auto()  # after </function>, before </tool_call>


class XMLStream:
    """One generation in the XML format."""

    def __init__(self, output: Output) -> None:
        self._out = output
        self._known = frozenset(tool_names(output.tools))
        self._lexer = Lexer(*Tag)
        self._at = _At.CONTENT
        self._body: list[str] = []  # what follows <tool_call> and is no function
        self._call = XMLCall(output, "")
        self._value = ValueReader(self._known, self._call, counting=False, wrapped=False)
        self._wrapped = False
        self._counting = True

    @property
    def at_content(self) -> bool:
        """Whether what comes next is content, not part of a call."""
        return self._at in (_At.CONTENT, _At.AFTER) or (self._at is _At.VALUE and self._value.complete)

    def feed(self, text: str) -> list[ParserEvent]:
        """Read on; returns what became certain."""
        for item in self._lexer.feed(text):
            self._read(item)
        return self._out.take_events()

    def finish(self) -> tuple[list[ParserEvent], ParsedOutput]:
        """The remaining events and the whole result."""
        for item in self._lexer.finish():
            self._read(item)
        while self._at is _At.VALUE:  # what a value gives back may open another one
            self._finish_value()
        if self._at in (_At.HEAD, _At.BROKEN):
            self._end_broken(closed=False)
        elif self._at in (_At.BODY, _At.SKIP):
            self._call.end(cut=True)
        result = self._out.result()
        return self._out.take_events(), result

    def _finish_value(self) -> None:
        rest = self._value.finish()
        if rest is None:
            self._call.cut_parameter(self._value.text)
            self._call.end(cut=True)
            self._at = _At.CONTENT
            return
        self._counting = self._counting and not self._value.miscounted
        self._close_value(rest)

    def _read(self, item: Item) -> None:
        if self._at is _At.CONTENT:
            self._content(item)
        elif self._at in (_At.HEAD, _At.BROKEN):
            self._head(item)
        elif self._at is _At.AFTER:
            self._after(item)
        elif self._at is _At.VALUE:
            rest = self._value.read(item)
            if rest is not None:
                self._close_value(rest)
        else:
            self._parameters(item)

    def _close_value(self, rest: list[Item]) -> None:
        """The value has ended; `rest` came after it."""
        self._call.close_parameter(self._value.text)
        self._at = _At.BODY
        for item in rest:
            self._read(item)

    def _content(self, item: Item) -> None:
        if isinstance(item, str):
            self._out.text(item)
            return
        if item.tag in (Tag.CALL, Tag.END_CALL, Tag.FUNCTION):
            self._out.markup = True
        if item.tag is Tag.CALL:
            self._at = _At.HEAD
            self._body = []
        elif item.tag is Tag.FUNCTION and item.line_start and item.name in self._known:
            self._open(item, wrapped=False)
        else:
            self._out.text(item.raw)

    def _head(self, item: Item) -> None:
        """After <tool_call>."""
        if isinstance(item, str):
            if not self._body and item[0] in "`'\"":
                self._at = _At.CONTENT
                self._out.text(Tag.CALL.value + item)
                return
            self._body.append(item)
            if not item.isspace():
                self._at = _At.BROKEN
        elif item.tag is Tag.FUNCTION and (self._at is _At.HEAD or (item.line_start and item.name in self._known)):
            junk = "".join(self._body)
            self._open(item, wrapped=True)
            self._call.between(junk, ignored=False)
        elif item.tag is Tag.END_CALL:
            self._end_broken(closed=True)
        elif item.tag is Tag.CALL:
            if self._at is _At.BROKEN:
                self._end_broken(closed=False)
            self._at = _At.HEAD
            self._body = []
        else:
            self._at = _At.BROKEN
            self._body.append(item.raw)

    def _end_broken(self, *, closed: bool) -> None:
        body = "".join(self._body).strip()
        self._at = _At.CONTENT
        if body:
            self._out.broken(body, f"The text inside <tool_call> is not a function call. {EXPECTED}")
        else:
            self._out.broken("", f"The tool call is {'empty' if closed else 'not complete'}. {EXPECTED}")

    def _open(self, token: Token, *, wrapped: bool) -> None:
        self._at = _At.BODY
        self._wrapped = wrapped
        self._call = XMLCall(self._out, token.name)
        self._out.start(token.name)

    def _after(self, item: Item) -> None:
        """After </function>."""
        if isinstance(item, str):
            if not item.isspace():
                self._at = _At.CONTENT
                self._out.text(item)
        elif item.tag is Tag.FUNCTION and (self._wrapped or item.name in self._known):
            self._open(item, wrapped=self._wrapped)
        else:
            self._at = _At.CONTENT
            if item.tag is not Tag.END_CALL:
                self._content(item)

    def _parameters(self, item: Item) -> None:
        """Between the parameters, or after a malformed opener, whose text is left out."""
        if isinstance(item, str):
            self._call.between(item, ignored=self._at is _At.SKIP)
            return
        if item.tag is Tag.END_PARAMETER:
            self._call.between(item.raw, ignored=True)
            self._at = _At.BODY
        elif item.tag is Tag.PARAMETER:
            self._parameter(item)
        elif item.tag is Tag.FUNCTION and item.name not in self._known:
            self._call.between(item.raw, ignored=self._at is _At.SKIP)
        else:
            self._end_call(item)

    def _parameter(self, token: Token) -> None:
        if not token.name:
            self._at = _At.SKIP
            self._call.malformed(token)
            return
        self._at = _At.VALUE
        self._call.open_parameter(token)
        self._value = ValueReader(self._known, self._call, counting=self._counting, wrapped=self._wrapped)

    def _end_call(self, token: Token) -> None:
        """A tag that ends the call: its own, or the beginning of the next."""
        self._call.end(cut=False)
        self._at = _At.AFTER if token.tag is Tag.END_FUNCTION else _At.CONTENT
        if token.tag is Tag.FUNCTION:
            self._open(token, wrapped=self._wrapped)
        elif token.tag is Tag.CALL:
            self._content(token)
