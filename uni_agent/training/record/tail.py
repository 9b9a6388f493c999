"""Following the journal of one worker process while it is written."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from uni_agent.errors import StoreError
from uni_agent.gateway.journal.frames import Entry, entry_of, header_of, is_sound
from uni_agent.training.record.journal import kernel_id

PATIENCE = 10.0
"""Seconds after which a bad line with whole ones behind it is damage, and no longer a write in progress."""


@dataclass(frozen=True, slots=True)
class Marked:
    """An entry, None for a line that cannot be read, and the byte at which the next one starts."""

    entry: Entry | None
    end: int


class JournalTail:
    """Reads what is new of the journal `path`; a torn tail is left until it is whole.

    `source` is the journal's own name, None until its first lines are there. `process` is what it says of the process
    that writes it. `closed` tells that the process let go of it in order. `damaged` counts bytes that were passed over.
    """

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self.path = path
        self.source: str | None = None
        self.process: dict[str, Any] = {}
        self.closed = False
        self.damaged = 0
        self._clock = clock
        self._position = 0
        self._file: BinaryIO | None = None
        self._torn: tuple[int, float] | None = None

    def open(self, marks: dict[str, tuple[int, int]]) -> bool:
        """Read the first lines, and go to where `marks` (source → number, byte) says. Returns whether they were there.

        Raises StoreError when the file is no journal of this version, or cannot be read.
        """
        if self.source is not None:
            return True
        try:
            self._file = self._file or self.path.open("rb")
            self._file.seek(0)
            line, second = self._file.readline(), self._file.readline()
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be read: {error}") from error
        if not is_sound(line) or not is_sound(second):
            return False
        self.source = header_of(line).source
        first = entry_of(second)
        self.process = first.data if first.kind == "process" else {}
        self._position = marks.get(self.source, (0, len(line)))[1]
        return True

    def read(self, *, final: bool = False) -> Iterator[Marked]:
        """What is new, in order. With `final` nobody writes any more, so that damage is passed over at once.

        What is taken from the iterator counts as read. Raises StoreError when the file cannot be read.
        """
        file = self._file
        if file is None or os.fstat(file.fileno()).st_size <= self._position:
            return
        try:
            yield from self._lines(file, final=final)
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be read: {error}") from error

    def writer_is_gone(self) -> bool:
        """Whether the process that wrote the journal has ended; False where that cannot be told from this host."""
        if self._file is None or not self.process or self.process.get("kernel") != kernel_id():
            return False
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        fcntl.flock(self._file, fcntl.LOCK_UN)
        return True

    def close(self) -> None:
        """Let go of the file; idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _lines(self, file: BinaryIO, *, final: bool) -> Iterator[Marked]:
        file.seek(self._position)
        skipped = 0
        for line in file:
            if not is_sound(line):
                if not skipped and not (final or self._torn_for_long()):
                    return
                skipped += len(line)
                continue
            # Only what has a whole line behind it is damage; the end of the file may still be in the making.
            self.damaged += skipped
            self._position += skipped + len(line)
            skipped, self._torn = 0, None
            yield Marked(_entry(line), self._position)

    def _torn_for_long(self) -> bool:
        now = self._clock()
        if self._torn is None or self._torn[0] != self._position:
            self._torn = (self._position, now)
        return now - self._torn[1] >= PATIENCE


def _entry(line: bytes) -> Entry | None:
    try:
        return entry_of(line)
    except (StoreError, ValueError):
        return None
