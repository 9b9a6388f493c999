"""The gateways of a cluster, behind one object."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from uni_agent.errors import ConfigError
from uni_agent.gateway.app_config import GatewayAppConfig
from uni_agent.gateway.config import GatewayConfig
from uni_agent.gateway.errors import ErrorKind, GatewayError
from uni_agent.gateway.ray.errors import Answer, GatewayLostError
from uni_agent.gateway.ray.placement import Placement, eligible_nodes, nodes_for
from uni_agent.gateway.ray.slots import Place, Slots
from uni_agent.gateway.ray.source import GatewayFactory, GatewaySpec
from uni_agent.gateway.ray.supervisor import ActorOptions, Supervisor
from uni_agent.gateway.rollout_gateway import GatewaySession
from uni_agent.gateway.sessions import FinishedSession
from uni_agent.gateway.sharding import owner_of
from uni_agent.optional import load

_T = TypeVar("_T")
Plan = Generator[Any, Any, _T]
"""Work with waits in it: yields a Ray reference and is sent its value, or yields the seconds to sleep."""

_START_SECONDS = 600.0
_CALL_SECONDS = 120.0
_RETURN_SECONDS = 120.0
_POLL_SECONDS = 0.05


class GatewayManager:
    """Gateways as Ray actors: each serves on its own node's address, sessions are spread over them.

        ray.init(...)
        with GatewayManager(GatewayAppConfig(...), count=4) as manager:
            session = manager.create_session(metadata={"task": "t1"})
            ...  # an agent works at session.base_url with session.api_key
            trajectories = manager.finalize(session.session_id).trajectories

    `source` is a whole configuration, or a function that makes engine and renderer inside each actor (for engines that
    hold handles of other actors); with a function, `config` is the gateway's. `gateway.host` is replaced by each node's
    address, ports are free ones. `count` None: one for each node of `placement`. All actors share `admin_token`.
    `environment` names variables of this process that the actors get, such as those with API keys.

    A new session goes to the living actor with the fewest active sessions. An actor that dies is started anew, on the
    same node and port. With a journal folder its sessions come back and calls wait for them; without one, or when they
    do not come back, calls for them raise GatewayLostError, and their agents get 401.

    All methods may be called from any thread; those that begin with `a` are for event loops. Errors of a gateway are
    raised as GatewayError, as `RolloutGateway` does.
    """

    def __init__(
        self,
        source: GatewayAppConfig | GatewayFactory,
        count: int | None = None,
        *,
        config: GatewayConfig | None = None,
        placement: Placement = "each_node",
        admin_token: str | None = None,
        num_cpus: float = 1.0,
        resources: Mapping[str, float] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        environment: Sequence[str] = (),
        restart: bool = True,
    ) -> None:
        self._ray: Any = load("ray", extra="ray", needed_for="GatewayManager")
        self._config = _checked(source, config)
        self._source = source
        self._count = count
        self._placement: Placement = placement
        self.admin_token = admin_token or self._config.admin_token() or secrets.token_urlsafe(32)
        self._options = ActorOptions(num_cpus, resources, runtime_env)
        self._environment = environment
        self._restart = restart
        self._slots = Slots([])
        self._supervisor: Supervisor | None = None

    # ------------------------------------------------------------------------------------------ life

    def start(self) -> Self:
        """Start the actors; returns when all listen.

        Raises ConfigError when Ray is not initialised, for a placement that cannot be, and for what an actor finds
        wrong in the configuration; UniAgentError when an actor cannot start.
        """
        ray = self._ray
        if self._supervisor is not None:
            raise ConfigError("this manager was started before; make a new one")
        if not ray.is_initialized():
            raise ConfigError("GatewayManager needs a Ray cluster: call ray.init() first")
        here: str = ray.get_runtime_context().get_node_id()
        nodes = nodes_for(self._placement, self._count, ray.nodes(), here)
        spec = GatewaySpec(0, len(nodes), self._source, self._config, self.admin_token, 0, self._variables())
        self._slots = Slots(nodes)
        self._supervisor = Supervisor(
            ray, self._slots, spec, self._options, lambda: self._eligible(set(nodes), here), self._restart
        )
        self._supervisor.start(_START_SECONDS)
        return self

    def _eligible(self, first: set[str], here: str) -> list[str]:
        living = eligible_nodes("each_node", self._ray.nodes(), here)
        return living if self._placement == "each_node" else [node for node in living if node in first]

    def _variables(self) -> dict[str, str]:
        names = list(self._environment)
        secret = self._config.session_secret_env
        missing = [name for name in names if name not in os.environ]
        if missing:
            raise ConfigError(f"environment: {', '.join(missing)} not set in this process")
        if secret is not None and secret in os.environ:
            names.append(secret)
        return {name: os.environ[name] for name in names}

    def shutdown(self) -> None:
        """Stop all actors. Idempotent."""
        if self._supervisor is not None:
            self._supervisor.close()

    def __enter__(self) -> Self:
        """Serve for the length of a block."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop all actors."""
        self.shutdown()

    # ------------------------------------------------------------------------------------------ sessions

    def create_session(self, session_id: str | None = None, **settings: Any) -> GatewaySession:
        """A new session on the least-loaded gateway; `settings` are those of SessionSettings.

        Raises GatewayError for settings that cannot be and an id in use, GatewayLostError when no gateway lives.
        """
        return self._run(self._create(session_id, settings))

    async def acreate_session(self, session_id: str | None = None, **settings: Any) -> GatewaySession:
        """`create_session` for an event loop."""
        return await self._arun(self._create(session_id, settings))

    def finalize(self, session_id: str) -> FinishedSession:
        """End a session and read its trajectories. Raises GatewayError, GatewayLostError."""
        return self._run(self._end(session_id, "finalize"))

    async def afinalize(self, session_id: str) -> FinishedSession:
        """`finalize` for an event loop."""
        return await self._arun(self._end(session_id, "finalize"))

    def abort(self, session_id: str, reason: str = "aborted") -> FinishedSession:
        """Give a session up; what it holds comes back all the same. Raises GatewayError, GatewayLostError."""
        return self._run(self._end(session_id, "abort", reason))

    async def aabort(self, session_id: str, reason: str = "aborted") -> FinishedSession:
        """`abort` for an event loop."""
        return await self._arun(self._end(session_id, "abort", reason))

    def set_reward(self, session_id: str, info: Mapping[str, Any]) -> None:
        """Keep what the grader says; a number under `reward` or `score` is the main trajectories' reward."""
        self._run(self._call(session_id, "set_reward", dict(info)))

    async def aset_reward(self, session_id: str, info: Mapping[str, Any]) -> None:
        """`set_reward` for an event loop."""
        await self._arun(self._call(session_id, "set_reward", dict(info)))

    def info(self, session_id: str) -> dict[str, Any]:
        """What can be told of a session, as `GET /sessions/{id}` does. Raises GatewayError, GatewayLostError."""
        return self._run(self._call(session_id, "info"))

    async def ainfo(self, session_id: str) -> dict[str, Any]:
        """`info` for an event loop."""
        return await self._arun(self._call(session_id, "info"))

    def forget(self, session_id: str) -> None:
        """Free what an ended session holds. Raises GatewayError, GatewayLostError."""
        self._run(self._forget(session_id))

    async def aforget(self, session_id: str) -> None:
        """`forget` for an event loop."""
        await self._arun(self._forget(session_id))

    def base_url(self, session_id: str) -> str:
        """Where the session's agent finds it now: the same as at its creation, unless its node was lost."""
        return self._run(self._address(session_id))

    # ------------------------------------------------------------------------------------------ state

    @property
    def urls(self) -> list[str]:
        """The address of each gateway, by number; that of a dead one is where it was."""
        return [slot.url for slot in self._slots.slots]

    @property
    def actors(self) -> list[Any]:
        """The handle of each gateway's actor, by number: another one after a restart. For Ray's own tools."""
        return [slot.actor for slot in self._slots.slots]

    def health(self) -> dict[str, Any]:
        """`status` is `ok` when all gateways live and are well, else `degraded`; `gateways` tells of each."""
        return self._run(self._health())

    async def ahealth(self) -> dict[str, Any]:
        """`health` for an event loop."""
        return await self._arun(self._health())

    # ------------------------------------------------------------------------------------------ plans

    def _create(self, session_id: str | None, settings: Mapping[str, Any]) -> Plan[GatewaySession]:
        if session_id is None:
            return (yield from self._placed(None, settings))
        self._slots.claim(session_id)
        try:
            return (yield from self._placed(session_id, settings))
        finally:
            self._slots.unclaim(session_id)

    def _placed(self, session_id: str | None, settings: Mapping[str, Any]) -> Plan[GatewaySession]:
        deadline = time.monotonic() + _RETURN_SECONDS
        while True:
            place = self._slots.reserve()
            if place is None:
                if not self._running.restarts or time.monotonic() > deadline:
                    raise GatewayLostError(f"no gateway is alive: {self._failures()}")
                yield _POLL_SECONDS
                continue
            session: GatewaySession | None = None
            try:
                session = yield from self._asked(place, "create", session_id, settings)
            finally:
                self._slots.settle(place, None if session is None else session.session_id)
            if session is None and time.monotonic() > deadline:
                raise _unreachable(place)
            if session is not None:
                return session

    def _end(self, session_id: str, method: str, *args: Any) -> Plan[FinishedSession]:
        finished: FinishedSession = yield from self._call(session_id, method, *args)
        self._slots.ended(session_id)
        return finished

    def _forget(self, session_id: str) -> Plan[None]:
        yield from self._call(session_id, "forget")
        self._slots.ended(session_id)
        self._slots.forgotten(session_id)

    def _call(self, session_id: str, method: str, *args: Any) -> Plan[Any]:
        """Ask the process that has the session; when it dies meanwhile, the one that brings the session back."""
        deadline = time.monotonic() + _RETURN_SECONDS
        while True:
            place = yield from self._find(session_id, deadline)
            answer = yield from self._asked(place, method, session_id, *args, wrapped=True)
            if answer is not None:
                return answer.unpack()
            if time.monotonic() > deadline:
                raise _unreachable(place)

    def _asked(self, place: Place, method: str, *args: Any, wrapped: bool = False) -> Plan[Any]:
        """The actor's value (`wrapped`: its Answer); None when it died."""
        errors = self._ray.exceptions
        try:
            answer: Answer = yield getattr(place.actor, method).remote(*args)
        except errors.ActorUnavailableError:
            yield _POLL_SECONDS * 10  # cut off for a moment, or about to be found dead by the watch
            return None
        except errors.RayActorError as error:
            self._running.died(place.slot, place.generation, error)
            return None
        except (errors.GetTimeoutError, TimeoutError) as error:
            raise _unreachable(place) from error
        return answer if wrapped else answer.unpack()

    def _find(self, session_id: str, deadline: float) -> Plan[Place]:
        place = self._slots.where(session_id)
        if place is None:
            place = yield from self._located(session_id)
        while True:
            slot = place.slot
            if slot.alive and slot.generation == place.generation:
                return replace(place, actor=slot.actor)
            where = f"session {session_id} was on the gateway at {slot.url}, whose process died"
            if slot.generation != place.generation:
                raise GatewayLostError(f"{where}; it did not come back", session_id)
            if self._config.journal.folder is None:
                raise GatewayLostError(f"{where}; there is no journal (gateway.journal.folder)", session_id)
            if not self._running.restarts or time.monotonic() > deadline:
                raise GatewayLostError(f"{where} and was not started anew: {slot.failure}", session_id)
            yield _POLL_SECONDS
            place = self._slots.where(session_id) or place

    def _located(self, session_id: str) -> Plan[Place]:
        """The place of a session that opened by its signed key, or was created by another manager."""
        first = owner_of(session_id, len(self._slots.slots) or 1)
        for slot in sorted(self._slots.slots, key=lambda s: s.number != first):
            place = Place(slot, slot.generation, slot.actor)
            if slot.alive and (yield from self._asked(place, "has", session_id)):
                self._slots.found(session_id, place)
                return place
        self._running  # noqa: B018 - raises when there is nothing to ask
        raise GatewayError(ErrorKind.NOT_FOUND, f"there is no session {session_id!r:.80}")

    def _address(self, session_id: str) -> Plan[str]:
        place = yield from self._find(session_id, time.monotonic() + _RETURN_SECONDS)
        return f"{place.slot.url}/sessions/{session_id}"

    def _health(self) -> Plan[dict[str, Any]]:
        places = [Place(slot, slot.generation, slot.actor) for slot in self._slots.slots]
        rows: list[dict[str, Any]] = []
        for place in places:
            slot = place.slot
            said = (yield from self._asked(place, "ping")) if slot.alive else None
            row = {"number": slot.number, "url": slot.url, "node": slot.node, "restarts": max(0, slot.generation - 1)}
            rows.append({**row, "status": "dead", "failure": slot.failure} if said is None else {**row, **said})
        well = bool(rows) and all(row["status"] == "ok" for row in rows)
        sums = {name: sum(row.get(name, 0) for row in rows) for name in ("sessions", "active", "in_flight")}
        return {"status": "ok" if well else "degraded", **sums, "gateways": rows}

    # ------------------------------------------------------------------------------------------ running plans

    @property
    def _running(self) -> Supervisor:
        if self._supervisor is None:
            raise ConfigError("the manager is not started: use it as a context manager, or call start()")
        return self._supervisor

    def _failures(self) -> str:
        return "; ".join(slot.failure for slot in self._slots.slots if slot.failure) or "all were shut down"

    def _run(self, plan: Plan[_T]) -> _T:
        """Carry a plan out, blocking. What goes wrong with a step is the plan's to handle."""
        try:
            step = next(plan)
            while True:
                try:
                    value = time.sleep(step) if isinstance(step, float) else self._ray.get(step, timeout=_CALL_SECONDS)
                except BaseException as error:
                    step = plan.throw(error)
                else:
                    step = plan.send(value)
        except StopIteration as done:
            return done.value

    async def _arun(self, plan: Plan[_T]) -> _T:
        """The same for an event loop."""
        try:
            step = next(plan)
            while True:
                try:
                    if isinstance(step, float):
                        value = await asyncio.sleep(step)
                    else:
                        async with asyncio.timeout(_CALL_SECONDS):
                            value = await step
                except BaseException as error:
                    step = plan.throw(error)
                else:
                    step = plan.send(value)
        except StopIteration as done:
            return done.value


def _unreachable(place: Place) -> GatewayError:
    return GatewayError(ErrorKind.OVERLOADED, f"the gateway at {place.slot.url} does not answer", retry_after=5.0)


def _checked(source: GatewayAppConfig | GatewayFactory, config: GatewayConfig | None) -> GatewayConfig:
    """The configuration of the gateways. Raises ConfigError for what several gateways cannot share."""
    if isinstance(source, GatewayAppConfig):
        if config is not None:
            raise ConfigError("config: a GatewayAppConfig brings its own `gateway`")
        config = source.gateway
    config = config or GatewayConfig()
    if config.processes != 1:
        raise ConfigError("gateway.processes: each actor is one process; use the manager's `count`")
    if config.port != 0:
        raise ConfigError("gateway.port: each actor takes a free port; leave it at 0")
    if config.public_url is not None:
        raise ConfigError("gateway.public_url: each actor has its own address; leave it out")
    return config
