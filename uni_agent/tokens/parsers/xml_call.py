"""One call of the XML format while it is read."""

from __future__ import annotations

from typing import Any

from uni_agent.tokens.parsers import jsontext
from uni_agent.tokens.parsers.convert import convert
from uni_agent.tokens.parsers.lexer import Token
from uni_agent.tokens.parsers.output import Output
from uni_agent.tokens.parsers.schema import parameters_of, properties_of, unknown_tool
from uni_agent.types import ToolCall

EXPECTED = (
    "Write a call as\n<tool_call>\n<function=tool>\n<parameter=key>\nvalue\n</parameter>\n</function>\n</tool_call>"
)
_NOTES = 5
_SHOWN = 80


class XMLCall:
    """Collects the parameters, complaints and raw text of a call named `name` ("" when its opener is malformed)."""

    def __init__(self, output: Output, name: str) -> None:
        self.name = name
        self._out = output
        self._root = parameters_of(name, output.tools) or {}
        self._properties = properties_of(self._root)
        self._arguments: dict[str, Any] = {}
        self._raw: list[str] = []
        self._junk: list[str] = []
        self._notes: list[str] = []
        self._key = ""
        self._open = False

    def may_open(self, key: str) -> bool:
        """Whether `key` is a known parameter that the call does not have yet."""
        return key in self._properties and not self.has(key)

    def has(self, key: str) -> bool:
        """Whether `key` is given, the parameter being read included."""
        return key in self._arguments or (self._open and key == self._key)

    def between(self, text: str, *, ignored: bool) -> None:
        """Text outside the values; unless it is `ignored` it should not be there."""
        self._raw.append(text)
        if not ignored:
            self._junk.append(text)

    def malformed(self, token: Token) -> None:
        """An opener without a name, or without its end."""
        self._flush()
        self._raw.append(token.raw)
        self._note(f"A malformed parameter was left out: {_shown(token.raw)}. Write <parameter=key>.")

    def open_parameter(self, token: Token) -> None:
        """A value begins."""
        self._flush()
        self._raw.append(token.raw)
        self._key = token.name
        self._open = True

    def close_parameter(self, raw: str) -> None:
        """The value whose text, line breaks around it included, is `raw`."""
        self._raw.append(raw)
        self._open = False
        if self._key in self._arguments:
            self._note(f"The parameter {_shown(self._key)} was given twice; the first one counts.")
            return
        value = convert(_unwrapped(raw), self._properties.get(self._key), self._root)
        start = ", " if self._arguments else "{"
        self._arguments[self._key] = value
        self._out.arguments(f"{start}{jsontext.dumps(self._key)}: {jsontext.dumps(value)}")

    def cut_parameter(self, raw: str) -> None:
        """A value that never ended; it is not taken."""
        self._raw.append(raw)

    def end(self, *, cut: bool) -> None:
        """The call is over; `cut` when the text ended before it did."""
        self._flush()
        error: str | None = None
        if cut:
            where = f" inside the parameter {_shown(self._key)}" if self._open else ""
            error = f"The tool call is not complete: the text ended{where}. {EXPECTED}"
        elif not self.name:
            error = f"The tool call has no name. {EXPECTED}"
        else:
            error = unknown_tool(self.name, self._out.tools)
        if cut:  # left open: half a call must not read as a whole one
            self._out.arguments("" if self._arguments else "{")
        else:
            self._out.arguments("}" if self._arguments else "{}")
        note = "" if error else " ".join(self._notes[:_NOTES])
        raw = "".join(self._raw).strip()
        self._out.end(ToolCall("", self.name, self._arguments, raw, error, note))

    def _flush(self) -> None:
        """What stood between the parameters is complete: complain about it as a whole, however it arrived."""
        junk = "".join(self._junk).strip()
        self._junk.clear()
        if junk:
            self._note(f"Text outside the parameters was left out: {_shown(junk)}.")

    def _note(self, text: str) -> None:
        if len(self._notes) < _NOTES:
            self._notes.append(text)


def _unwrapped(raw: str) -> str:
    """Exactly one line break less at each end; the kind of break behind the opener tells which kind it is."""
    if raw.startswith("\r\n"):
        raw = raw[2:]
        return raw.removesuffix("\r\n") if raw.endswith("\r\n") else raw.removesuffix("\n")
    return raw.removeprefix("\n").removesuffix("\n")


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")
