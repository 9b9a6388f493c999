"""The one thread that writes: callers hand it changes and go on; it commits them in order, in batches."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import islice

from uni_agent.errors import StoreError

Change = Callable[[sqlite3.Connection], None]
"""One all-or-nothing step, made of data that nobody changes any more."""

_log = logging.getLogger(__name__)
_LONGEST_PAUSE = 5.0
# The storage failed, not the change: worth another try.
_STORAGE_ERRORS = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_READONLY,
}


class Writer:
    """Commits changes at the latest `interval` seconds or `batch` changes after they came.

    `submit` never blocks on the disk. A batch that the disk refuses stays in memory and is tried again, ever slower; a
    change that is itself at fault is set aside and reported by every later `flush` and by `close`.
    """

    def __init__(self, connection: sqlite3.Connection, *, interval: float = 0.05, batch: int = 200) -> None:
        self._connection = connection
        self._interval = interval
        self._batch = batch
        self._changed = threading.Condition()
        self._queue: deque[Change] = deque()
        self._submitted = 0
        self._done = 0
        self._failures = 0
        self._streak = 0
        self._wanted = 0
        self._retry_now = False
        self._give_up_at: float | None = None
        self._failure: BaseException | None = None
        self._rejected: list[Exception] = []
        self._thread = threading.Thread(target=self._work, name="run-store-writer", daemon=True)
        self._thread.start()

    @property
    def error(self) -> BaseException | None:
        """Why nothing can be written at this moment, or what was rejected for good; None when all is well."""
        return self._failure or (self._rejected[0] if self._rejected else None)

    @property
    def pending(self) -> int:
        """How many changes wait in memory."""
        return self._submitted - self._done

    @property
    def alive(self) -> bool:
        """Whether the thread still works."""
        return self._thread.is_alive()

    def submit(self, change: Change) -> None:
        """Queue a change. Raises StoreError after `close`."""
        with self._changed:
            if self._give_up_at is not None:
                raise StoreError("the run's store is closed")
            self._queue.append(change)
            self._submitted += 1
            if len(self._queue) == 1 or len(self._queue) >= self._batch:
                self._changed.notify_all()

    def flush(self, timeout: float) -> None:
        """Wait until everything submitted so far is committed. Raises StoreError when it is not, or was rejected."""
        with self._changed:
            target, failures = self._submitted, self._failures
            self._wanted = target
            self._retry_now = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._done >= target or self._failures > failures, timeout)
            missing = target - self._done
        self._raise_if(missing, f"not committed within {timeout:g} s")

    def close(self, timeout: float) -> None:
        """Commit the rest, trying for `timeout` seconds, and end the thread. Raises StoreError like `flush`."""
        with self._changed:
            self._give_up_at = time.monotonic() + timeout
            self._changed.notify_all()
        self._thread.join(timeout + 30)  # a commit in progress may hang in the kernel; never wait for ever
        self._raise_if(len(self._queue), "given up at close")

    def _raise_if(self, missing: int, why: str) -> None:
        if missing > 0:
            cause = self._failure
            reason = f"{why}: {cause}" if cause else why
            raise StoreError(f"{missing} records could not be written ({reason})") from cause
        if self._rejected:
            first = self._rejected[0]
            count = len(self._rejected)
            raise StoreError(
                f"{count} records were rejected, the first with {type(first).__name__}: {first}"
            ) from first

    # ------------------------------------------------------------------------------------------ the thread

    def _work(self) -> None:
        while True:
            batch = self._next_batch()
            if not batch:
                return
            try:
                rejected = self._commit(batch)
            except Exception as error:  # the thread must outlive whatever the disk does
                if self._failed(error):
                    return
                continue
            with self._changed:
                for _ in batch:
                    self._queue.popleft()
                self._done += len(batch)
                self._rejected.extend(rejected)
                self._failure, self._streak = None, 0
                self._changed.notify_all()

    def _next_batch(self) -> list[Change]:
        """Up to `batch` changes, which stay queued until they are committed; [] when closed and done."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._give_up_at is not None)
            self._changed.wait_for(self._in_a_hurry, self._interval)
            return list(islice(self._queue, self._batch))

    def _in_a_hurry(self) -> bool:
        return len(self._queue) >= self._batch or self._done < self._wanted or self._give_up_at is not None

    def _failed(self, error: Exception) -> bool:
        """Note a failed commit and pause. Returns whether it is time to give up."""
        with self._changed:
            if self._failure is None:
                _log.error("the run's store cannot be written, %d records wait: %s", len(self._queue), error)
            self._failure = error
            self._failures += 1
            self._streak += 1
            self._retry_now = False
            self._changed.notify_all()
            pause = min(self._interval * 2 ** min(self._streak, 10), _LONGEST_PAUSE)
            if self._give_up_at is None:
                self._changed.wait_for(lambda: self._retry_now or self._give_up_at is not None, pause)
                return False
            time_left = self._give_up_at - time.monotonic()
        time.sleep(max(min(pause, time_left), 0.0))
        return time_left <= 0

    def _commit(self, batch: list[Change]) -> list[Exception]:
        """All of `batch` in one transaction. Returns what was rejected; raises when the storage fails."""
        rejected: list[Exception] = []
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            for change in batch:
                error = self._apply(change)
                if error is not None:
                    rejected.append(error)
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # SQLite itself rolls back after some disk errors
                self._connection.execute("ROLLBACK")
            raise
        return rejected

    def _apply(self, change: Change) -> Exception | None:
        self._connection.execute("SAVEPOINT one")
        try:
            change(self._connection)
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _STORAGE_ERRORS:
                raise
            rejected: Exception = error
        except MemoryError:
            raise
        except Exception as error:
            rejected = error
        else:
            self._connection.execute("RELEASE one")
            return None
        _log.error("a record was rejected by the run's store: %s: %s", type(rejected).__name__, rejected)
        self._connection.execute("ROLLBACK TO one")
        self._connection.execute("RELEASE one")
        return rejected
