"""The nodes of the forest: contexts, which were rendered, and turns, which were sampled, in alternation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from uni_agent.engine.base import WeightSpan
from uni_agent.tokens.base import Renderer, ToolSchema
from uni_agent.tokens.graph.reading import Reading
from uni_agent.types import Message

Drift = Literal["new", "clean", "realigned", "forked"]
"""How a request's history relates to the graph.

`new`: a conversation of its own · `clean`: means and reads what is stored · `realigned`: means it, written in another
way; the stored tokens stay · `forked`: leaves a stored chain.
"""

Intent = Literal["auto", "retry", "resample"]
"""Why a request that was seen before comes again; see `SessionGraph.prepare`."""


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """What all turns of one tree share: the tools as rendered and the renderer. `key` is the same for equal scopes."""

    key: str
    tools: Sequence[ToolSchema]
    renderer: Renderer
    template_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(slots=True, eq=False)
class Context:
    """Rendered tokens: all that stands between the turn `parent` (None: the start) and the turns sampled behind it.

    `ids` [C] are its own tokens only, the generation prompt included; the first `closing` of them end a parent that was
    cut by length. `readings` may be empty: a turn right behind a turn. `routed_experts` are rows for these tokens, and
    before them one for the last token of the parent ([C, layers, top_k], or [1 + C, …] behind a turn), or None.

    `renews` is the turn whose chain this start of a tree renders anew, then the first `known` of `readings` are the
    messages of that chain. `thinks`: it shows thinking of assistant messages.
    """

    parent: Turn | None = field(repr=False)  # links are left out of texts: these would go through the whole forest
    scope: Scope = field(repr=False)
    readings: tuple[Reading, ...]
    ids: list[int]
    closing: int = 0
    routed_experts: Any = field(default=None, repr=False)
    renews: Turn | None = field(default=None, repr=False)
    known: int = 0
    thinks: bool = False
    turns: list[Turn] = field(default_factory=list["Turn"], repr=False)


@dataclass(slots=True, eq=False)
class Turn:
    """One generation: `ids` [T] with `logprobs` [T] or None, `weight_spans` over them, and the `message` it says.

    `id` counts the turns of a session from 0 in the order of their commits. `cut`: not ended as the template does.
    `routed_experts` are rows for these tokens alone ([T, layers, top_k], or one row fewer where the engine has none for
    the last token). `prepared_at` and `committed_at` are ticks of the session's own count of events. `continues` is the
    turn that a compacted conversation goes on from, or whose chain was rendered anew, else None. `contexts` go on from
    the turn in its tree, `renewed` are the trees that render its chain anew. `thinks`: the chain up to here shows
    thinking; known where the policy asks for it.
    """

    id: int
    context: Context
    reading: Reading
    ids: list[int]
    logprobs: list[float] | None
    weight_spans: tuple[WeightSpan, ...]
    routed_experts: Any
    finish_reason: str
    cut: bool
    drift: Drift
    intent: Intent
    tag: str
    prepared_at: int
    committed_at: int
    continues: Turn | None = field(default=None, repr=False)
    contexts: list[Context] = field(default_factory=list["Context"], repr=False)
    renewed: list[Context] = field(default_factory=list["Context"], repr=False)
    thinks: bool = False

    @property
    def message(self) -> Message:
        """What the turn says."""
        return self.reading.message

    @property
    def parent(self) -> Turn | None:
        """The turn before; None at the start of a tree."""
        return self.context.parent


def path_to(turn: Turn | None) -> list[Turn]:
    """The turns from the start of the tree to `turn`; empty for None."""
    out: list[Turn] = []
    while turn is not None:
        out.append(turn)
        turn = turn.context.parent
    out.reverse()
    return out


class Trail:
    """The tokens and messages of the chain up to `turn`, joined once: a long chain is not copied for each of its turns.

    `lend` gives `ids` away as a prompt: they are only ever appended to, and only once the turn behind it is followed.
    """

    def __init__(self) -> None:
        self.turn: Turn | None = None
        self.ids: list[int] = []
        self.messages: list[Message] = []
        self._lent: Context | None = None

    def move_to(self, turn: Turn) -> None:
        """Stand behind `turn`. The cost is what it adds when it was sampled in the lent context, else the chain."""
        if turn is self.turn and self._lent is None:
            return
        nodes = [turn]
        if self._lent is None or turn.context is not self._lent:
            self.ids, self.messages, self._lent, nodes = [], [], None, path_to(turn)
        for node in nodes:
            if node.context is not self._lent:
                self.ids += node.context.ids
            self.ids += node.ids
            self.messages.extend(reading.message for reading in node.context.readings)
            self.messages.append(node.message)
        self.turn, self._lent = turn, None

    def lend(self, context: Context) -> list[int]:
        """The prompt that ends with `context`, which stands behind `turn`."""
        self.ids += context.ids
        self._lent = context
        return self.ids


def chain_ids(turn: Turn | None) -> list[int]:
    """The tokens of the chain up to and with `turn`, in a new list. The cost in Python is one step per turn."""
    out: list[int] = []
    for node in path_to(turn):
        out += node.context.ids
        out += node.ids
    return out


def chain_readings(turn: Turn | None) -> list[Reading]:
    """The readings of the messages of the chain up to and with `turn`."""
    out: list[Reading] = []
    for node in path_to(turn):
        out.extend(node.context.readings)
        out.append(node.reading)
    return out


def chain_messages(turn: Turn | None) -> list[Message]:
    """The messages of the chain up to and with `turn`, as they are stored."""
    return [reading.message for reading in chain_readings(turn)]
