"""One writer per journal: a lock that the kernel lets go of when its holder dies, however it dies."""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path

from uni_agent.errors import StoreError


class JournalLock:
    """Held from `acquire` to `release`, on a file beside the journal, because compaction replaces the journal itself.

    A second holder is refused, in this process and in any other of this host. A forked child does not hold it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(f"{path.name}.lock")
        self._journal = path
        self._fd: int | None = None

    def acquire(self) -> None:
        """Take the lock. Raises StoreError that names the holder when it is not free."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 100, 0).decode("utf-8", "replace").strip()
            os.close(fd)
            raise StoreError(
                f"{self._journal}: is being written by {holder or 'another process'}; "
                "each process needs a journal of its own"
            ) from None
        self._fd = fd
        _held.add(self)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"process {os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let go; idempotent. The file stays: removing it would let two writers lock two files of one name."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
            _held.discard(self)


_held: weakref.WeakSet[JournalLock] = weakref.WeakSet()


def _forget_in_child() -> None:
    # Closing a forked copy does not unlock; keeping it would, after our death, look like a living writer.
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_forget_in_child)
