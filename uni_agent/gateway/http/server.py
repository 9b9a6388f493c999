"""The routes, and the server that listens."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from uni_agent.errors import ConfigError, StoreError
from uni_agent.gateway.canonical import FinishedTurn, ModelRequest, ProtocolName, Wire
from uni_agent.gateway.errors import ErrorKind, GatewayError
from uni_agent.gateway.http.admin import AdminRoutes
from uni_agent.gateway.http.bodies import decoded, read_body
from uni_agent.gateway.http.forward import Forwarder
from uni_agent.gateway.http.identity import session_of
from uni_agent.gateway.http.reply import StreamReply, error_response, whole_response
from uni_agent.gateway.node import GatewayNode
from uni_agent.gateway.protocols import adapters
from uni_agent.gateway.protocols.anthropic_messages import AnthropicMessagesAdapter
from uni_agent.gateway.protocols.base import ProtocolAdapter
from uni_agent.gateway.protocols.sse import json_bytes
from uni_agent.gateway.session import Session
from uni_agent.gateway.turns import Emit

_log = logging.getLogger(__name__)

_SUFFIX: dict[str, ProtocolName] = {
    "/chat/completions": "openai_chat",
    "/responses": "openai_responses",
    "/messages": "anthropic_messages",
}
_COUNT = "/messages/count_tokens"
_SWEEP_SECONDS = 5.0
_LAG_SECONDS = 0.1

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class GatewayServer:
    """A node on the network.

    Model routes answer at `/v1/…` and at `/sessions/{id}/v1/…`. A base URL with and without `/v1` works with every
    client: repeated and missing `/v1` are put right.
    """

    def __init__(
        self, node: GatewayNode, *, admin_token: str | None = None, forwarder: Forwarder | None = None
    ) -> None:
        self.node = node
        self._forwarder = forwarder
        self.admin_token = admin_token or secrets.token_urlsafe(32)
        self._adapters: Mapping[ProtocolName, ProtocolAdapter] = adapters()
        self._counter = AnthropicMessagesAdapter()
        self._runner: web.AppRunner | None = None
        self._background: list[asyncio.Task[None]] = []
        self._url = ""
        self.admin = AdminRoutes(node, self.admin_token, lambda: self.url)

    # ------------------------------------------------------------------------------------------ listening

    @property
    def url(self) -> str:
        """Where agents reach the gateway, without a final slash."""
        return self.node.config.public_url or self._url

    def app(self) -> web.Application:
        """The application, for a server of one's own."""
        middlewares = [_errors] if self._forwarder is None else [_errors, _forwarding(self._forwarder)]
        app = web.Application(
            client_max_size=int(self.node.config.max_body_mib * 2**20), middlewares=middlewares, logger=_log
        )
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/metrics", self._metrics)
        self.admin.add_to(app)
        app.router.add_route("*", "/sessions/{session_id}/{tail:.*}", self._model)
        app.router.add_route("*", "/{tail:.*}", self._model)
        return app

    async def start(self, *, unix_socket: Path | None = None, reuse_port: bool = False) -> None:
        """Start the node and listen. Raises ConfigError for an address that cannot be had."""
        config = self.node.config
        try:
            await self.node.start()
            self._runner = web.AppRunner(
                self.app(), handler_cancellation=True, access_log=None, shutdown_timeout=1.0, keepalive_timeout=75.0
            )
            await self._runner.setup()
            if unix_socket is not None:
                await web.UnixSite(self._runner, str(unix_socket)).start()
            site = web.TCPSite(self._runner, config.host, config.port, reuse_port=reuse_port or None, backlog=1024)
            try:
                await site.start()
            except OSError as error:
                raise ConfigError(f"cannot listen on {config.host}:{config.port}: {error.strerror or error}") from error
            host, port = self._runner.addresses[-1][:2]
            shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104 - compared, not bound
            self._url = f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
        except BaseException:
            await self.close()
            raise
        self._background = [
            asyncio.create_task(self._sweep(), name="gateway sweep"),
            asyncio.create_task(self._watch_lag(), name="gateway lag"),
        ]

    async def close(self) -> None:
        """Stop listening, cancel what is under way, close the node. Idempotent."""
        background, self._background = self._background, []
        for task in background:
            task.cancel()
        for task in background:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()
        await self.node.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            try:
                await self.node.sessions.sweep()
            except StoreError as error:
                _log.error("%s", error)

    async def _watch_lag(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _LAG_SECONDS
            await asyncio.sleep(_LAG_SECONDS)
            self.node.metrics.loop_lag.observe(max(0.0, loop.time() - due))

    # ------------------------------------------------------------------------------------------ routes

    async def _health(self, _: web.Request) -> web.Response:
        body = self.node.health()
        return web.Response(
            body=json_bytes(body), status=200 if body["status"] == "ok" else 503, content_type="application/json"
        )

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=self.node.metrics.exposition(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def _model(self, request: web.Request) -> web.StreamResponse:
        tail = "/" + request.match_info["tail"].strip("/")
        while tail.startswith("/v1/") or tail == "/v1":
            tail = tail[3:] or "/"
        if tail == "/models" or tail.startswith("/models/"):
            return self._models(tail)
        adapter = self._adapters[_protocol(tail, request.headers)]
        try:
            if tail == "/reward_info" and "session_id" in request.match_info:
                return await self.admin.reward(request)
            if tail not in _SUFFIX and tail != _COUNT:
                raise GatewayError(ErrorKind.NOT_FOUND, f"there is nothing at {request.path[:200]}")
            if request.method != "POST":
                raise GatewayError(ErrorKind.NOT_FOUND, f"{request.path[:200]} takes POST")
            return await self._turn(request, adapter, count=tail == _COUNT)
        except GatewayError as error:
            outcome = error.kind.value
            self.node.metrics.requests.labels(adapter.name, outcome).inc()
            return error_response(adapter, error)

    async def _turn(self, http: web.Request, adapter: ProtocolAdapter, *, count: bool) -> web.StreamResponse:
        node = self.node
        headers = {name.lower(): value for name, value in http.headers.items()}
        session = session_of(node.sessions, headers, http.match_info.get("session_id"))
        session.check_active()
        raw = await read_body(http, node.config)

        def read() -> ModelRequest:
            wire = Wire(adapter.name, http.path, headers, decoded(raw))
            return self._counter.read_count(wire) if count else adapter.read(wire)

        request = node.checked(await node.turns.offload(len(raw), read))
        if count:
            tokens = await node.turns.count(session, request, len(raw))
            node.metrics.requests.labels(adapter.name, "count").inc()
            return web.Response(body=json_bytes(self._counter.count_response(tokens)), content_type="application/json")
        with node.admitted(session), session.counting_errors():
            scenario = node.sessions.tag(session, request)
            run = partial(self._run, session, request, scenario, len(raw))
            if request.stream:
                reply = StreamReply(http, adapter, session, request, node.config.heartbeat)
                response = await reply.send(run)
            else:
                response = await whole_response(adapter, session, request, run)
        node.metrics.requests.labels(adapter.name, "ok").inc()
        return response

    async def _run(
        self, session: Session, request: ModelRequest, scenario: str, size: int, emit: Emit | None
    ) -> list[FinishedTurn]:
        node = self.node
        return await node.turns.run(session, request, node.sessions.record, scenario=scenario, emit=emit, size=size)

    def _models(self, tail: str) -> web.Response:
        name = tail.removeprefix("/models").strip("/")
        card = self.node.model_card(name or self.node.model_name)
        if name:
            return web.Response(body=json_bytes(card), content_type="application/json")
        listing: dict[str, Any] = {
            "object": "list",
            "data": [card],
            "has_more": False,
            "first_id": card["id"],
            "last_id": card["id"],
        }
        return web.Response(body=json_bytes(listing), content_type="application/json")


def _protocol(tail: str, headers: Mapping[str, str]) -> ProtocolName:
    if tail in _SUFFIX:
        return _SUFFIX[tail]
    anthropic = tail == _COUNT or "anthropic-version" in headers
    return "anthropic_messages" if anthropic else "openai_chat"


def _forwarding(forwarder: Forwarder) -> Any:
    @web.middleware
    async def forward(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await forwarder.handle(request, handler)

    return forward


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What no handler told: JSON in place of a page."""
    try:
        return await handler(request)
    except GatewayError as error:
        return error_response(_adapter_for(request), error)
    except StoreError as error:
        _log.error("%s %s: %s", request.method, request.path, error)
        told = GatewayError(ErrorKind.OVERLOADED, "the journal cannot be written; come back later", retry_after=5)
        return error_response(_adapter_for(request), told)
    except web.HTTPException as error:
        kind = ErrorKind.TOO_LARGE if error.status == 413 else ErrorKind.INVALID_REQUEST
        return error_response(adapters()["openai_chat"], GatewayError(kind, error.reason))
    except (asyncio.CancelledError, ConnectionError):
        raise
    except Exception:
        _log.exception("%s %s failed", request.method, request.path)
        fault = GatewayError(ErrorKind.SERVER_ERROR, "the gateway failed; its log says why")
        return error_response(_adapter_for(request), fault)


def _adapter_for(request: web.Request) -> ProtocolAdapter:
    """The adapter whose clients would ask for this path."""
    tail = next((suffix for suffix in (*_SUFFIX, _COUNT) if request.path.endswith(suffix)), "/")
    return adapters()[_protocol(tail, request.headers)]
