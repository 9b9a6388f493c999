"""Strings that end a turn, found in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Lets text through up to the first stop string, and holds back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
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
        keep = max((_partial(data, s) for s in self._stops), default=0)
        self._held = data[len(data) - keep :]
        return data[: len(data) - keep]

    def finish(self) -> str:
        """What was held back to no purpose."""
        held, self._held = self._held, ""
        return held


def _partial(data: str, stop: str) -> int:
    """How many characters at the end of `data` may be the beginning of `stop`."""
    most = min(len(stop) - 1, len(data))
    return next((n for n in range(most, 0, -1) if data.endswith(stop[:n])), 0)
