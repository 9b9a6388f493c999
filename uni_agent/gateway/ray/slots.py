"""Which gateways there are, how much they do, and where each session is. Used from any thread."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from uni_agent.gateway.errors import invalid
from uni_agent.gateway.ray.actor import Started

_ENDED = 100_000
"""Ended sessions whose place is remembered; older ones are looked for."""


@dataclass(slots=True)
class Slot:
    """One gateway. Its process may be replaced: `generation` counts them.

    `active` counts sessions that go on, `reserved` those that are being created. `changes` counts what the manager did
    to either, so that an older reading of the actor does not undo it. `silent` counts pings without an answer.
    """

    number: int
    node: str
    actor: Any = None
    url: str = ""
    port: int = 0
    generation: int = 0
    alive: bool = False
    active: int = 0
    reserved: int = 0
    created: int = 0
    changes: int = 0
    silent: int = 0
    failures: int = 0
    retry_at: float = 0.0
    failure: str = ""
    starting: tuple[Any, Any, str] | None = None
    """Actor, reference to its start, node: while a process is coming up."""


@dataclass(frozen=True, slots=True)
class Place:
    """The process that a session lives in. `actor` is its handle, `generation` that of the slot then."""

    slot: Slot
    generation: int
    actor: Any = field(repr=False)


class Slots:
    """The slots, and the sessions in them."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self.slots = [Slot(number, node) for number, node in enumerate(nodes)]
        self._lock = threading.Lock()
        self._placed: dict[str, tuple[int, int]] = {}
        self._ended: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._claimed: set[str] = set()

    # ------------------------------------------------------------------------------------------ sessions

    def claim(self, session_id: str) -> None:
        """Keep an id that a caller chose for it. Raises GatewayError for one that is known."""
        with self._lock:
            if session_id in self._placed or session_id in self._ended or session_id in self._claimed:
                raise invalid(f"session {session_id!r} exists; session ids are used once", "session_id")
            self._claimed.add(session_id)

    def unclaim(self, session_id: str) -> None:
        """The end of a claim: the session exists, or could not be made."""
        with self._lock:
            self._claimed.discard(session_id)

    def reserve(self) -> Place | None:
        """A place for one more session in the living process with the fewest; None when none lives."""
        with self._lock:
            living = [slot for slot in self.slots if slot.alive]
            if not living:
                return None
            slot = min(living, key=lambda s: (s.silent > 0, s.active + s.reserved, s.created, s.number))
            slot.reserved += 1
            slot.created += 1
            slot.changes += 1
            return Place(slot, slot.generation, slot.actor)

    def settle(self, place: Place, session_id: str | None) -> None:
        """What became of a reserved place: the new session, or nothing."""
        slot = place.slot
        with self._lock:
            slot.reserved -= 1
            slot.changes += 1
            if session_id is not None:
                self._placed[session_id] = (slot.number, place.generation)
                slot.active += slot.generation == place.generation

    def found(self, session_id: str, place: Place) -> None:
        """A session that this manager did not create is there."""
        with self._lock:
            if session_id not in self._placed:
                self._ended[session_id] = (place.slot.number, place.generation)

    def where(self, session_id: str) -> Place | None:
        """Where a session is, or was; None for one that is not known."""
        with self._lock:
            known = self._placed.get(session_id) or self._ended.get(session_id)
            if known is None:
                return None
            slot = self.slots[known[0]]
            return Place(slot, known[1], slot.actor)

    def ended(self, session_id: str) -> None:
        """The session goes on no more; it can still be read."""
        with self._lock:
            known = self._placed.pop(session_id, None)
            if known is None:
                return
            self._ended[session_id] = known
            while len(self._ended) > _ENDED:
                self._ended.popitem(last=False)
            slot = self.slots[known[0]]
            if slot.generation == known[1]:
                slot.active = max(0, slot.active - 1)
                slot.changes += 1

    def forgotten(self, session_id: str) -> None:
        """The session is no more."""
        with self._lock:
            self._ended.pop(session_id, None)

    # ------------------------------------------------------------------------------------------ processes

    def gone(self, slot: Slot, generation: int, why: str) -> None:
        """The process of that generation is dead."""
        with self._lock:
            if slot.generation == generation and slot.alive:
                slot.alive, slot.failure, slot.retry_at = False, why, 0.0

    def measured(self, slot: Slot, generation: int, changes: int, health: Mapping[str, Any]) -> None:
        """What an actor said of itself, when `changes` stood at that number."""
        with self._lock:
            if slot.generation != generation:
                return
            slot.silent = 0
            if slot.changes == changes:
                slot.active = health["active"]

    def up(self, slot: Slot, actor: Any, node: str, started: Started) -> None:
        """A new process serves; the sessions that it brought back are in it, those of its forerunner are lost."""
        back = set(started.sessions)
        with self._lock:
            before = slot.generation
            slot.generation += 1
            slot.actor, slot.node, slot.url, slot.port = actor, node, started.url, started.port
            slot.active, slot.silent, slot.failures, slot.failure = started.active, 0, 0, ""
            slot.alive, slot.starting = True, None
            for known in (self._placed, self._ended):
                for session_id, (number, generation) in known.items():
                    if (number, generation) == (slot.number, before) and session_id in back:
                        known[session_id] = (number, slot.generation)
