"""Cuts a stream of text into tags and the text between them, the same way however the stream was cut."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

_NAME_LIMIT = 200
_NAME = re.compile(r"[^\s<>\"'`={}\[\](),;]+\Z")


class Tag(Enum):
    """The tags that mean something."""

    CALL = "<tool_call>"
    END_CALL = "</tool_call>"
    FUNCTION = "<function="
    END_FUNCTION = "</function>"
    PARAMETER = "<parameter="
    END_PARAMETER = "</parameter>"


@dataclass(frozen=True, slots=True)
class Token:
    """A tag. `name` is what an opener names, "" when it is malformed. `line_start`: nothing stands before it."""

    tag: Tag
    raw: str
    name: str = ""
    line_start: bool = False


Item = Token | str
"""A tag, or a non-empty piece of the text between tags."""


class Lexer:
    """Finds `tags`. Holds back at most one unfinished tag, so the work is linear in the text."""

    def __init__(self, *tags: Tag) -> None:
        patterns = [
            re.escape(tag.value) + (rf"[^<>\n]{{0,{_NAME_LIMIT}}}>?" if tag.value.endswith("=") else "") for tag in tags
        ]
        self._pattern = re.compile("|".join(patterns))
        self._tags = tags
        self._held = ""
        self._line_start = True

    def feed(self, text: str) -> list[Item]:
        """The items that `text` completes."""
        return self._cut(self._held + text, final=False)

    def finish(self) -> list[Item]:
        """The rest: an opener without its end is malformed, another unfinished tag is text."""
        return self._cut(self._held, final=True)

    def _cut(self, data: str, *, final: bool) -> list[Item]:
        items: list[Item] = []
        position = 0
        end = len(data) if final else self._unfinished(data)
        for match in self._pattern.finditer(data, 0, end):
            self._text(items, data[position : match.start()])
            items.append(self._token(match.group()))
            self._line_start = False
            position = match.end()
        self._text(items, data[position:end])
        self._held = data[end:]
        return items

    def _unfinished(self, data: str) -> int:
        """Where a tag starts that more text could complete; the length of `data` when there is none.

        No tag holds a `<` but its first character, so only the last one can be unfinished.
        """
        start = data.rfind("<")
        tail = data[start:]
        if start < 0 or len(tail) > _NAME_LIMIT + 20:
            return len(data)
        for tag in self._tags:
            if len(tail) < len(tag.value) and tag.value.startswith(tail):
                return start
            opener = tag.value.endswith("=") and tail.startswith(tag.value)
            if opener and (match := self._pattern.match(tail)) and match.end() == len(tail) and tail[-1] != ">":
                return start
        return len(data)

    def _text(self, items: list[Item], text: str) -> None:
        if text:
            items.append(text)
            self._line_start = text[-1] == "\n"

    def _token(self, raw: str) -> Token:
        tag = next(tag for tag in self._tags if raw.startswith(tag.value))
        name = ""
        if raw != tag.value and raw.endswith(">"):
            name = raw[len(tag.value) : -1].strip().strip("\"'")
        return Token(tag, raw, name if _NAME.match(name) else "", self._line_start)
