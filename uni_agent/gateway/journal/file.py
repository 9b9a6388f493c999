"""Writing a journal."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from uni_agent.errors import StoreError, boundary
from uni_agent.gateway.journal.frames import Entry, Header, address_of, entry_frame, header_frame
from uni_agent.gateway.journal.lock import JournalLock
from uni_agent.gateway.journal.replace import replace_file, sync_folder
from uni_agent.gateway.journal.scan import Scan

_log = logging.getLogger(__name__)


class Journal:
    """The append-only file of one process. May be used from several threads.

    Opening takes the lock, checks every line and cuts off a torn tail: `torn_bytes` says how much. An entry is on its
    way to the disk when `append` returns, and survives the death of the process then; with `fsync` it survives a power
    cut too. `source` is a random name that the journal keeps over restarts and compactions.

    Raises StoreError when the journal is being written, cannot be opened, or is broken (see `repair_journal`).
    """

    def __init__(
        self, path: str | os.PathLike[str], *, fsync: bool = False, clock: Callable[[], float] = time.time
    ) -> None:
        self.path = Path(path)
        self.torn_bytes = 0
        self._fsync = fsync
        self._clock = clock
        self._mutex = threading.Lock()
        self._queue: deque[bytes] = deque()
        self._error: OSError | None = None
        self._pid = os.getpid()
        self._closed = False
        self._lock = JournalLock(self.path)
        with boundary(StoreError, f"{self.path}: the journal cannot be opened"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            try:
                self._fd, scan = self._opened()
            except BaseException:
                self._lock.release()
                raise
        header = scan.header
        if header is None:  # `_opened` writes one where there is none
            raise AssertionError("a journal without a header")
        self.source = header.source
        self._next = scan.next_seq
        self._end = scan.end

    # ------------------------------------------------------------------------------------------ facts

    @property
    def next_seq(self) -> int:
        """The number of the next entry."""
        return self._next

    @property
    def healthy(self) -> bool:
        """Whether everything that was appended is in the file."""
        return self._error is None and not self._queue

    @property
    def pending(self) -> int:
        """How many entries wait in memory because the disk refused them."""
        return len(self._queue)

    @property
    def error(self) -> OSError | None:
        """Why the last write failed; None when it did not."""
        return self._error

    # ------------------------------------------------------------------------------------------ writing

    def append(self, kind: str, session_id: str, data: dict[str, Any]) -> int:
        """Write an entry; returns its number. `data` is JSON data with text keys.

        Raises StoreError when the disk refuses it: the entry then waits in memory, keeps its place, and is tried again
        before the next one. Raises ValueError for data that is not JSON; then nothing was added.
        """
        with self._mutex:
            self._check_open()
            seq = self._next
            frame = entry_frame(Entry(seq, self._clock(), kind, session_id, data))
            self._next = seq + 1
            self._queue.append(frame)
            self._drain()
            return seq

    def flush(self) -> None:
        """Try again to write what waits. Raises StoreError when some of it still does."""
        with self._mutex:
            self._check_open()
            self._drain()

    def compact(self, keep: Collection[str]) -> int:
        """Leave out the entries of all sessions but `keep`, in one atomic step. Returns how many are left out.

        Entries of no session (id "") stay. Numbers, times and `source` stay as they are. Blocks for as long as the file
        takes to be copied. Raises StoreError when the disk refuses; the journal is then as it was.
        """
        wanted = {"", *keep}
        left = 0

        def lines(file: BinaryIO) -> Iterator[bytes]:
            nonlocal left
            yield header_frame(Header(self.source, self._next))
            scan = Scan(self.path, file)
            for line in scan:
                if address_of(line)[1] in wanted:
                    yield line
                else:
                    left += 1
            if scan.end != self._end:  # somebody else changed the file: what we wrote is not all there
                raise StoreError(f"{self.path}: ends at byte {scan.end}, not at byte {self._end}")

        with self._mutex, boundary(StoreError, f"{self.path}: the journal cannot be compacted"):
            self._check_open()
            self._drain()
            with self.path.open("rb") as file:
                new = replace_file(self.path, lines(file))
            old, self._fd, self._end = self._fd, new.fd, new.size
            os.close(old)
            sync_folder(self.path.parent)
            return left

    def close(self) -> None:
        """Write what waits and let go of the file. Idempotent. Raises StoreError for what could not be written."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            try:
                if os.getpid() == self._pid:
                    self._drain()
            finally:
                os.close(self._fd)
                self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    # ------------------------------------------------------------------------------------------ inside

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.path}: the journal is closed")
        if os.getpid() != self._pid:
            raise StoreError(f"{self.path}: the journal belongs to process {self._pid}; open another in this one")

    def _drain(self) -> None:
        while self._queue:
            try:
                self._write(self._queue[0])
            except OSError as error:
                self._error = error
                raise StoreError(
                    f"{self.path}: cannot be written, {len(self._queue)} entries wait in memory: {error}"
                ) from error
            self._queue.popleft()
        self._error = None

    def _write(self, frame: bytes) -> None:
        # At its own offset: what a failed attempt left there is written over, whatever it was.
        done = os.pwrite(self._fd, frame, self._end)
        while done < len(frame):
            count = os.pwrite(self._fd, frame[done:], self._end + done)
            if not count:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            done += count
        if self._fsync:
            os.fsync(self._fd)
        self._end += len(frame)

    def _opened(self) -> tuple[int, Scan]:
        """The file, checked, without its torn tail; a new one where there is none."""
        if not self.path.exists() or not self.path.stat().st_size:
            os.close(replace_file(self.path, [header_frame(Header(uuid.uuid4().hex, 0))]).fd)
            sync_folder(self.path.parent)
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            with self.path.open("rb") as file:
                scan = Scan(self.path, file)
                for _ in scan:
                    pass
            self.torn_bytes = os.fstat(fd).st_size - scan.end
            if self.torn_bytes:
                _log.warning("%s: %d bytes of an entry that was never finished are cut off", self.path, self.torn_bytes)
                os.ftruncate(fd, scan.end)
        except BaseException:
            os.close(fd)
            raise
        return fd, scan


def compact(path: str | os.PathLike[str], keep: Collection[str]) -> int:
    """`Journal.compact` for a journal that nobody writes; returns how many entries are left out."""
    with Journal(path) as journal:
        return journal.compact(keep)
