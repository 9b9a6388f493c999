"""The process of one gateway, as a Ray actor. Every method answers with an `Answer`: no error is lost on the way."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from uni_agent.errors import ConfigError, UniAgentError
from uni_agent.gateway.errors import GatewayError
from uni_agent.gateway.ray.errors import Answer
from uni_agent.gateway.ray.source import GatewaySpec
from uni_agent.gateway.rollout_gateway import GatewaySession
from uni_agent.gateway.session import FIRST
from uni_agent.gateway.sessions import FinishedSession, Sessions
from uni_agent.optional import load

if TYPE_CHECKING:
    from uni_agent.gateway.http.server import GatewayServer

_P = ParamSpec("_P")


@dataclass(frozen=True, slots=True)
class Started:
    """A gateway that listens. `sessions` came back from its journal; `active` of them still go on."""

    url: str
    port: int
    sessions: tuple[str, ...]
    active: int


def _answers(
    method: Callable[Concatenate[GatewayActor, _P], Coroutine[Any, Any, Any]],
) -> Callable[Concatenate[GatewayActor, _P], Coroutine[Any, Any, Answer]]:
    @wraps(method)
    async def answered(self: GatewayActor, *args: _P.args, **kwargs: _P.kwargs) -> Answer:
        try:
            return Answer(await method(self, *args, **kwargs))
        except UniAgentError as error:
            return Answer.of(error)

    return answered


class GatewayActor:
    """One gateway. Made and watched by `GatewayManager`; all of it runs on the actor's event loop."""

    def __init__(self, spec: GatewaySpec) -> None:
        self._spec = spec
        self._server: GatewayServer | None = None

    @_answers
    async def start(self) -> Started:
        """Build, restore the journal, and listen on the node's own address."""
        from uni_agent.gateway.http.server import GatewayServer

        os.environ.update(self._spec.environment)
        host = load("ray.util", extra="ray", needed_for="GatewayManager").get_node_ip_address()
        node = await asyncio.to_thread(self._spec.build, host)  # proving a template takes seconds
        server = GatewayServer(node, admin_token=self._spec.admin_token)
        try:
            await server.start()
        except BaseException:
            await node.close()  # the journal's lock goes free for the next try
            raise
        self._server = server
        sessions, _ = node.sessions.page(FIRST, len(node.sessions))
        port = int(server.url.rpartition(":")[2])
        return Started(server.url, port, tuple(session.id for session in sessions), self._active())

    @_answers
    async def create(self, session_id: str | None, settings: Mapping[str, Any]) -> GatewaySession:
        """A new session."""
        return GatewaySession.of(self._sessions.open(session_id, settings), self._running.url)

    @_answers
    async def has(self, session_id: str) -> bool:
        """Whether the session is here, ended or not, and not yet forgotten."""
        try:
            self._sessions.get(session_id)
        except GatewayError:
            return False
        return True

    @_answers
    async def finalize(self, session_id: str) -> FinishedSession:
        """End a session."""
        session = self._sessions.get(session_id)
        await self._sessions.finalize(session)
        return self._sessions.export(session)

    @_answers
    async def abort(self, session_id: str, reason: str) -> FinishedSession:
        """Give a session up."""
        session = self._sessions.get(session_id)
        await self._sessions.abort(session, reason)
        return self._sessions.export(session)

    @_answers
    async def set_reward(self, session_id: str, info: Mapping[str, Any]) -> None:
        """Keep a reward."""
        self._sessions.set_reward(self._sessions.get(session_id), info)

    @_answers
    async def info(self, session_id: str) -> dict[str, Any]:
        """What can be told of a session."""
        return self._sessions.get(session_id).info()

    @_answers
    async def forget(self, session_id: str) -> None:
        """Free an ended session."""
        self._sessions.forget(self._sessions.get(session_id))

    @_answers
    async def ping(self) -> dict[str, Any]:
        """The node's health, and how many sessions are active."""
        return {**self._running.node.health(), "active": self._active()}

    @_answers
    async def close(self) -> None:
        """Stop serving; the journal stays as it is."""
        server, self._server = self._server, None
        if server is not None:
            await server.close()

    @property
    def _running(self) -> GatewayServer:
        if self._server is None:
            raise ConfigError("this gateway is not started, or was shut down")
        return self._server

    @property
    def _sessions(self) -> Sessions:
        return self._running.node.sessions

    def _active(self) -> int:
        page, _ = self._sessions.page(FIRST, len(self._sessions))
        return sum(session.phase == "active" for session in page)
