"""Follows one JSON object of a call through a stream: where it ends, its name, and the text of its arguments."""

from __future__ import annotations

import re

from uni_agent.tokens.parsers import jsontext

_OUTSIDE = re.compile(r'["{}\[\]:,]')
_INSIDE = re.compile(r'["\\]')
_CONTROL = re.compile(r"[\x00-\x1f]")


class CallScanner:
    """Scans `{"name": …, "arguments": …}`; brackets and quotes inside strings mean nothing.

    It does not judge the JSON (`jsontext.loads` does at the end), it only finds the pieces while they arrive. Each
    character is looked at once. `name` is None until its string is complete; `repeated` names a key given twice.
    """

    def __init__(self) -> None:
        self.done = False
        self.in_string = False
        self.name: str | None = None
        self.repeated = ""
        self._depth = 0
        self._escaped = False
        self._wants_key = False
        self._key = ""
        self._seen: set[str] = set()
        self._string: list[str] = []  # pieces of a key or a value at the top level
        self._capturing = False
        self._raw: list[str] = []  # the arguments as written
        self._object = False  # whether they begin with a brace
        self._fresh: list[str] = []  # what of them `take_object` has not handed out

    @property
    def raw_arguments(self) -> str:
        """The text of the arguments' value so far, as written."""
        return "".join(self._raw).strip()

    def take_object(self) -> str:
        """What has been read of the arguments since the last call, if they are an object and the name is known.

        Raw control characters inside strings come back escaped: joined, the pieces are JSON that anyone can read.
        """
        if self.name is None or not self._object:
            return ""
        text = "".join(self._fresh)
        self._fresh.clear()
        return text

    def feed(self, text: str) -> int:
        """Read on; returns how many characters belong to the object (fewer than all once it is `done`)."""
        position = 0
        while position < len(text) and not self.done:
            position = self._inside(text, position) if self.in_string else self._outside(text, position)
        return position

    def _inside(self, text: str, position: int) -> int:
        if self._escaped:
            self._escaped = False
            self._take(text[position])
            return position + 1
        match = _INSIDE.search(text, position)
        end = match.end() if match else len(text)
        if match and match.group() == '"':
            self._take(text[position : end - 1])
            self.in_string = False
            self._capture('"')
            if self._depth == 1:
                self._string_ends()
        else:
            self._take(text[position:end])
            self._escaped = match is not None
        return end

    def _take(self, piece: str) -> None:
        if self._depth == 1:
            self._string.append(piece)
        self._capture(piece)

    def _string_ends(self) -> None:
        try:
            value = str(jsontext.loads('"' + "".join(self._string) + '"'))
        except ValueError:
            value = ""
        if self._wants_key:
            self._key = value
        elif self._key == "name" and self.name is None:
            self.name = value

    def _outside(self, text: str, position: int) -> int:
        match = _OUTSIDE.search(text, position)
        if match is None:
            self._capture(text[position:])
            return len(text)
        self._capture(text[position : match.start()])
        self._mark(match.group())
        return match.end()

    def _mark(self, mark: str) -> None:
        if mark == '"':
            self._capture(mark)
            self.in_string = True
            self._string.clear()
        elif mark in "{[":
            self._capture(mark)
            self._depth += 1
            self._wants_key = self._depth == 1
        elif mark in "}]":
            self._depth -= 1
            if self._depth == 0:
                self.done = True
                return
            self._capture(mark)
            if self._depth == 1:
                self._capturing = False
        elif self._depth == 1:
            self._separator(mark)
        else:
            self._capture(mark)

    def _separator(self, mark: str) -> None:
        """A colon or comma of the call itself."""
        self._wants_key = mark == ","
        self._capturing = False
        if mark == ":" and self._key in ("name", "arguments"):
            self._capturing = self._key == "arguments" and self._key not in self._seen
            self.repeated = self._key if self._key in self._seen else self.repeated
            self._seen.add(self._key)

    def _capture(self, piece: str) -> None:
        if not self._capturing:
            return
        if not self._raw:
            piece = piece.lstrip()
            self._object = piece.startswith("{")
        if piece:
            self._raw.append(piece)
            self._fresh.append(_CONTROL.sub(_escape, piece) if self.in_string else piece)


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match.group()):04x}"
