"""Streams of engine servers: reading their events, and handing their ids over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from uni_agent.engine.base import OnTokens


@dataclass(slots=True)
class Handover:
    """What one call has handed to its caller: `count` ids; `stopped` once the caller had enough."""

    on_tokens: OnTokens
    count: int = 0
    stopped: bool = False

    def give(self, ids: Sequence[int]) -> bool:
        """Hand `ids` over; whether the caller wants no more. Nothing is handed over after that, nor an empty list."""
        if ids and not self.stopped:
            self.count += len(ids)  # before: a caller that raises has had them
            self.stopped = self.on_tokens(ids)
        return self.stopped


class EventReader:
    """Splits a `text/event-stream` into the data of its events; comments and other fields are skipped."""

    def __init__(self) -> None:
        self._pending: list[bytes] = []
        self._data: list[bytes] = []

    def feed(self, raw: bytes) -> list[bytes]:
        """The data of the events that `raw` ends."""
        *lines, rest = raw.split(b"\n")
        out: list[bytes] = []
        if lines:
            lines[0] = b"".join(self._pending) + lines[0]
            self._pending.clear()
        if rest:
            self._pending.append(rest)
        for line in (line.removesuffix(b"\r") for line in lines):
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                out.append(b"\n".join(self._data))
                self._data.clear()
        return out
