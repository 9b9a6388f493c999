"""A session rebuilt from what was journaled of it."""

from __future__ import annotations

from typing import Any, Protocol

from pydantic import TypeAdapter

from uni_agent.gateway.config import SessionSettings
from uni_agent.gateway.journal import turn_from_json
from uni_agent.gateway.scenario import SessionFacts
from uni_agent.gateway.session import Phase, Session
from uni_agent.tokens.base import Renderer
from uni_agent.tokens.graph import MaskedMatcher, SessionGraph, StrictMatcher
from uni_agent.tokens.graph.session import RendererFor

_FACTS = TypeAdapter(SessionFacts)


class JournaledEntry(Protocol):
    """An entry of a journal, or of a run's store into which a journal was merged."""

    @property
    def seq(self) -> int:
        """Its number; rises within a journal."""
        ...

    @property
    def time(self) -> float:
        """When it was written, in Unix seconds."""
        ...

    @property
    def kind(self) -> str:
        """What it records."""
        ...

    @property
    def session_id(self) -> str:
        """Whose it is."""
        ...

    @property
    def data(self) -> dict[str, Any]:
        """JSON data."""
        ...


def opening_data(
    settings: SessionSettings, api_key: str, reward_key: str, minted: bool, created: float
) -> dict[str, Any]:
    """The data of the entry `session`, from which `opened_session` makes the session again."""
    return {
        "settings": settings.model_dump(mode="json"),
        "api_key": api_key,
        "reward_key": reward_key,
        "minted": minted,
        "created": created,
    }


def opened_session(
    name: str,
    data: dict[str, Any],
    renderer: Renderer,
    *,
    renderer_for: RendererFor | None = None,
    settings: SessionSettings | None = None,
) -> Session:
    """The session of an entry `session`, without a turn. `settings` take the place of those in `data`.

    Raises ValueError or KeyError for other data.
    """
    if settings is None:
        settings = SessionSettings.model_validate(data["settings"])
    matcher = MaskedMatcher() if settings.matcher == "masked" else StrictMatcher()
    graph = SessionGraph(name, renderer, matcher=matcher, renderer_for=renderer_for, thinking=settings.thinking)
    created = data["created"]
    return Session(name, graph, settings, data["api_key"], data["reward_key"], data["minted"], created, created)


def replay_entry(session: Session, entry: JournaledEntry) -> None:
    """Bring `session` to where it stood after `entry`, one of its `turn`, `drop`, `reward` and `phase` entries.

    Nothing is rendered. Kinds that are not known are passed over. Raises ValueError, KeyError or TypeError for data
    that the gateway did not write, and ModelError for a turn behind the session's end.
    """
    data = entry.data
    session.last_used = entry.time
    if entry.kind == "turn":
        turn = session.graph.restore(turn_from_json(data["record"]))
        session.sampled += len(turn.ids)
        for reason, count in data.get("dropped", {}).items():
            session.graph.record_drop(reason, count)
            session.sampled += count
        if data["response_id"]:
            session.responses[data["response_id"]] = (turn, data["instructions"])
        if "facts" in data:
            session.facts = session.recorded_facts = _FACTS.validate_python(data["facts"])
        session.scenarios[turn.tag] = session.scenarios.get(turn.tag, 0) + 1
    elif entry.kind == "drop":
        session.graph.record_drop(data["reason"], data["count"])
        session.sampled += data["count"]
    elif entry.kind == "reward":
        session.reward_info = data["info"]
    elif entry.kind == "phase":
        session.end(Phase(data["phase"]), data["reason"], data["ended"])
        session.limit_hit = data.get("limit", "")
        session.end_recorded = True
