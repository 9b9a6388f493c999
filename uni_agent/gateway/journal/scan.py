"""Reading a journal, also while its process writes it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from uni_agent.errors import StoreError
from uni_agent.gateway.journal.frames import Entry, Header, address_of, entry_of, header_of, is_sound


class Scan:
    """Iterates over the sound lines of entries, in order, once.

    Afterwards `header` is the header (None for a file that was just made), `end` the offset behind the last sound line
    and `next_seq` the number that comes next. What is behind `end` is a torn tail: a line without its end, or a
    stretch with NUL bytes that a power cut left. Raises StoreError with path and offset for anything else.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.header: Header | None = None
        self.end = 0
        self.next_seq = 0
        self._path = path
        self._file = file

    def __iter__(self) -> Iterator[bytes]:
        for line in self._file:
            if not is_sound(line):
                self._check_torn(line)
                return
            try:
                if self.header is None:
                    self.header = header_of(line)
                    self.end += len(line)
                    continue
                seq, _ = address_of(line)
            except StoreError as error:
                raise self._broken(str(error)) from error
            self._check_order(seq, self.header)
            self.end += len(line)
            self.next_seq = seq + 1
            yield line
        if self.header is not None:
            self.next_seq = max(self.next_seq, self.header.complete_from)

    def _check_order(self, seq: int, header: Header) -> None:
        if seq < self.next_seq or self.next_seq < seq > header.complete_from:
            raise self._broken(f"entry {seq} stands where entry {self.next_seq} should")

    def _check_torn(self, line: bytes) -> None:
        """Raises StoreError when the bad line is no torn tail."""
        if line.endswith(b"\n") and b"\x00" not in line:
            raise self._broken("a line is damaged")
        if any(is_sound(later) for later in self._file):
            raise self._broken("a line is damaged, and whole ones follow it")
        if self.header is None:
            raise self._broken("the header is damaged")
        self.next_seq = max(self.next_seq, self.header.complete_from)

    def _broken(self, why: str) -> StoreError:
        return StoreError(
            f"{self._path}: broken at byte {self.end}: {why}. Nothing was changed; `repair_journal` keeps every entry "
            "that can be read and sets the file aside"
        )


def read_journal(path: str | os.PathLike[str]) -> Iterator[Entry]:
    """The entries so far, in order. The process that writes them may go on, compact the file or be gone.

    Raises StoreError when there is no such journal, or, behind the last sound entry, when it is broken.
    """
    file_path = Path(path)
    try:
        file = file_path.open("rb")
    except OSError as error:
        raise StoreError(f"{file_path}: cannot be read: {error}") from error
    with file:
        for line in Scan(file_path, file):
            yield entry_of(line)
