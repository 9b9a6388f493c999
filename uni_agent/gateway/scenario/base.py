"""Tags, what rules look at, and what is remembered of a session to tag the next request."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from uni_agent.gateway.canonical import ModelRequest
from uni_agent.gateway.scenario import wire

_EDGE = 120
"""Two system prompts that begin or end with the same characters are taken for versions of one."""
_MOST_OPENINGS = 512
"""So many openings of sub-agents are remembered, the newest."""

_MOST_SYSTEMS = 64
"""So many system prompts of the main conversation are remembered: some agents write theirs anew for each turn."""


class Scenario(StrEnum):
    """What a request is for."""

    MAIN = "main"
    """The agent's own conversation: what no rule claims."""
    SUB_AGENT = "sub_agent"
    """A conversation that the agent started for a part of its task."""
    COMPACTION = "compaction"
    """Asks for the text that replaces a history which has grown too long."""
    SUMMARY = "summary"
    """Asks for a summary of a page or a text."""
    TITLE = "title"
    """Asks for the name of a conversation."""
    SEARCH = "search"
    """Asks the endpoint to run a web search."""
    MEMORY = "memory"
    """Asks what is worth remembering after the task."""
    COUNT = "count"
    """Asks how many tokens a request has; nothing is sampled."""
    HEARTBEAT = "heartbeat"
    """A probe of the endpoint, or a periodic wake-up that works on no task."""
    UNKNOWN = "unknown"
    """Beside the main conversation, for a purpose that no rule knows."""


@dataclass(frozen=True, slots=True)
class Tag:
    """One request's scenario, the `rule` that said so, and the client's own name of the conversation, or ""."""

    scenario: Scenario
    rule: str
    conversation: str


@dataclass(frozen=True, slots=True)
class View:
    """One request, as rules look at it.

    `system` is the text in front of the conversation, `first_user` the first user message. `last` are the texts of the
    last entry that the client sent, one for each part. `fresh`: the model has said nothing yet. `tools`: some are
    offered.
    """

    request: ModelRequest
    headers: Mapping[str, str]
    system: str
    first_user: str
    last: tuple[str, ...]
    fresh: bool
    tools: bool
    system_digest: str
    opening: str

    @classmethod
    def of(cls, request: ModelRequest) -> View:
        """The view of `request`. Costs one pass over its messages, and one over its opening's characters."""
        leading: list[str] = []
        for message in request.messages:
            if message.role != "system":
                break
            leading.append(message.content)
        system = "\n".join(leading)
        first_user = next((message.content for message in request.messages if message.role == "user"), "")
        system_digest = digest(system)
        return cls(
            request,
            request.wire.headers,
            system,
            first_user,
            tuple(wire.last_texts(request.wire.body)),
            all(message.role != "assistant" for message in request.messages),
            wire.offers_tools(request.wire.body) or bool(request.tools),
            system_digest,
            digest(system_digest + first_user),
        )

    @property
    def continues(self) -> bool:
        """Whether the request leaves its history to the server, so that its opening is not the conversation's."""
        return bool(self.request.previous_response_id) or "thread" in self.request.wire.body


Decide = Callable[[View, "SessionFacts"], Scenario | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """One named rule: `decide` gives the scenario, or None where the rule does not apply. It never raises.

    `client` says whom it is for, `evidence` where it comes from.
    """

    name: str
    client: str
    evidence: str
    decide: Decide


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """What earlier requests of a session say about the next one. The default is a session without requests.

    `started`: a main request came. `first_user` is a digest, `edges` both ends of the system prompt, `tools` whether
    some were offered, `max_tokens` the cap: all of the newest main request. `compacted`: a compaction came after it.
    `systems` holds digests of the system prompts of main requests, `sub_agents` openings of sub-agents, oldest first.
    """

    started: bool = False
    edges: tuple[str, str] = ("", "")
    first_user: str = ""
    tools: bool = False
    max_tokens: int | None = None
    compacted: bool = False
    systems: tuple[str, ...] = ()
    sub_agents: tuple[str, ...] = ()

    def after(self, request: ModelRequest, tag: Tag) -> SessionFacts:
        """The facts with `request` among them. Pure; call it once for each request that was tagged, in that order."""
        view = View.of(request)
        if tag.scenario is Scenario.MAIN:
            if view.continues:
                return replace(self, started=True, compacted=False)
            return replace(
                self,
                started=True,
                edges=_edges(view.system),
                first_user=digest(view.first_user),
                tools=view.tools,
                max_tokens=request.max_tokens,
                compacted=False,
                systems=(*(one for one in self.systems if one != view.system_digest), view.system_digest)[
                    -_MOST_SYSTEMS:
                ],
            )
        facts = replace(self, compacted=self.compacted or tag.scenario is Scenario.COMPACTION)
        if tag.scenario is not Scenario.SUB_AGENT or view.continues or view.opening in self.sub_agents:
            return facts
        # A conversation that the server continues is known by its system prompt alone.
        openings = (view.opening, view.system_digest) if view.system else (view.opening,)
        return replace(facts, sub_agents=(self.sub_agents + openings)[-_MOST_OPENINGS:])

    def foreign_system(self, view: View) -> bool:
        """Whether a main request came and `view` has another system prompt, not a new version of the same."""
        if not self.started or view.continues or self.compacted or view.system_digest in self.systems:
            return False
        return not any(one and one == other for one, other in zip(self.edges, _edges(view.system), strict=True))

    def foreign(self, view: View) -> bool:
        """Whether neither the system prompt nor the first user message is the main conversation's."""
        return self.foreign_system(view) and digest(view.first_user) != self.first_user


def digest(text: str) -> str:
    """24 hex digits that stand for `text`."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _edges(system: str) -> tuple[str, str]:
    return (system[:_EDGE], system[-_EDGE:]) if len(system) >= 2 * _EDGE else ("", "")
