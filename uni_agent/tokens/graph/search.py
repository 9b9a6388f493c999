"""Where in the forest a request belongs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from uni_agent.tokens.graph.matcher import Matcher
from uni_agent.tokens.graph.nodes import Context, Turn
from uni_agent.tokens.graph.reading import Reading

_HANDLE = 26
"""Letters and digits at the end of a call id that clients leave alone."""


@dataclass(frozen=True, slots=True)
class Found:
    """The deepest node whose history means the same.

    `context` is set when the whole request is known up to its generation prompt, else `turn` is the last known turn.
    The first `matched` messages are known; `clean` when all of them also read the same.
    """

    turn: Turn | None
    context: Context | None
    matched: int
    clean: bool


def deepest(roots: Iterable[Context], readings: Sequence[Reading], matcher: Matcher) -> Found | None:
    """The node with the most messages of the request; None when no turn of it is known.

    `roots` are the trees that render no other chain anew; those that do are searched behind that chain.

    Turns that were sampled for one request and mean the same are told apart by their call ids, when those came back.
    Among equals: a known context before a turn, then the history that reads most like the request, then the newest.
    """
    best: Found | None = None
    best_rank = (0, 0, 0, 0)
    stack = [(root, 0, 0) for root in roots]
    while stack:
        context, at, score = stack.pop()
        own = context.readings[context.known :] if context.known else context.readings
        end = at + len(own)
        gained = _run_score(own, readings[at:end], matcher)
        if gained is None:
            continue
        score += gained
        if end == len(readings):
            rank = (end, 1, score, context.turns[-1].id)
            if rank > best_rank:
                best, best_rank = Found(context.parent, context, end, score == 2 * end), rank
            continue
        said = [turn for turn in context.turns if matcher.same(turn.reading, readings[end])]
        for turn in [turn for turn in said if echoes_ids(turn.reading, readings[end])] or said:
            total = score + closeness(turn.reading, readings[end])
            rank = (end + 1, 0, total, turn.id)
            if rank > best_rank:
                best, best_rank = Found(turn, None, end + 1, total == 2 * (end + 1)), rank
            stack.extend((child, end + 1, total) for child in (*turn.contexts, *turn.renewed))
    return best


def closeness(stored: Reading, returned: Reading) -> int:
    """2 for messages written alike, 1 for equal meanings, 0 for what a relaxed matcher accepted."""
    return 2 if stored.reads_like(returned) else int(stored.key == returned.key)


def echoes_ids(stored: Reading, returned: Reading) -> bool:
    """Whether the calls of two turns that mean the same have the same ids, whatever prefix a protocol gave them."""
    mine, other = stored.message.tool_calls, returned.message.tool_calls
    return bool(mine) and all(_handle(a.id) == _handle(b.id) != "" for a, b in zip(mine, other, strict=False))


def _handle(call_id: str) -> str:
    return "".join([c for c in call_id if c.isalnum()])[-_HANDLE:]


def shared_start(context: Context, readings: Sequence[Reading], matcher: Matcher) -> int:
    """How many messages `context` and the request have in common, from their start."""
    count = 0
    for stored, returned in zip(context.readings, readings, strict=False):
        if not matcher.same(stored, returned):
            break
        count += 1
    return count


def _run_score(stored: Sequence[Reading], returned: Sequence[Reading], matcher: Matcher) -> int | None:
    """The closeness of two runs of messages; None when they do not mean the same."""
    if len(stored) != len(returned):
        return None
    score = 0
    for a, b in zip(stored, returned, strict=True):
        if not matcher.same(a, b):
            return None
        score += closeness(a, b)
    return score
