"""The admin API: sessions are created, inspected, finalized and aborted; rewards come in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web

from uni_agent.gateway.errors import invalid
from uni_agent.gateway.http.bodies import decoded, read_body
from uni_agent.gateway.http.identity import check_admin, reward_session
from uni_agent.gateway.node import GatewayNode
from uni_agent.gateway.protocols.reading import too_deep
from uni_agent.gateway.protocols.sse import json_bytes
from uni_agent.gateway.session import FIRST, Cursor, Phase, Session

_PAGE = 100


class AdminRoutes:
    """Everything behind the administrator's token, and the reward, which has a key of its own."""

    def __init__(self, node: GatewayNode, token: str, url: Callable[[], str]) -> None:
        self._node = node
        self._token = token
        self._url = url

    def add_to(self, app: web.Application) -> None:
        """Register the routes."""
        router = app.router
        router.add_post("/sessions", self.create)
        router.add_get("/sessions", self.listing)
        router.add_get("/sessions/{session_id}", self.show)
        router.add_delete("/sessions/{session_id}", self.delete)
        router.add_get("/sessions/{session_id}/trajectories", self.trajectories)
        router.add_post("/sessions/{session_id}/finalize", self.finalize)
        router.add_post("/sessions/{session_id}/abort", self.abort)
        router.add_post("/sessions/{session_id}/reward_info", self.reward)

    async def create(self, request: web.Request) -> web.Response:
        """`POST /sessions` with {session_id?, and any of SessionSettings}: 201 and the keys."""
        self._check(request)
        data = await self._body(request)
        session_id = data.pop("session_id", None)
        if session_id is not None and not isinstance(session_id, str):
            raise invalid("session_id: expected a string", "session_id")
        # In its turn: a batch of hundreds must not hold up those that are at work.
        opened = await self._node.turns.offload(0, lambda: self._node.sessions.open(session_id, data))
        base = f"{self._url()}/sessions/{opened.session_id}"
        body = {
            "session_id": opened.session_id,
            "base_url": base,
            "openai_base_url": f"{base}/v1",
            "anthropic_base_url": base,
            "reward_url": f"{base}/reward_info",
            "api_key": opened.api_key,
            "reward_key": opened.reward_key,
        }
        return _json(body, 201)

    async def listing(self, request: web.Request) -> web.Response:
        """`GET /sessions?limit=N&after=NEXT`: sessions in the order of their creation; `next` begins the next page."""
        self._check(request)
        sessions, more = self._node.sessions.page(_after(request), page_limit(request))
        return _json(page_of([session.info() for session in sessions], more))

    async def show(self, request: web.Request) -> web.Response:
        """`GET /sessions/{id}`."""
        return _json(self._session(request).info())

    async def trajectories(self, request: web.Request) -> web.Response:
        """`GET /sessions/{id}/trajectories`: what the session holds now, final or not."""
        return await self._exported(self._session(request))

    async def finalize(self, request: web.Request) -> web.Response:
        """`POST /sessions/{id}/finalize`: end it; trajectories and accounting."""
        session = self._session(request)
        await self._node.sessions.finalize(session)
        return await self._exported(session)

    async def abort(self, request: web.Request) -> web.Response:
        """`POST /sessions/{id}/abort` with {reason?}: give it up; its accounting."""
        session = self._session(request)
        reason = (await self._body(request)).get("reason", "aborted")
        if not isinstance(reason, str):
            raise invalid("reason: expected a string", "reason")
        await self._node.sessions.abort(session, reason[:200] or "aborted")
        return await self._exported(session)

    async def delete(self, request: web.Request) -> web.Response:
        """`DELETE /sessions/{id}`: forget a session that has ended."""
        session = self._session(request)
        self._node.sessions.forget(session)
        await self._node.backend.release(session.id)
        return web.Response(status=204)

    async def reward(self, request: web.Request) -> web.Response:
        """`POST /sessions/{id}/reward_info` with any JSON object, behind the session's reward key."""
        session = reward_session(
            self._node.sessions, _lower(request), request.match_info.get("session_id", ""), self._token
        )
        info = await self._body(request)
        self._node.sessions.set_reward(session, info)
        return _json({"session_id": session.id, "reward_info": info})

    async def _exported(self, session: Session) -> web.Response:
        node = self._node
        if session.phase is Phase.ACTIVE:  # while turns are committed, only the event loop sees a state that adds up
            return _json(node.sessions.export(session).to_json())
        size = 16 * sum(len(turn.ids) + len(turn.context.ids) for turn in session.graph.turns)
        async with session.lock:  # nobody lets go of the graph meanwhile
            body = await node.turns.offload(size, lambda: json_bytes(node.sessions.export(session).to_json()))
        return web.Response(body=body, content_type="application/json")

    def _check(self, request: web.Request) -> None:
        check_admin(_lower(request), self._token)

    def _session(self, request: web.Request) -> Session:
        self._check(request)
        return self._node.sessions.get(request.match_info["session_id"])

    async def _body(self, request: web.Request) -> dict[str, Any]:
        raw = await read_body(request, self._node.config)
        data = decoded(raw) if raw.strip() else {}
        if too_deep(data):
            raise invalid("the body is nested too deeply")
        return data


def page_limit(request: web.Request) -> int:
    """How many sessions a page may have. Raises GatewayError."""
    limit = request.query.get("limit", str(_PAGE))
    if not limit.isdecimal() or len(limit) > 4 or not 1 <= int(limit) <= 1000:
        raise invalid("limit: expected a number from 1 to 1000", "limit")
    return int(limit)


def page_of(sessions: list[dict[str, Any]], more: bool) -> dict[str, Any]:
    """A page; `next` is null when nothing is behind it."""
    last = sessions[-1] if more and sessions else None
    return {"sessions": sessions, "next": None if last is None else f"{last['created']!r}:{last['session_id']}"}


def _after(request: web.Request) -> Cursor:
    text = request.query.get("after", "")
    if not text:
        return FIRST
    created, _, session_id = text.partition(":")
    try:
        return float(created), session_id
    except ValueError as error:
        raise invalid("after: expected the `next` of the page before", "after") from error


def _lower(request: web.Request) -> dict[str, str]:
    return {name.lower(): value for name, value in request.headers.items()}


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=json_bytes(value), status=status, content_type="application/json")
