"""Answering a request for a turn, whole or as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from uni_agent.gateway.canonical import FinishedTurn, ModelRequest, TurnHead
from uni_agent.gateway.errors import ErrorKind, GatewayError
from uni_agent.gateway.protocols.base import ProtocolAdapter, StreamEncoder
from uni_agent.gateway.protocols.sse import json_bytes
from uni_agent.gateway.session import Session
from uni_agent.gateway.turns import Emit, settled
from uni_agent.tokens.base import ParserEvent

RunTurns = Callable[[Emit | None], Awaitable[list[FinishedTurn]]]

_STALLED_BEATS = 20

_STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


def ignored_header(request: ModelRequest) -> dict[str, str]:
    """What was asked and is not done, for the client to see."""
    names = [name.encode("ascii", "replace").decode()[:80] for name in request.ignored[:32]]
    clean = ["".join(c if 32 <= ord(c) < 127 and c != "," else "?" for c in name) for name in names]
    return {"x-uni-agent-ignored": ", ".join(clean)} if clean else {}


def error_response(adapter: ProtocolAdapter, error: GatewayError) -> web.Response:
    """An error in the client's dialect."""
    status, headers, body = adapter.error(error)
    return web.Response(
        status=status, headers={**error.headers, **headers}, body=json_bytes(body), content_type="application/json"
    )


class Turning:
    """The task in which a request's turns are taken: cancelled by a client that leaves and by the session's end.

    The handler waits for it without being cancelled with it, so that it can say why.
    """

    def __init__(self, session: Session, run: Awaitable[list[FinishedTurn]]) -> None:
        self._session = session
        self.task = asyncio.ensure_future(run)
        session.in_flight.add(self.task)

    async def __aenter__(self) -> Turning:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel what is still under way, and wait until it has left no trace."""
        self.task.cancel()
        await settled(self.task)
        self._session.in_flight.discard(self.task)

    async def wait(self, timeout: float | None = None) -> None:
        """Until it is over, or for `timeout` seconds."""
        await asyncio.wait([self.task], timeout=timeout)

    def result(self) -> list[FinishedTurn]:
        """The turns. Raises GatewayError."""
        if self.task.cancelled():
            raise GatewayError(
                ErrorKind.GONE, f"session {self._session.id} is {self._session.phase} ({self._session.reason})"
            )
        return self.task.result()


async def whole_response(
    adapter: ProtocolAdapter, session: Session, request: ModelRequest, run: RunTurns
) -> web.StreamResponse:
    """The turns in one JSON object. Raises GatewayError."""
    async with Turning(session, run(None)) as turning:
        await turning.wait()
        turns = turning.result()
    headers = {"x-request-id": turns[0].head.id, "request-id": turns[0].head.id, **ignored_header(request)}
    return web.Response(
        body=json_bytes(adapter.response(request, turns)), headers=headers, content_type="application/json"
    )


class StreamReply:
    """One streamed turn.

    The status line waits for the first token or the first heartbeat: until then a failure is an HTTP error, which
    clients try again. After it, an error event, and the connection is cut rather than ended: clients take a clean end
    for success.
    """

    def __init__(
        self, http: web.Request, adapter: ProtocolAdapter, session: Session, request: ModelRequest, heartbeat: float
    ) -> None:
        self._http = http
        self._adapter = adapter
        self._session = session
        self._request = request
        self._heartbeat = heartbeat
        self._response: web.StreamResponse | None = None
        self._encoder: StreamEncoder | None = None
        self._head_id = ""
        self._pending: list[bytes] = []
        self._shown = False
        self._wake = asyncio.Event()

    def emit(self, item: TurnHead | ParserEvent) -> None:
        """Take what there is to show."""
        if isinstance(item, TurnHead):
            self._encoder = self._adapter.stream(self._request, item)
            self._head_id = item.id
            self._pending.append(self._encoder.opening())
            return
        if self._encoder is None:
            raise AssertionError("the head comes first")
        if data := self._encoder.event(item):
            self._pending.append(data)
        self._shown = True
        self._wake.set()

    async def send(self, run: RunTurns) -> web.StreamResponse:
        """Stream the turn. Raises GatewayError while nothing was sent."""
        async with Turning(self._session, run(self.emit)) as turning:
            while not turning.task.done():
                await self._next(turning)
                if self._shown or self._response is not None:
                    await self._flush()
            try:
                turns = turning.result()
            except GatewayError as error:
                return await self._failed(error)
            except Exception as error:
                if self._response is None:
                    raise
                self._http.app.logger.exception("a streamed turn failed")
                return await self._failed(
                    GatewayError(ErrorKind.SERVER_ERROR, f"internal error: {type(error).__name__}")
                )
        if self._encoder is None:
            raise AssertionError("a turn without a head")
        self._pending.append(self._encoder.finish(turns[-1]))
        await self._flush()
        if self._response is None:
            raise AssertionError("a flushed stream has a response")
        await self._response.write_eof()
        return self._response

    async def _next(self, turning: Turning) -> None:
        """Wait for something to show, the end, or the time of a heartbeat."""
        self._wake.clear()
        if self._pending and self._shown:
            return
        waker = asyncio.ensure_future(self._wake.wait())
        try:
            done, _ = await asyncio.wait(
                [waker, turning.task], timeout=self._heartbeat, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            waker.cancel()
        if not done and self._encoder is not None:
            self._pending.append(self._encoder.heartbeat())
            self._shown = True

    async def _flush(self) -> None:
        if self._response is None:
            headers = {**_STREAM_HEADERS, "x-request-id": self._head_id, "request-id": self._head_id}
            self._response = web.StreamResponse(headers={**headers, **ignored_header(self._request)})
            await self._response.prepare(self._http)
        data = b"".join(self._pending)
        self._pending.clear()
        if data:
            await self._written(self._response, data)

    async def _written(self, response: web.StreamResponse, data: bytes) -> None:
        """Write `data`; a client that takes nothing for many heartbeats is gone, and its place is free."""
        try:
            async with asyncio.timeout(_STALLED_BEATS * self._heartbeat):
                await response.write(data)
        except TimeoutError as error:
            if self._http.transport is not None:
                self._http.transport.abort()
            raise ConnectionResetError("the client does not read its stream") from error

    async def _failed(self, error: GatewayError) -> web.StreamResponse:
        if self._response is None or self._encoder is None:
            raise error
        self._pending.append(self._encoder.fail(error))
        await self._flush()
        self._response.force_close()
        if self._http.transport is not None:
            self._http.transport.close()  # what was written goes out; the last chunk of a clean end does not
        return self._response
