"""One session: a graph, who may use it, and how far it has come."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from uni_agent.gateway.canonical import ModelRequest
from uni_agent.gateway.config import SessionSettings
from uni_agent.gateway.errors import ErrorKind, GatewayError
from uni_agent.gateway.scenario import SessionFacts
from uni_agent.tokens.graph import SessionGraph, Turn
from uni_agent.tokens.graph.nodes import chain_messages
from uni_agent.types import Message

_MOST_IGNORED = 256
"""Different wishes that are counted by name."""


class Phase(StrEnum):
    """Where a session stands. Nothing leads back to `active`."""

    ACTIVE = "active"
    """Turns are sampled and committed."""
    FINALIZED = "finalized"
    """Its trajectories are final."""
    ABORTED = "aborted"
    """Given up; what was committed can still be read."""


Cursor = tuple[float, str]
"""Time of creation and id: the place of a session in lists, the same in all processes. `FIRST` is before all."""

FIRST: Cursor = (0.0, "")


def _nothing(reason: str, count: int) -> None:
    """A session whose drops nobody writes down."""
    del reason, count


@dataclass(slots=True)
class Session:
    """The state of one session. All of it belongs to the gateway's event loop.

    `api_key` and `reward_key` are digests of the keys. `minted` says that the gateway chose the id, which then is as
    hard to guess as a key. `responses` maps the ids that clients were given for turns to (turn, how many of the chain's
    first messages were instructions). `reason` is why the phase was left. `facts` is what the scenario rules know.
    `settling` is held while the session comes to its end, `end_recorded` says that the journal was given it.
    """

    id: str
    graph: SessionGraph
    settings: SessionSettings
    api_key: str
    reward_key: str
    minted: bool
    created: float
    last_used: float
    phase: Phase = Phase.ACTIVE
    reason: str = ""
    reward_info: dict[str, Any] | None = None
    responses: dict[str, tuple[Turn, int]] = field(default_factory=dict[str, tuple[Turn, int]])
    ignored: dict[str, int] = field(default_factory=dict[str, int])
    scenarios: dict[str, int] = field(default_factory=dict[str, int])
    errors: dict[str, int] = field(default_factory=dict[str, int])
    sampled: int = 0
    requests: int = 0
    limit_hit: str = ""
    in_flight: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    facts: SessionFacts = field(default_factory=SessionFacts)
    recorded_facts: SessionFacts | None = None
    ended: float | None = None
    end_recorded: bool = False
    settling: asyncio.Lock = field(default_factory=asyncio.Lock)
    on_drop: Callable[[str, int], None] = _nothing

    @property
    def cursor(self) -> Cursor:
        """Where it stands in lists of sessions."""
        return self.created, self.id

    def check_active(self) -> None:
        """Raises GatewayError when no turn can be taken any more."""
        if self.phase is not Phase.ACTIVE:
            raise GatewayError(ErrorKind.GONE, f"session {self.id} is {self.phase} ({self.reason})")

    def admit(self) -> None:
        """Raises GatewayError when the session may not take a turn now, or ever again."""
        self.check_active()
        self.check_budget()
        if self.requests >= self.settings.max_concurrent:
            raise GatewayError(
                ErrorKind.RATE_LIMITED,
                f"session {self.id} has {self.settings.max_concurrent} requests in flight, the most it may have",
                retry_after=1.0,
            )

    def check_budget(self) -> None:
        """Raises GatewayError when the session has used up its turns or its tokens."""
        settings = self.settings
        if settings.max_turns is not None and len(self.graph.turns) >= settings.max_turns:
            self.limit_hit = "max_turns"
            raise GatewayError(ErrorKind.BUDGET, f"session {self.id} has used its {settings.max_turns} turns")
        if settings.max_sampled_tokens is not None and self.sampled >= settings.max_sampled_tokens:
            self.limit_hit = "max_sampled_tokens"
            raise GatewayError(
                ErrorKind.BUDGET, f"session {self.id} has used its {settings.max_sampled_tokens} sampled tokens"
            )

    def history(self, response_id: str) -> list[Message]:
        """The conversation up to an earlier response, without its instructions. Raises GatewayError for unknown ids."""
        known = self.responses.get(response_id)
        if known is None:
            raise GatewayError(
                ErrorKind.NOT_FOUND,
                f"Previous response with id {response_id!r} not found.",
                param="previous_response_id",
            )
        turn, instructions = known
        return chain_messages(turn)[instructions:]

    @contextlib.contextmanager
    def counting_errors(self) -> Generator[None]:
        """Count a turn that fails, by its kind; one that its client left is `disconnected`."""
        kind = ""
        try:
            yield
        except GatewayError as error:
            kind = error.kind.value
            raise
        except asyncio.CancelledError:
            kind = "disconnected"
            raise
        finally:
            if kind:
                self.errors[kind] = self.errors.get(kind, 0) + 1

    def note(self, request: ModelRequest, scenario: str) -> None:
        """Count what the request is, and what of it is not done."""
        self.scenarios[scenario] = self.scenarios.get(scenario, 0) + 1
        for name in request.ignored:
            if name in self.ignored or len(self.ignored) < _MOST_IGNORED:  # clients choose some of these names
                self.ignored[name] = self.ignored.get(name, 0) + 1

    def end(self, phase: Phase, reason: str, now: float) -> None:
        """Leave `active`: what is under way is cancelled and cannot be committed."""
        self.phase, self.reason, self.ended = phase, reason, now
        self.graph.close()
        for task in self.in_flight:
            task.cancel()

    def info(self) -> dict[str, Any]:
        """What can be told of the session: no keys, no text."""
        account = self.graph.account(abandoned=self.settings.abandoned)
        return {
            "session_id": self.id,
            "phase": self.phase.value,
            "reason": self.reason,
            "created": self.created,
            "last_used": self.last_used,
            "in_flight": self.requests,
            "turns": len(self.graph.turns),
            "reward_info": self.reward_info,
            "metadata": self.settings.metadata,
            "limit_hit": self.limit_hit,
            "scenarios": dict(self.scenarios),
            "ignored": dict(self.ignored),
            "errors": dict(self.errors),
            "accounting": accounting(account),
        }


def accounting(account: Any) -> dict[str, Any]:
    """A GraphAccount as JSON data."""
    drift: Mapping[str, int] = account.drift
    return {
        **account.tokens.to_dict(),
        "turns": account.turns,
        "trees": account.trees,
        "branches": account.branches,
        "siblings": account.siblings,
        "abandoned": account.abandoned,
        "rewrites": account.rewrites,
        "drift": dict(drift),
    }
