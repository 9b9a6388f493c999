"""Where the sender of weights and their receivers meet. Imports nothing of verl: its process starts in no time."""

from __future__ import annotations

import asyncio
from typing import Any


class Exchange:
    """Holds a reference to the weights of one round until all have taken them. An actor; its methods never block."""

    def __init__(self) -> None:
        self._token = ""
        self._held: Any = None
        self._failure: str | None = None
        self._settled = asyncio.Event()

    async def begin(self, token: str) -> None:
        """Open a round; what an earlier one left is let go of."""
        if token != self._token:
            self._token, self._held, self._failure = token, None, None
            self._settled = asyncio.Event()

    async def put(self, token: str, held: Any) -> None:
        """Lay down the sender's reference (in a list, or Ray would resolve it)."""
        await self.begin(token)
        self._held = held
        self._settled.set()

    async def fail(self, token: str, failure: str) -> None:
        """Tell those who wait that nothing will come."""
        await self.begin(token)
        self._failure = failure
        self._settled.set()

    async def take(self, token: str, timeout: float) -> tuple[Any, str | None]:
        """The reference and None, or None and why there is none; within `timeout` seconds."""
        await self.begin(token)
        settled = self._settled
        try:
            async with asyncio.timeout(timeout):
                await settled.wait()
        except TimeoutError:
            return None, f"the sender has sent nothing for {timeout:g} s"
        if token != self._token:
            return None, "another round of weights has begun"
        if self._held is None and self._failure is None:
            return None, "the round of weights is over"
        return self._held, self._failure

    async def end(self, token: str) -> None:
        """Let go of the round's weights."""
        if token == self._token:
            self._held = None
