"""Small asyncio helpers over file descriptors, and a way to finish work in spite of cancellation."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def finish(work: Awaitable[T]) -> T:
    """Await `work` to its end even while being cancelled; the cancellation is raised afterwards.

    For teardown only: `work` must have deadlines of its own. An error of `work` is raised when there was no cancellation.
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
