"""Appending lines to a file from a thread of its own: callers never wait for the disk, and memory is bounded."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from pathlib import Path

_log = logging.getLogger(__name__)

_INTERVAL = 0.2
_SYNC_EVERY = 1.0
_LONGEST_PAUSE = 5.0
_LINES = 256  # of one write; a chain is tens of kilobytes


class LineWriter:
    """Writes what `put` takes, in order, at the latest `_INTERVAL` seconds after it came.

    A disk that refuses is tried again, ever slower; meanwhile lines wait in memory, and `waiting` says how many bytes.
    """

    def __init__(self, path: Path, fd: int) -> None:
        """Takes over `fd`, which is open for writing and empty."""
        self._path = path
        self._fd = fd
        self._end = 0
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._waiting = 0
        self._put = 0
        self._done = 0
        self._wanted = 0
        self._error: OSError | None = None
        self._failures = 0
        self._streak = 0
        self._synced = time.monotonic()
        self._give_up_at: float | None = None
        self._thread = threading.Thread(target=self._work, name="rollout-journal", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Bytes in memory that are not in the file yet."""
        return self._waiting

    @property
    def error(self) -> OSError | None:
        """Why the last write failed; None when it did not."""
        return self._error

    def put(self, line: bytes, *, hurry: bool = False) -> None:
        """Queue a line; with `hurry` it is written at once."""
        with self._changed:
            self._queue.append(line)
            self._waiting += len(line)
            self._put += 1
            if hurry:
                self._wanted = self._put
            if hurry or len(self._queue) == 1:
                self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until all that was put so far is in the file. Returns whether it is, within `timeout` seconds."""
        with self._changed:
            target, failures = self._put, self._failures
            self._wanted = target
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._done >= target or self._failures > failures, timeout)
            return self._done >= target

    def close(self, timeout: float) -> bool:
        """Write what waits, trying for `timeout` seconds, and close the file. Returns whether all is in it."""
        with self._changed:
            self._give_up_at = time.monotonic() + timeout
            self._changed.notify_all()
        self._thread.join(timeout + 5)  # a write may hang in the kernel; never wait for ever
        return not self._queue

    # ------------------------------------------------------------------------------------------ the thread

    def _work(self) -> None:
        try:
            while lines := self._next():
                try:
                    self._write(b"".join(lines))
                except OSError as error:
                    if self._failed(error):
                        return
                    continue
                with self._changed:
                    for line in lines:
                        self._queue.popleft()
                        self._waiting -= len(line)
                    self._done += len(lines)
                    self._error, self._streak = None, 0
                    self._changed.notify_all()
        finally:
            os.close(self._fd)

    def _next(self) -> list[bytes]:
        """Lines to write, which stay queued until they are written; [] when closed and done."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._give_up_at is not None)
            self._changed.wait_for(
                lambda: len(self._queue) >= _LINES or self._done < self._wanted or self._give_up_at is not None,
                _INTERVAL,
            )
            return list(islice(self._queue, _LINES))

    def _write(self, data: bytes) -> None:
        # At its own offset: what a failed attempt left there is written over.
        view = memoryview(data)
        done = 0
        while done < len(view):
            count = os.pwrite(self._fd, view[done:], self._end + done)
            if not count:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            done += count
        now = time.monotonic()
        if now - self._synced >= _SYNC_EVERY or self._give_up_at is not None:
            # A host that shares the folder over a network sees what was synced.
            os.fsync(self._fd)
            self._synced = now
        self._end += len(view)

    def _failed(self, error: OSError) -> bool:
        """Note a failed write and pause. Returns whether it is time to give up."""
        with self._changed:
            if self._error is None:
                _log.error("%s: cannot be written, %d entries wait: %s", self._path, len(self._queue), error)
            self._error = error
            self._failures += 1
            self._streak += 1
            self._changed.notify_all()
            pause = min(_INTERVAL * 2 ** min(self._streak, 10), _LONGEST_PAUSE)
            closing: Callable[[], bool] = lambda: self._give_up_at is not None  # noqa: E731
            if self._give_up_at is None:
                self._changed.wait_for(closing, pause)
                return False
            time_left = self._give_up_at - time.monotonic()
        time.sleep(max(min(pause, time_left), 0.0))
        return time_left <= 0
