"""All sessions of one process: opened, found by key, ended, forgotten, and rebuilt from the journal."""

from __future__ import annotations

import asyncio
import heapq
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import ValidationError

from uni_agent.errors import StoreError
from uni_agent.gateway.canonical import FinishedTurn, ModelRequest
from uni_agent.gateway.config import GatewayConfig, SessionSettings
from uni_agent.gateway.errors import ErrorKind, GatewayError, invalid
from uni_agent.gateway.finished import FinishedSession, finished_session
from uni_agent.gateway.journal import Entry, Journal, read_journal, turn_to_json
from uni_agent.gateway.keys import KeyKind, key_digest, random_key, read_key, signed_key
from uni_agent.gateway.metrics import GatewayMetrics
from uni_agent.gateway.replay import opened_session, opening_data, replay_entry
from uni_agent.gateway.session import Cursor, Phase, Session
from uni_agent.tokens.base import Renderer
from uni_agent.tokens.graph import Turn, turn_record
from uni_agent.tokens.graph.session import RendererFor

_log = logging.getLogger(__name__)

_REMEMBERED = 100_000
"""Ids of forgotten sessions that are still known as such: a signed key must not open them again."""

_FORGOTTEN = "?forgotten-"
"""Begins the name under which a compacted journal lists forgotten sessions; no session id begins so."""

_FORGOTTEN_PAGE = 1000

_MOST_REWARD = 10**300
"""Whole numbers from here on may have no float."""

_SETTLE_SECONDS = 5.0
"""How long the end of a session waits for its cancelled turns."""


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """A new session and its two keys, which are not kept and cannot be asked for again."""

    session_id: str
    api_key: str
    reward_key: str


