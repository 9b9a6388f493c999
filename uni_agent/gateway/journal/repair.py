"""A broken journal: every entry that can be read goes on, the file as it was is set aside."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from uni_agent.errors import StoreError, boundary
from uni_agent.gateway.journal.frames import Header, address_of, header_frame, header_of, is_sound, sound_part
from uni_agent.gateway.journal.lock import JournalLock
from uni_agent.gateway.journal.replace import replace_file, sync_folder
from uni_agent.gateway.journal.scan import Scan

_SHORTEST = 60
"""No entry has fewer bytes."""


@dataclass(frozen=True, slots=True)
class Repair:
    """What a repair did. `set_aside` is the file as it was, None when nothing was wrong.

    `kept` counts the entries that go on. `lost` are numbers missing between them that no compaction left out; a session
    with a lost entry can only be restored up to it. `lost_bytes` counts bytes that make no entry; what numbers they had
    at the end of the file cannot be told.
    """

    set_aside: Path | None
    kept: int
    lost: tuple[range, ...]
    lost_bytes: int


def repair_journal(path: str | os.PathLike[str]) -> Repair:
    """Keep every entry of a journal whose checksum is right, on both sides of what is broken.

    The file as it was goes to `<path>.corrupt-<random>`. A journal that is sound, or has a torn tail only, is left
    alone. Raises StoreError when it is being written, or when the disk refuses; then nothing is changed.
    """
    file_path = Path(path)
    lock = JournalLock(file_path)
    with boundary(StoreError, f"{file_path}: the journal cannot be repaired"):
        lock.acquire()
        try:
            return _repaired(file_path)
        finally:
            lock.release()


def _repaired(path: Path) -> Repair:
    count = 0
    try:
        with path.open("rb") as file:
            for _ in Scan(path, file):
                count += 1
        return Repair(None, count, (), 0)
    except StoreError:
        pass
    salvage = _Salvage(path)
    aside = path.with_name(f"{path.name}.corrupt-{uuid.uuid4().hex[:8]}")
    os.link(path, aside)
    try:
        os.close(replace_file(path, salvage.lines()).fd)
    except BaseException:
        aside.unlink()
        raise
    sync_folder(path.parent)
    return Repair(aside, salvage.kept, tuple(salvage.lost), salvage.lost_bytes)


class _Salvage:
    def __init__(self, path: Path) -> None:
        self.kept = 0
        self.lost: list[range] = []
        self.lost_bytes = 0
        self._path = path
        self._header = Header(uuid.uuid4().hex, 0)
        self._next = 0
        self._compacted = 0
        for line in self._sound():  # the new header needs the last number
            self._note(line)
        # Numbers that entries may have had which cannot be read are never given out again.
        spare = self.lost_bytes // _SHORTEST + 1 if self.lost_bytes else 0
        self._header = Header(self._header.source, max(self._next, self._header.complete_from) + spare)

    def lines(self) -> Iterator[bytes]:
        yield header_frame(self._header)
        self.kept, self._next = 0, 0
        for line in self._sound():
            if self._note(line):
                yield line

    def _sound(self) -> Iterator[bytes]:
        self.lost, self.lost_bytes = [], 0
        with self._path.open("rb") as file:
            for line in file:
                sound = line if is_sound(line) else sound_part(line)
                self.lost_bytes += len(line) - len(sound)
                if sound:
                    yield sound

    def _note(self, line: bytes) -> bool:
        """Whether `line` is an entry that comes next; notes what is missing before it."""
        try:
            seq, _ = address_of(line)
        except StoreError:
            return self._read_header(line)
        if seq < self._next:  # a copy of an entry, or one from another place
            self.lost_bytes += len(line)
            return False
        missing = range(max(self._next, self._compacted), seq)
        if missing:
            self.lost.append(missing)
        self.kept += 1
        self._next = seq + 1
        return True

    def _read_header(self, line: bytes) -> bool:
        try:
            header = header_of(line)
        except StoreError:
            self.lost_bytes += len(line)
            return False
        if not self._next:
            self._header, self._compacted = header, header.complete_from
        return False
