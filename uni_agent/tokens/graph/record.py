"""A turn as plain data, for a journal: the graph of a killed process is rebuilt from its records without rendering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from uni_agent.engine.base import WeightSpan
from uni_agent.tokens.base import ToolSchema
from uni_agent.tokens.graph.matcher import Matcher
from uni_agent.tokens.graph.nodes import Context, Drift, Intent, Scope, Turn, chain_messages
from uni_agent.tokens.graph.reading import Reading
from uni_agent.types import Message


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """Everything that the commit of one turn added; see `Turn` and `Context` for the fields.

    `sibling` is the first turn with the same context, whose record holds it; then `messages` and `context_ids` are
    empty. `parent` and `continues` are ids of turns.
    """

    id: int
    sibling: int | None
    parent: int | None
    tools: Sequence[ToolSchema]
    template_kwargs: Mapping[str, Any]
    messages: tuple[Message, ...]
    context_ids: list[int]
    closing: int
    context_experts: Any
    message: Message
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
    continues: int | None


def turn_record(turn: Turn) -> TurnRecord:
    """The record of a committed turn. Its size is that of what the turn added."""
    context, first = turn.context, turn.context.turns[0]
    own = first is turn
    root = own and context.parent is None
    return TurnRecord(
        id=turn.id,
        sibling=None if own else first.id,
        parent=None if context.parent is None else context.parent.id,
        tools=context.scope.tools if root else (),
        template_kwargs=context.scope.template_kwargs if root else {},
        messages=tuple(reading.message for reading in context.readings) if own else (),
        context_ids=context.ids if own else [],
        closing=context.closing if own else 0,
        context_experts=context.routed_experts if own else None,
        message=turn.message,
        ids=turn.ids,
        logprobs=turn.logprobs,
        weight_spans=turn.weight_spans,
        routed_experts=turn.routed_experts,
        finish_reason=turn.finish_reason,
        cut=turn.cut,
        drift=turn.drift,
        intent=turn.intent,
        tag=turn.tag,
        prepared_at=turn.prepared_at,
        committed_at=turn.committed_at,
        continues=None if turn.continues is None else turn.continues.id,
    )


def restored_turn(record: TurnRecord, turns: Sequence[Turn], scope: Scope, matcher: Matcher) -> Turn:
    """The turn of `record`, not yet in the graph of `turns`. `scope` is that of a turn that starts a tree.

    Raises ValueError when it names a turn that is not there.
    """
    for number in (record.sibling, record.parent, record.continues):
        if number is not None and not 0 <= number < len(turns):
            raise ValueError(f"turn {record.id} refers to turn {number}, which is not there")
    return Turn(
        id=record.id,
        context=_context(record, turns, scope, matcher) if record.sibling is None else turns[record.sibling].context,
        reading=matcher.read([record.message])[0],
        ids=list(record.ids),
        logprobs=None if record.logprobs is None else list(record.logprobs),
        weight_spans=tuple(record.weight_spans),
        routed_experts=record.routed_experts,
        finish_reason=record.finish_reason,
        cut=record.cut,
        drift=record.drift,
        intent=record.intent,
        tag=record.tag,
        prepared_at=record.prepared_at,
        committed_at=record.committed_at,
        continues=None if record.continues is None else turns[record.continues],
    )


def _context(record: TurnRecord, turns: Sequence[Turn], scope: Scope, matcher: Matcher) -> Context:
    if record.parent is None:
        readings = matcher.read(record.messages)
        return _renewing(_filled(None, scope, readings, record), record, turns)
    parent = turns[record.parent]
    # Read behind the turn whose calls they answer.
    readings = matcher.read([parent.message, *record.messages])[1:]
    return _filled(parent, parent.context.scope, readings, record)


def _filled(parent: Turn | None, scope: Scope, readings: Sequence[Reading], record: TurnRecord) -> Context:
    ids = list(record.context_ids)
    return Context(parent, scope, tuple(readings), ids, record.closing, record.context_experts)


def _renewing(context: Context, record: TurnRecord, turns: Sequence[Turn]) -> Context:
    """`context`, with the chain that it renders anew: the one that it continues and whose messages it begins with."""
    source = None if record.continues is None else turns[record.continues]
    if source is not None and source.context.scope.key == context.scope.key:
        known = chain_messages(source)
        if list(record.messages[: len(known)]) == known:
            context.renews, context.known = source, len(known)
    return context
