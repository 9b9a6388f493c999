"""Starts the actors, watches them, and starts anew those that die."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from uni_agent.errors import UniAgentError
from uni_agent.gateway.ray.actor import GatewayActor
from uni_agent.gateway.ray.slots import Slot, Slots
from uni_agent.gateway.ray.source import GatewaySpec

_log = logging.getLogger(__name__)

_WATCH_SECONDS = 1.0
_STARTING_SECONDS = 0.1
_PING_SECONDS = 10.0
_CLOSE_SECONDS = 10.0
_MOST_WAIT = 30.0
_SAME_PORT_TRIES = 8


@dataclass(frozen=True, slots=True)
class ActorOptions:
    """What Ray is asked for, for each actor."""

    num_cpus: float = 1.0
    resources: Mapping[str, float] | None = None
    runtime_env: Mapping[str, Any] | None = None


class Supervisor:
    """The processes behind `slots`, of the module `ray`.

    `spec` is for each process, but for its number. `nodes` tells which nodes may be used now.
    """

    def __init__(
        self,
        ray: Any,
        slots: Slots,
        spec: GatewaySpec,
        options: ActorOptions,
        nodes: Callable[[], list[str]],
        restart: bool,
    ) -> None:
        self._ray = ray
        self._slots = slots
        self._spec = spec
        self._options = options
        self._nodes = nodes
        self._restart = restart
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, timeout: float) -> None:
        """Start all actors; returns when all listen. Raises what the first failure raises, with none left running."""
        ray = self._ray
        try:
            refs = [self._begin(slot)[1] for slot in self._slots.slots]
            _, late = ray.wait(refs, num_returns=len(refs), timeout=timeout)
            if late:
                raise UniAgentError(
                    f"{len(late)} of {len(refs)} gateway actors did not start within {timeout:g} s: "
                    "see `ray status` for what the cluster has no room for"
                )
            for slot, ref in zip(self._slots.slots, refs, strict=True):
                started = self._got(ref).unpack()
                self._slots.up(slot, slot.starting[0] if slot.starting else None, slot.node, started)
        except BaseException:
            self.close()
            raise
        self._thread = threading.Thread(target=self._watch, name="gateway manager", daemon=True)
        self._thread.start()

    @property
    def restarts(self) -> bool:
        """Whether a dead process is replaced."""
        return self._restart and not self._stop.is_set()

    def wake(self) -> None:
        """Look now: something died."""
        self._wake.set()

    def close(self) -> None:
        """Stop all actors, with force where they do not listen. Idempotent."""
        ray = self._ray
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        actors = [slot.actor for slot in self._slots.slots if slot.alive]
        actors += [slot.starting[0] for slot in self._slots.slots if slot.starting is not None]
        for slot in self._slots.slots:
            slot.alive, slot.starting = False, None
        if not actors or not ray.is_initialized():
            return
        refs = [actor.close.remote() for actor in actors]
        ray.wait(refs, num_returns=len(refs), timeout=_CLOSE_SECONDS)
        for actor in actors:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(actor)

    # ------------------------------------------------------------------------------------------ starting

    def _begin(self, slot: Slot) -> tuple[Any, Any, str]:
        """Ask for a new process. On the node of the one before it takes that one's port: agents know it."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node = self._node(slot)
        port = slot.port if node == slot.node and slot.failures < _SAME_PORT_TRIES else 0
        options: dict[str, Any] = {
            "num_cpus": self._options.num_cpus,
            "max_restarts": 0,
            "max_concurrency": 10_000,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
        }
        if self._options.resources:
            options["resources"] = dict(self._options.resources)
        if self._options.runtime_env:
            options["runtime_env"] = dict(self._options.runtime_env)
        spec = replace(self._spec, number=slot.number, port=port)
        actor = self._ray.remote(GatewayActor).options(**options).remote(spec)
        slot.starting = (actor, actor.start.remote(), node)
        return slot.starting

    def _node(self, slot: Slot) -> str:
        """The node that it was on, for its journal's sake; another when that one is gone."""
        nodes = self._nodes()
        return slot.node if not nodes or slot.node in nodes else nodes[slot.number % len(nodes)]

    def _got(self, ref: Any) -> Any:
        ray = self._ray
        try:
            return ray.get(ref, timeout=_PING_SECONDS)
        except ray.exceptions.RayError as error:
            raise UniAgentError(f"a gateway actor failed: {error}") from error

    # ------------------------------------------------------------------------------------------ watching

    def _watch(self) -> None:
        ray = self._ray
        while not self._stop.is_set():
            starting = any(slot.starting for slot in self._slots.slots)
            self._wake.wait(_STARTING_SECONDS if starting else _WATCH_SECONDS)
            self._wake.clear()
            if self._stop.is_set() or not ray.is_initialized():
                return
            try:
                self._ping()
                for slot in self._slots.slots:
                    self._revive(slot)
            except Exception:  # the watch goes on whatever happens to Ray meanwhile
                _log.exception("watching the gateway actors failed")

    def _ping(self) -> None:
        ray = self._ray
        asked: dict[Any, tuple[Slot, int, int]] = {}
        for slot in self._slots.slots:
            if slot.alive:
                changes, generation = slot.changes, slot.generation
                asked[slot.actor.ping.remote()] = (slot, generation, changes)
        if not asked:
            return
        ready, silent = ray.wait(list(asked), num_returns=len(asked), timeout=_PING_SECONDS)
        for ref in silent:
            asked[ref][0].silent += 1
        for ref in ready:
            slot, generation, changes = asked[ref]
            try:
                self._slots.measured(slot, generation, changes, ray.get(ref).unpack())
            except ray.exceptions.ActorUnavailableError:
                slot.silent += 1
            except ray.exceptions.RayActorError as error:
                self.died(slot, generation, error)

    def died(self, slot: Slot, generation: int, error: BaseException) -> None:
        """Note that a process is dead, once."""
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if slot.alive and slot.generation == generation:
            _log.error("gateway actor %d at %s died: %s", slot.number, slot.url, why)
        self._slots.gone(slot, generation, why)
        self._wake.set()

    def _revive(self, slot: Slot) -> None:
        ray = self._ray
        if slot.alive or not self._restart:
            return
        if slot.starting is None:
            if time.monotonic() >= slot.retry_at:
                self._begin(slot)
            return
        actor, ref, node = slot.starting
        if not ray.wait([ref], timeout=0)[0]:
            return
        try:
            started = self._got(ref).unpack()
        except UniAgentError as error:
            slot.starting = None
            slot.failures += 1
            slot.retry_at = time.monotonic() + min(_MOST_WAIT, 0.25 * 2**slot.failures)
            slot.failure = str(error)
            ray.kill(actor)
            _log.error("gateway actor %d could not be started anew: %s", slot.number, error)
            return
        self._slots.up(slot, actor, node, started)
        _log.warning(
            "gateway actor %d was started anew at %s; %d sessions came back",
            slot.number,
            slot.url,
            len(started.sessions),
        )
