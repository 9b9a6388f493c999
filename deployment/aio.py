"""Asyncio over file descriptors, and a way to finish work in spite of cancellation."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def finish(work: Awaitable[T]) -> T:
    """Await `work` to its end even while being cancelled; the cancellation is raised afterwards.

    For teardown only: `work` must have deadlines of its own. An error of `work` is raised when there was no
    cancellation.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # mark it retrieved: the cancellation is what the caller must see
        raise cancelled
    return task.result()


async def wait_readable(fd: int) -> None:
    """Wait until `fd` has data or is at its end."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def on_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(fd, on_ready)
    try:
        await ready
    finally:
        loop.remove_reader(fd)


async def write_all(fd: int, data: bytes) -> None:
    """Write all of `data` to the non-blocking `fd`. Raises BrokenPipeError when nobody reads any more."""
    loop = asyncio.get_running_loop()
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
            continue
        except BlockingIOError:
            pass
        ready: asyncio.Future[None] = loop.create_future()

        def on_ready(ready: asyncio.Future[None] = ready) -> None:
            if not ready.done():
                ready.set_result(None)

        loop.add_writer(fd, on_ready)
        try:
            await ready
        finally:
            loop.remove_writer(fd)


def read_available(fd: int, limit: int = 1 << 18) -> bytes | None:
    """What can be read from the non-blocking `fd` now: None when nothing is there, b"" at its end."""
    try:
        return os.read(fd, limit)
    except BlockingIOError:
        return None
    except OSError:  # a vanished terminal or peer is an end like any other
        return b""


class PipeReader:
    """Reads a non-blocking pipe end into `sink` as data comes, without starving the loop or filling the memory.

    After `flood` bytes since `begin` reading is paced to a few ten MB/s; after `idle_limit` bytes, when one is given,
    it stops until the next `begin`, so that the writer waits. The descriptor is the caller's to close, after `pause`.
    """

    def __init__(self, fd: int, sink: Callable[[bytes], None], *, flood: int = 16 << 20) -> None:
        self.fd = fd
        self.ended = False
        self._sink = sink
        self._flood = flood
        self._idle_limit: int | None = None
        self._received = 0
        self._reading = False
        self._pace: asyncio.TimerHandle | None = None

    def begin(self, *, idle_limit: int | None = None) -> None:
        """Count anew, and read."""
        self._received, self._idle_limit = 0, idle_limit
        self._resume()

    def pause(self) -> None:
        """Stop reading."""
        if self._pace is not None:
            self._pace.cancel()
            self._pace = None
        if self._reading:
            asyncio.get_running_loop().remove_reader(self.fd)
            self._reading = False

    def drain(self) -> None:
        """Take what is in the pipe now, no more than fits in it: some background program may go on writing."""
        left = fcntl.fcntl(self.fd, fcntl.F_GETPIPE_SZ)
        while left > 0 and not self.ended and (count := self._read_once()):
            left -= count

    def _resume(self) -> None:
        self._pace = None
        if not self._reading and not self.ended:
            asyncio.get_running_loop().add_reader(self.fd, self._on_readable)
            self._reading = True

    def _on_readable(self) -> None:
        self._received += self._read_once()
        if self._idle_limit is not None and self._received > self._idle_limit:
            self.pause()
        elif self._received > self._flood:
            self.pause()
            self._pace = asyncio.get_running_loop().call_later(0.002, self._resume)

    def _read_once(self) -> int:
        data = read_available(self.fd)
        if data is None:
            return 0
        if not data:
            self.ended = True
            self.pause()
            return 0
        self._sink(data)
        return len(data)
