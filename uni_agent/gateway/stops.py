"""Strings that end a turn, found in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Lets text through up to the first stop string, and holds back what may be the beginning of one.

    No stop string is empty. The work is proportional to the text, whatever the strings.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._tables = [_borders(stop) for stop in self._stops]
        self._begun = [0] * len(self._stops)
        self._held = ""
        self.found = ""

    def feed(self, text: str) -> str:
        """The text that is certain to stand before any stop string. After one was found: nothing."""
        if not self._stops:
            return text
        if self.found:
            return ""
        data = self._held + text
        hits = [(at, stop) for stop in self._stops if (at := data.find(stop)) >= 0]
        if hits:
            at, self.found = min(hits)
            self._held = ""
            return data[:at]
        keep = max((self._advance(number, text) for number in range(len(self._stops))), default=0)
        self._held = data[len(data) - keep :]
        return data[: len(data) - keep]

    def _advance(self, number: int, text: str) -> int:
        """How many characters at the end of the data may be the beginning of a stop, once `text` has come."""
        stop, table, at = self._stops[number], self._tables[number], self._begun[number]
        for char in text:
            while at and stop[at] != char:
                at = table[at - 1]
            at += stop[at] == char
        self._begun[number] = at
        return at

    def finish(self) -> str:
        """What was held back to no purpose."""
        held, self._held = self._held, ""
        return held


def _borders(stop: str) -> list[int]:
    """For each beginning of `stop`, the longest shorter one that it ends with (Knuth, Morris and Pratt)."""
    table = [0] * len(stop)
    at = 0
    for i in range(1, len(stop)):
        while at and stop[at] != stop[i]:
            at = table[at - 1]
        at += stop[at] == stop[i]
        table[i] = at
    return table
