"""One writer per run: a lock file that the kernel lets go of when its holder dies, however it dies."""

from __future__ import annotations

import fcntl
import os
import socket
import time
import weakref
from pathlib import Path

from uni_agent.errors import ConfigError

LOCK_NAME = "run.lock"


class WriterLock:
    """Held from `acquire` to `release`. Another holder, in this process or any other of this host, is refused."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / LOCK_NAME
        self._fd: int | None = None

    def acquire(self, patience: float = 0.5) -> None:
        """Take the lock. Raises ConfigError naming the holder when it is not free within `patience` seconds.

        A reader that looks whether a run is alive holds it for an instant: hence the patience.
        """
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + patience
        while not _try_lock(fd, fcntl.LOCK_EX):
            if time.monotonic() >= deadline:
                holder = os.pread(fd, 200, 0).decode("utf-8", "replace").strip()
                os.close(fd)
                raise ConfigError(
                    f"{self._path.parent}: the run is being written by {holder or 'another process'}; "
                    "wait for it, stop it, or choose another output folder"
                )
            time.sleep(0.02)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        self._fd = fd
        _held.add(self)

    def release(self) -> None:
        """Let go; idempotent. The file stays: removing it would let two writers lock two files of one name."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
            _held.discard(self)

    def _forget(self) -> None:
        # Closing a forked copy does not unlock; keeping it would, after our death, look like a living writer.
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def is_locked(run_dir: Path) -> bool:
    """Whether a living process of this host writes the run in `run_dir`."""
    try:
        fd = os.open(run_dir / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _try_lock(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def _try_lock(fd: int, mode: int) -> bool:
    try:
        fcntl.flock(fd, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_held: weakref.WeakSet[WriterLock] = weakref.WeakSet()


def _forget_in_child() -> None:
    for lock in list(_held):
        lock._forget()  # pyright: ignore[reportPrivateUsage] - this module's own class
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)