class Sessions:
    """The sessions of one process. Belongs to one event loop.

    `owns` says whether this process is responsible for an id; ids that are minted here always are.
    """

    def __init__(
        self,
        config: GatewayConfig,
        renderer: Renderer,
        metrics: GatewayMetrics,
        *,
        journal: Journal | None = None,
        secret: bytes | None = None,
        renderer_for: RendererFor | None = None,
        owns: Callable[[str], bool] = lambda _: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._renderer = renderer
        self._renderer_for = renderer_for
        self._metrics = metrics
        self._journal = journal
        self._secret = secret
        self._owns = owns
        self._clock = clock
        self._tagger = config.scenarios.build()
        self._sessions: dict[str, Session] = {}
        self._forgotten: OrderedDict[str, None] = OrderedDict()
        self._litter = False

    def __len__(self) -> int:
        return len(self._sessions)

    # ------------------------------------------------------------------------------------------ opening

    def open(self, session_id: str | None = None, settings: Mapping[str, Any] | None = None) -> OpenedSession:
        """A new session. Raises GatewayError for an id in use, settings that cannot be, and when there are too many."""
        minted = session_id is None
        name = self._minted() if session_id is None else session_id
        if name in self._sessions or name in self._forgotten:
            raise invalid(f"session {name!r} exists; session ids are used once", "session_id")
        try:
            keys = self._key("api", name), self._key("reward", name)
        except ValueError as error:
            raise invalid(str(error), "session_id") from error
        self._start(name, self._settings(settings or {}), key_digest(keys[0]), key_digest(keys[1]), minted)
        return OpenedSession(name, *keys)

    def _minted(self) -> str:
        while True:
            name = f"s-{secrets.token_hex(16)}"
            if self._owns(name):
                return name

    def _key(self, kind: KeyKind, session_id: str) -> str:
        return signed_key(self._secret, kind, session_id) if self._secret else random_key(kind, session_id)

    def _settings(self, data: Mapping[str, Any]) -> SessionSettings:
        base = self._config.session.model_dump()
        for key, value in data.items():
            if isinstance(base.get(key), dict) and isinstance(value, dict):
                base[key] = {**base[key], **value}
            else:
                base[key] = value
        try:
            return SessionSettings.model_validate(base)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise invalid(f"{where}: {first['msg']}", where) from error

    def _start(self, name: str, settings: SessionSettings, api: str, reward: str, minted: bool) -> Session:
        if len(self._sessions) >= self._config.max_sessions:
            self._sweep_ended(0.0)
        if len(self._sessions) >= self._config.max_sessions:
            raise GatewayError(
                ErrorKind.RATE_LIMITED,
                f"the gateway holds {len(self._sessions)} sessions, the most it may; finalize some",
                retry_after=10.0,
            )
        data = opening_data(settings, api, reward, minted, self._clock())
        session = self._built(name, data, settings)
        self.check_writable()
        self._write("session", name, data)
        self._sessions[name] = session
        self._metrics.sessions.labels("opened").inc()
        self._metrics.active.inc()
        return session

    def _built(self, name: str, data: dict[str, Any], settings: SessionSettings | None = None) -> Session:
        session = opened_session(name, data, self._renderer, renderer_for=self._renderer_for, settings=settings)
        session.on_drop = lambda reason, count: self._dropped(session, reason, count)
        return session

    # ------------------------------------------------------------------------------------------ finding

    def get(self, session_id: str) -> Session:
        """The session. Raises GatewayError when there is none."""
        session = self._sessions.get(session_id)
        if session is None:
            if session_id in self._forgotten:
                raise GatewayError(ErrorKind.GONE, f"session {session_id} has ended and is no longer kept")
            raise GatewayError(ErrorKind.NOT_FOUND, f"there is no session {session_id!r:.80}")
        return self._unless_expired(session)

    def by_key(self, text: str, kind: KeyKind = "api") -> Session:
        """The session that a key opens; under a shared secret it is created. Raises GatewayError."""
        key = read_key(text)
        wrong = GatewayError(ErrorKind.AUTHENTICATION, "the API key is no session key of this gateway")
        if key is None:
            raise wrong
        if key.kind != kind:
            raise GatewayError(ErrorKind.PERMISSION, f"this key is a {key.kind} key; a {kind} key is needed here")
        session = self._sessions.get(key.session_id)
        if session is None:
            if not self._signed(text, kind, key.session_id):
                raise wrong
            if key.session_id in self._forgotten:
                raise GatewayError(ErrorKind.GONE, f"session {key.session_id} has ended and is no longer kept")
            other = [signed_key(self._secret or b"", k, key.session_id) for k in ("api", "reward")]
            return self._start(
                key.session_id, self._config.session, key_digest(other[0]), key_digest(other[1]), minted=False
            )
        known = session.api_key if kind == "api" else session.reward_key
        if not secrets.compare_digest(known, key_digest(text)):
            raise wrong
        return self._unless_expired(session)

    def _unless_expired(self, session: Session) -> Session:
        """`session`, ended when its time is over: a request behind the last sweep does not bring it back to life."""
        idle = session.phase is Phase.ACTIVE and not session.in_flight
        if idle and self._clock() - session.last_used > session.settings.ttl:
            self._close(session, Phase.ABORTED, "expired")  # the next sweep records it
        return session

    def _close(self, session: Session, phase: Phase, reason: str) -> None:
        session.end(phase, reason, self._clock())
        self._metrics.sessions.labels(phase.value).inc()
        self._metrics.active.dec()

    def _signed(self, text: str, kind: KeyKind, session_id: str) -> bool:
        return self._secret is not None and secrets.compare_digest(signed_key(self._secret, kind, session_id), text)

    def page(self, after: Cursor, limit: int) -> tuple[list[Session], bool]:
        """At most `limit` sessions behind `after`, in the order of their cursors, and whether there are more."""
        behind = (session for session in self._sessions.values() if session.cursor > after)
        found = heapq.nsmallest(limit + 1, behind, key=lambda session: session.cursor)
        return found[:limit], len(found) > limit

    # ------------------------------------------------------------------------------------------ turns

    def tag(self, session: Session, request: ModelRequest) -> str:
        """What the request is for; the session remembers it."""
        tag = self._tagger.tag(request, session.facts)
        session.facts = session.facts.after(request, tag)
        session.note(request, tag.scenario.value)
        self._metrics.scenarios.labels(tag.scenario.value).inc()
        return tag.scenario.value

    def record(
        self,
        session: Session,
        turn: Turn,
        finished: FinishedTurn,
        request: ModelRequest,
        dropped: Mapping[str, int],
    ) -> None:
        """Keep a committed turn: in the journal, and under the id that its client was given.

        `dropped` are its sampled tokens that are no part of it; they stand in the same entry, so that a kill between
        two entries counts neither without the other.
        """
        response = f"resp_{finished.head.id}" if request.wire.protocol == "openai_responses" else ""
        if response:
            session.responses[response] = (turn, request.instructions)
        session.last_used = self._clock()
        data: dict[str, Any] = {"record": turn_to_json(turn_record(turn)), "response_id": response}
        if response:
            data["instructions"] = request.instructions
        if dropped:
            data["dropped"] = dict(dropped)
        if session.facts != session.recorded_facts:
            data["facts"], session.recorded_facts = asdict(session.facts), session.facts
        try:
            self._write("turn", session.id, data)
        except StoreError as error:
            # The record waits in memory and is written before any other; the client asks again meanwhile.
            raise GatewayError(
                ErrorKind.OVERLOADED, f"the journal cannot be written: {error}", retry_after=5
            ) from error

    def _dropped(self, session: Session, reason: str, count: int) -> None:
        try:
            self._write("drop", session.id, {"reason": reason, "count": count})
        except StoreError as error:
            _log.error("%s", error)

    # ------------------------------------------------------------------------------------------ ending

    def set_reward(self, session: Session, info: Mapping[str, Any]) -> None:
        """Keep the reward of a session that is not forgotten; the last one counts. Raises GatewayError, StoreError."""
        for name in ("reward", "score"):
            value = info.get(name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise invalid(f"{name}: expected a number, got {str(value)[:80]!r}", name)
            if isinstance(value, int) and abs(value) >= _MOST_REWARD:
                raise invalid(f"{name}: the number is too large", name)
        self.check_writable()
        try:
            self._write("reward", session.id, {"info": dict(info)})
        except ValueError as error:
            raise invalid(f"reward_info: {error}") from error
        session.reward_info = dict(info)

    async def finalize(self, session: Session) -> None:
        """End the session; `export` then always gives the same. Idempotent. Raises GatewayError for an aborted one."""
        if session.phase is Phase.ABORTED:
            raise GatewayError(ErrorKind.GONE, f"session {session.id} was aborted ({session.reason})")
        await self._end(session, Phase.FINALIZED, "finalized")

    async def abort(self, session: Session, reason: str = "aborted") -> None:
        """Give the session up; what it holds stays readable. Idempotent. Raises GatewayError for a finalized one."""
        if session.phase is Phase.FINALIZED:
            raise GatewayError(ErrorKind.GONE, f"session {session.id} was finalized")
        await self._end(session, Phase.ABORTED, reason)

    async def _end(self, session: Session, phase: Phase, reason: str) -> None:
        """End the session, or finish what an earlier call began: whoever returns leaves a session that is final.

        Raises StoreError while the journal cannot be written; the session takes no turns then, but its end may be
        forgotten by a restart, so the caller has to ask again.
        """
        if session.phase is Phase.ACTIVE:
            self._close(session, phase, reason)
        async with session.settling:
            current = asyncio.current_task()
            pending = [task for task in session.in_flight if task is not current]
            if pending:
                await asyncio.wait(pending, timeout=_SETTLE_SECONDS)
            if session.end_recorded:
                self.check_writable()
                return
            session.end_recorded = True
            data = {"phase": session.phase.value, "reason": session.reason, "ended": session.ended}
            self._write("phase", session.id, {**data, "limit": session.limit_hit})

    def export(self, session: Session) -> FinishedSession:
        """What the session holds now."""
        return finished_session(session)

    def forget(self, session: Session) -> None:
        """Let go of a session that has ended. Raises GatewayError for an active one."""
        if session.phase is Phase.ACTIVE:
            raise GatewayError(ErrorKind.INVALID_REQUEST, f"session {session.id} is active: finalize or abort it first")
        self.check_writable()  # what waits in memory may wait for long: it is not added to at each sweep
        self._write("forgotten", session.id, {})
        self._drop(session.id)

    def _drop(self, session_id: str) -> None:
        session = self._sessions.pop(session_id)
        if not session.lock.locked():  # else somebody is still reading it
            session.graph.discard()
        self._remember(session_id)

    def _remember(self, session_id: str) -> None:
        self._forgotten[session_id] = None
        while len(self._forgotten) > _REMEMBERED:
            self._forgotten.popitem(last=False)

    async def sweep(self) -> None:
        """Abort sessions that nobody uses any more, and forget those that ended long ago. Raises StoreError."""
        self.check_writable()
        moment = self._clock()
        for session in list(self._sessions.values()):
            idle = session.phase is Phase.ACTIVE and not session.in_flight
            if idle and moment - session.last_used > session.settings.ttl:
                await self._end(session, Phase.ABORTED, "expired")
            elif session.phase is not Phase.ACTIVE and not session.end_recorded:  # whoever ended it was cut off
                await self._end(session, session.phase, session.reason)
        self._sweep_ended(self._config.retention)

    def _sweep_ended(self, retention: float) -> None:
        moment = self._clock()
        for session in list(self._sessions.values()):
            if session.end_recorded and session.ended is not None and moment - session.ended >= retention:
                self.forget(session)

    # ------------------------------------------------------------------------------------------ durability

    def _write(self, kind: str, session_id: str, data: dict[str, Any]) -> None:
        if self._journal is None:
            return
        try:
            self._journal.append(kind, session_id, data)
        except StoreError:
            self._metrics.journal_failures.inc()
            raise

    def check_writable(self) -> None:
        """Write what waits for the journal. Raises StoreError while the disk refuses it."""
        if self._journal is not None and not self._journal.healthy:
            try:
                self._journal.flush()
            except StoreError:
                self._metrics.journal_failures.inc()
                raise

    @property
    def healthy(self) -> bool:
        """Whether everything that was committed is in the journal, or there is none."""
        return self._journal is None or self._journal.healthy

    def restore(self) -> int:
        """Rebuild the sessions of the journal, which nobody writes meanwhile; how many there are. Raises StoreError."""
        journal, self._journal = self._journal, None
        if journal is None:
            return 0
        try:
            for entry in read_journal(journal.path):
                self._replay(entry)
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{journal.path}: a record cannot be read: {error}") from error
        finally:
            self._journal = journal
        active = sum(session.phase is Phase.ACTIVE for session in self._sessions.values())
        self._metrics.active.set(active)
        if self._litter:
            self._compact(journal)
        return len(self._sessions)

    def _compact(self, journal: Journal) -> None:
        """Leave out what belongs to forgotten sessions; their ids go on in one entry, since none is used twice."""
        self._litter = False
        names = list(self._forgotten)
        pages = [names[i : i + _FORGOTTEN_PAGE] for i in range(0, len(names), _FORGOTTEN_PAGE)]
        generation = f"{_FORGOTTEN}{journal.next_seq}"
        try:
            for page in pages:
                journal.append("forgotten_ids", generation, {"ids": page})
            journal.compact({*self._sessions, generation})
        except StoreError as error:  # a full disk is no reason not to serve
            _log.error("%s", error)

    def _replay(self, entry: Entry) -> None:
        data, name = entry.data, entry.session_id
        if entry.kind == "forgotten_ids":
            for one in data["ids"]:
                self._remember(one)
            return
        if entry.kind == "session":
            self._sessions[name] = self._built(name, data)
            return
        session = self._sessions.get(name)
        if session is None:
            return
        if entry.kind == "forgotten":
            self._litter = True
            self._drop(name)
        else:
            replay_entry(session, entry)
