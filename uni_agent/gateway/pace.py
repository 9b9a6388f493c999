"""Turns share the event loop: between two of them it looks at its sockets and timers."""

from __future__ import annotations

import asyncio
from collections import deque


class Pace:
    """Lets one piece of work run in each round of the event loop, in the order in which they ask.

    Without it, hundreds of requests that arrive at once would be worked off in one round, and every timer, heartbeat
    and health check would wait for all of them. Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        """Returns when the caller may work: at once when nobody else did in this round."""
        loop = asyncio.get_running_loop()
        if not self._taken:
            self._taken = True
            loop.call_soon(self._next, loop)
            return
        place: asyncio.Future[None] = loop.create_future()
        self._waiting.append(place)
        await place

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():  # else its client has left
                place.set_result(None)
                loop.call_soon(self._next, loop)
                return
        self._taken = False
