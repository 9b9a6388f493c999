"""How a new tree relates to the trees that are there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from uni_agent.tokens.graph.matcher import Matcher
from uni_agent.tokens.graph.nodes import Context, Drift, Turn
from uni_agent.tokens.graph.reading import Reading, message_parts
from uni_agent.tokens.graph.search import shared_start

_RECENT = 64
"""Turns that are searched for a summary."""

_SUMMARY = 40
"""Characters below which a text that comes again says nothing about where it comes from."""

_JUST_SAID = 8
"""The same for the newest turn: what was said last and opens the next conversation is hardly there by chance."""


def relation(
    roots: Iterable[Context],
    turns: Sequence[Turn],
    by_key: Mapping[bytes, Turn],
    readings: Sequence[Reading],
    matcher: Matcher,
) -> tuple[Drift, Turn | None]:
    """The drift of a request that starts a tree, and the turn it continues when it follows a compaction.

    It forks a tree when it starts with the same messages up to a user message or an answer of the assistant. Otherwise
    it continues the newest turn that it keeps verbatim, or whose text stands in one of its other messages.
    """
    forked = False
    for root in roots:
        shared = shared_start(root, readings, matcher)
        whole = shared == len(root.readings)
        if whole and shared < len(readings) and readings[shared].message.role == "assistant":
            return "forked", None
        forked = forked or any(reading.message.role == "user" for reading in root.readings[:shared])
    source = _kept(by_key, turns, readings) or _summarised(turns, readings)
    return ("forked" if forked or source is not None else "new"), source


def _kept(by_key: Mapping[bytes, Turn], turns: Sequence[Turn], readings: Sequence[Reading]) -> Turn | None:
    kept = [
        turn
        for reading in readings
        if reading.message.role == "assistant" and (turn := by_key.get(reading.key)) is not None
        if _weight(reading) >= _needed(turn, turns)
    ]
    return max(kept, key=lambda turn: turn.id, default=None)


def _summarised(turns: Sequence[Turn], readings: Sequence[Reading]) -> Turn | None:
    texts = [reading.message.content for reading in readings if reading.message.role in ("user", "system")]
    for turn in islice(reversed(turns), _RECENT):
        _, text = message_parts(turn.message)
        if len(text) >= _needed(turn, turns) and any(text in other for other in texts):
            return turn
    return None


def _needed(turn: Turn, turns: Sequence[Turn]) -> int:
    """Characters of the turn's text that show where it comes from."""
    if turn.tag == "compaction":
        return 1
    return _JUST_SAID if turn is turns[-1] and turn.tag not in ("title", "heartbeat") else _SUMMARY


def _weight(reading: Reading) -> int:
    """Characters of text; a turn that calls tools always has enough."""
    return _SUMMARY if reading.message.tool_calls else len(message_parts(reading.message)[1])
