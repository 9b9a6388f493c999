"""Chains to train on, in which every turn is trained exactly once, and the account of the session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from uni_agent.engine.base import TokenOutput
from uni_agent.tokens.accounting import account
from uni_agent.tokens.base import ToolSchema
from uni_agent.tokens.cache import RolloutCache
from uni_agent.tokens.graph.nodes import Context, Drift, Turn, chain_messages, path_to
from uni_agent.types import Message, TokenAccount

AbandonedPolicy = Literal["keep", "drop"]
"""A leaf that a retry replaced: `keep` it as a chain of its own, or `drop` it with the reason `abandoned_retry`."""

ABANDONED = "abandoned_retry"


@dataclass(frozen=True, slots=True)
class Chain:
    """One path from the start of a tree to a leaf.

    `cache` is the record: sampled spans are the turns that this chain trains, turns that another chain trains are
    context in it (mask 0, logprob 0.0). `cache.routed_experts` is None or a list of (start, rows), shared turns and
    context included, as far as the engine gave them; `start` indexes `response_ids` and is negative in the prompt, and
    the pieces may overlap by a token. `turns` are the ids of all turns, `trained` of those trained here.
    `branched_from` is the last turn that another chain trains, `continues` the id of the chain that a compaction
    ended, or that this chain renders anew. `abandoned`: a retry replaced the leaf. `tags` and `drift` (how the history
    of each request was recognised) are those of `turns`. `message_turns` has one item for each of `messages`: the turn
    that it is, None for what was not sampled.
    """

    id: str
    cache: RolloutCache
    messages: tuple[Message, ...]
    tools: Sequence[ToolSchema]
    turns: tuple[int, ...]
    trained: tuple[int, ...]
    branched_from: int | None
    continues: str | None
    abandoned: bool
    tags: tuple[str, ...]
    drift: tuple[Drift, ...] = ()
    message_turns: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphAccount:
    """The account of a session. `tokens` is always balanced.

    `branches` counts chains beyond one per tree, `siblings` turns that were sampled for a request that was known,
    `abandoned` the leaves that a retry replaced, kept or not, `renewed` the trees that render a chain anew. `drift`
    counts turns by how their history was recognised; `rewrites` those whose history came in another spelling.
    """

    tokens: TokenAccount
    turns: int
    trees: int
    branches: int
    siblings: int
    abandoned: int
    drift: Mapping[str, int]
    renewed: int = 0

    @property
    def rewrites(self) -> int:
        """Turns whose history the client had written in another way."""
        return self.drift.get("realigned", 0)


def chains_of(session_id: str, turns: Sequence[Turn], abandoned: AbandonedPolicy) -> list[Chain]:
    """The chains of the kept leaves; see `SessionGraph.trajectories`."""
    if abandoned not in ("keep", "drop"):
        raise ValueError(f"abandoned: {abandoned!r} is none of keep, drop")
    kept = [leaf for leaf in turns if not leaf.contexts and not (abandoned == "drop" and is_abandoned(leaf))]
    names = {leaf.id: f"{session_id}/{leaf.id}" for leaf in kept}
    owner: dict[int, str] = {}
    # What a retry replaced has no outcome, and thus no reward: turns before it are trained where the episode went on.
    for leaf in sorted(kept, key=is_abandoned):
        for turn in path_to(leaf):
            owner.setdefault(turn.id, names[leaf.id])
    chains: list[Chain] = []
    for leaf in kept:
        name, path = names[leaf.id], path_to(leaf)
        trained = frozenset(turn.id for turn in path if owner[turn.id] == name)
        chains.append(_chain(name, path, trained, owner))
    return chains


def account_of(
    turns: Sequence[Turn], chains: Sequence[Chain], dropped: Mapping[str, int], policy: AbandonedPolicy
) -> GraphAccount:
    """The account of `chains`, of the turns in none of them, and of `dropped` tokens that never became a turn."""
    tokens = account((chain.cache for chain in chains), masked=False)
    left = [turn for turn in turns if is_abandoned(turn)]
    for reason, count in dropped.items():
        tokens.dropped[reason] = tokens.dropped.get(reason, 0) + count
    if policy == "drop" and (count := sum(len(turn.ids) for turn in left)):
        tokens.dropped[ABANDONED] = tokens.dropped.get(ABANDONED, 0) + count
    tokens.sampled = sum(len(turn.ids) for turn in turns) + sum(dropped.values())
    trees = {id(turn.context) for turn in turns if turn.context.parent is None}
    drift: dict[str, int] = {}
    for turn in turns:
        drift[turn.drift] = drift.get(turn.drift, 0) + 1
    leaves = sum(not turn.contexts for turn in turns)
    siblings = sum(turn.context.turns[0] is not turn for turn in turns)
    renewed = sum(len(turn.renewed) for turn in turns)
    return GraphAccount(tokens, len(turns), len(trees), leaves - len(trees), siblings, len(left), drift, renewed)


def is_abandoned(turn: Turn) -> bool:
    """Whether a retry replaced `turn`: nobody went on from it, and the same request came again since.

    A repeat counts as a retry when its client marked it, or when it is unmarked and `turn` had been committed before.
    """
    if turn.contexts or turn.renewed:
        return False
    return any(
        (other.intent == "retry" and other.prepared_at > turn.prepared_at)
        or (other.intent == "auto" and other.prepared_at > turn.committed_at)
        for other in turn.context.turns
    )


def _chain(name: str, path: Sequence[Turn], trained: frozenset[int], owner: Mapping[int, str]) -> Chain:
    leaf, first = path[-1], path[0]
    cache = RolloutCache(name, prompt_ids=list(first.context.ids))
    experts: list[tuple[int, Any]] = []
    for index, turn in enumerate(path):
        if index:
            add_context(cache, turn.context, index)
        start = len(cache.response_ids)
        if turn.context.routed_experts is not None:
            experts.append((start - len(turn.context.routed_experts), turn.context.routed_experts))
        if turn.routed_experts is not None:
            experts.append((start, turn.routed_experts))
        if turn.id in trained:
            output = TokenOutput(turn.ids, turn.logprobs, "stop", weight_spans=turn.weight_spans)
            cache.append_sampled(output, index)
        else:
            cache.append_context(turn.ids, index)
    cache.routed_experts = experts or None
    shared = [turn.id for turn in path if turn.id not in trained]
    return Chain(
        id=name,
        cache=cache,
        messages=tuple(chain_messages(leaf)),
        tools=first.context.scope.tools,
        turns=tuple(turn.id for turn in path),
        trained=tuple(turn.id for turn in path if turn.id in trained),
        branched_from=shared[-1] if shared else None,
        continues=_owner_of(first.continues, owner),
        abandoned=is_abandoned(leaf),
        tags=tuple(turn.tag for turn in path),
        drift=tuple(turn.drift for turn in path),
        message_turns=tuple(n for turn in path for n in (*(None for _ in turn.context.readings), turn.id)),
    )


def add_context(cache: RolloutCache, context: Context, index: int) -> None:
    """Context between turns: what closes a cut turn belongs to that turn, the rest leads to turn `index`."""
    if context.closing:
        cache.append_context(context.ids[: context.closing], index - 1, "closing")
    cache.append_context(context.ids[context.closing :], index - 1)


def _owner_of(turn: Turn | None, owner: Mapping[int, str]) -> str | None:
    """The chain that trains `turn`, or the nearest turn before it that is trained."""
    while turn is not None:
        if turn.id in owner:
            return owner[turn.id]
        turn = turn.context.parent
    return None
