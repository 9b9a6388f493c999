"""Passing requests on to the process that owns their session."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, cast

import aiohttp
from aiohttp import web

from uni_agent.gateway.config import GatewayConfig
from uni_agent.gateway.errors import ErrorKind, GatewayError
from uni_agent.gateway.http.admin import page_limit, page_of
from uni_agent.gateway.http.bodies import decoded, read_body
from uni_agent.gateway.http.identity import credentials
from uni_agent.gateway.keys import read_key
from uni_agent.gateway.metrics import summed
from uni_agent.gateway.protocols.sse import json_bytes
from uni_agent.gateway.sharding import owner_of

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_HOP = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "host", "content-length"}
)
_PEER_SECONDS = 5.0
_MOST_SAMPLES = 8
"""Turns that one request may ask for, one after the other."""


class Forwarder:
    """The other processes, as process `number` sees them. `sockets` are the Unix sockets of all, by number."""

    def __init__(self, number: int, sockets: list[str], config: GatewayConfig) -> None:
        self._number = number
        self._sockets = sockets
        self._config = config
        self._clients: dict[int, aiohttp.ClientSession] = {}

    async def handle(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer here, or let the owner answer. What comes over our Unix socket is always ours."""
        if request.transport is None or isinstance(request.transport.get_extra_info("sockname"), str):
            return await handler(request)
        if request.method == "GET" and request.path in ("/metrics", "/healthz", "/sessions"):
            return await self._gathered(request, handler)
        owner = await self._owner(request)
        if owner in (None, self._number):
            return await handler(request)
        return await self._passed(request, owner)

    async def _owner(self, request: web.Request) -> int | None:
        shards = len(self._sockets)
        session_id = request.match_info.get("session_id")
        if session_id is not None:
            return owner_of(session_id, shards)
        headers = {name.lower(): value for name, value in request.headers.items()}
        if request.method == "POST" and request.path == "/sessions":
            raw = await read_body(request, self._config)
            chosen = decoded(raw).get("session_id") if raw.strip() else None
            return owner_of(chosen, shards) if isinstance(chosen, str) else None
        key = next((key for text in credentials(headers) if (key := read_key(text)) is not None), None)
        return None if key is None else owner_of(key.session_id, shards)

    async def _passed(self, request: web.Request, owner: int) -> web.StreamResponse:
        body = await read_body(request, self._config)
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in _HOP]
        response: web.StreamResponse | None = None
        try:
            async with self._client(owner).request(
                request.method, f"http://shard{request.path_qs}", data=body, headers=headers, allow_redirects=False
            ) as answer:
                kept = [(name, value) for name, value in answer.headers.items() if name.lower() not in _HOP]
                response = web.StreamResponse(status=answer.status)
                for name, value in kept:
                    response.headers.add(name, value)
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
        except aiohttp.ClientError as error:
            if response is None:
                raise GatewayError(
                    ErrorKind.OVERLOADED, f"the process of this session is not there: {error}", retry_after=2.0
                ) from error
            response.force_close()
            if request.transport is not None:
                request.transport.close()  # the owner broke off: no clean end
            return response
        await response.write_eof()
        return response

    async def _gathered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """One answer made of those of all processes."""
        own = await handler(request)
        if not isinstance(own, web.Response) or (own.status != 200 and request.path == "/sessions"):
            return own
        others = [n for n in range(len(self._sockets)) if n != self._number]
        answers = await asyncio.gather(*(self._asked(n, request) for n in others))
        bodies = [bytes(own.body or b""), *(body for body in answers if body is not None)]  # pyright: ignore
        missing = sum(body is None for body in answers)
        if request.path == "/metrics":
            return web.Response(
                body=summed([body.decode() for body in bodies]), headers={"Content-Type": own.headers["Content-Type"]}
            )
        values = [cast("dict[str, Any]", json.loads(body)) for body in bodies]
        if request.path == "/healthz":
            merged = _merged_health(values, missing)
            status = 200 if merged["status"] == "ok" else 503
            return web.Response(body=json_bytes(merged), status=status, content_type="application/json")
        limit = page_limit(request)
        sessions = [session for value in values for session in value["sessions"]]
        sessions.sort(key=lambda session: (session["created"], session["session_id"]))
        more = len(sessions) > limit or any(value["next"] is not None for value in values)
        return web.Response(body=json_bytes(page_of(sessions[:limit], more)), content_type="application/json")

    async def _asked(self, number: int, request: web.Request) -> bytes | None:
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in _HOP]
        try:
            async with (
                asyncio.timeout(_PEER_SECONDS),
                self._client(number).get(f"http://shard{request.path_qs}", headers=headers) as answer,
            ):
                return await answer.read()
        except (aiohttp.ClientError, TimeoutError):
            return None

    def _client(self, number: int) -> aiohttp.ClientSession:
        if number not in self._clients:
            self._clients[number] = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(self._sockets[number], limit=0),
                # The owner answers within its own time limit for every sample; one that is silent longer is stuck.
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=_PEER_SECONDS, sock_read=_MOST_SAMPLES * self._config.timeout + 60.0
                ),
                auto_decompress=False,
            )
        return self._clients[number]

    async def close(self) -> None:
        """Close the connections."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.close()


def _merged_health(values: list[dict[str, Any]], missing: int) -> dict[str, Any]:
    ok = not missing and all(value["status"] == "ok" for value in values)
    return {
        "status": "ok" if ok else "degraded",
        "sessions": sum(value["sessions"] for value in values),
        "in_flight": sum(value["in_flight"] for value in values),
        "journal": all(value["journal"] for value in values),
        "processes": len(values),
        "processes_missing": missing,
    }
