"""The graph of one session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Literal

from uni_agent.engine.base import TokenOutput
from uni_agent.errors import ModelError
from uni_agent.tokens.base import ParsedOutput, Renderer, ToolSchema
from uni_agent.tokens.graph.export import AbandonedPolicy, Chain, GraphAccount, account_of, chains_of
from uni_agent.tokens.graph.lineage import relation
from uni_agent.tokens.graph.matcher import Matcher, StrictMatcher
from uni_agent.tokens.graph.nodes import Context, Drift, Intent, Scope, Trail, Turn, chain_ids, chain_readings
from uni_agent.tokens.graph.output import checked_output, context_rows, message_of
from uni_agent.tokens.graph.prepared import Prepared
from uni_agent.tokens.graph.reading import Reading, json_meaning, text_digest
from uni_agent.tokens.graph.record import TurnRecord, restored_turn
from uni_agent.tokens.graph.remembered import ReadingMemory
from uni_agent.tokens.graph.search import Found, deepest
from uni_agent.tokens.graph.thinking import DROPPED, ThinkingPolicy, loses_thinking, mark_thinking
from uni_agent.tokens.renderer import TemplateDriftError
from uni_agent.tokens.template import TemplateError
from uni_agent.types import Message

RendererFor = Callable[[Mapping[str, Any]], Renderer]
"""The renderer for a request's own template variables."""


_SCOPES = 16
"""Spellings of tools whose meaning is remembered."""


class GraphClosedError(ModelError):
    """The session has ended; nothing can be prepared or committed any more."""


class SessionGraph:
    """A forest of turns: every generation of a session once, with the context it was sampled in.

    Synchronous and pure. It is not locked: `prepare`, `commit` and the exports of one graph run one at a time, while
    any number of generations may be under way between them. `thinking` is what happens to the thinking of earlier
    turns; see `ThinkingPolicy`.
    """

    def __init__(
        self,
        session_id: str,
        renderer: Renderer,
        *,
        matcher: Matcher | None = None,
        renderer_for: RendererFor | None = None,
        thinking: ThinkingPolicy = "keep",
    ) -> None:
        if thinking not in ("keep", "template"):
            raise ValueError(f"thinking: {thinking!r} is none of keep, template")
        self.session_id = session_id
        self.thinking: ThinkingPolicy = thinking
        self.matcher: Matcher = matcher or StrictMatcher()
        self.turns: list[Turn] = []
        self.closed = False
        self._renderer = renderer
        self._renderer_for = renderer_for
        self._roots: dict[str, list[Context]] = {}
        self._by_key: dict[bytes, Turn] = {}
        self._dropped: dict[str, int] = {}
        self._used: set[int] = set()
        self._clock = 0
        self._trail = Trail()
        self._memory = ReadingMemory(self.matcher)
        self._scope_keys: dict[bytes, str] = {}

    def prepare(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema],
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        intent: Intent = "auto",
        continues: Turn | Literal["auto"] | None = "auto",
        tag: str = "",
    ) -> Prepared:
        """The exact prompt for a request, on the deepest chain whose history means the same.

        `intent` says why a known request comes again: `retry` (the client marked it) and `resample` (another sample is
        wanted) are taken at their word; `auto` is a retry when the earlier reply was committed before, a resample when
        both are under way at once. `continues` is the turn that a new conversation goes on from after a compaction,
        found by `auto`.
        `tag` stays on the turn. Raises ValueError without messages, or for `template_kwargs` when the graph has no
        `renderer_for`; ConfigError when the template refuses the messages; GraphClosedError.
        """
        self._check_open()
        if not messages:
            raise ValueError("a request needs at least one message")
        readings = self._memory.read(messages)
        scope = self._scope(tools, template_kwargs or {})
        found = deepest(self._roots.get(scope.key, ()), readings, self.matcher)
        self._clock += 1
        if found is not None:
            return self._continued(found, readings, intent, tag)
        return self._started(scope, readings, intent, tag, continues)

    def follow(self, turn: Turn, messages: Sequence[Message], *, intent: Intent = "auto", tag: str = "") -> Prepared:
        """The exact prompt for `messages` behind a turn that the caller holds, without reading the history again.

        Going on from the turn that the last `follow` led to costs what is new. For that, `prompt_ids` is a list of the
        graph's, to be read only until the turn is committed: it grows when that turn is followed. `intent`, `tag` and
        errors are those of `prepare`; ValueError also for a turn of another graph.
        """
        self._check_open()
        self._check_own(turn)
        self._clock += 1
        new = self.matcher.read([turn.message, *messages])[1:]
        trail = self._trail
        trail.move_to(turn)
        return self._behind(turn, tuple(new), "clean", len(trail.messages), intent, tag, trail)

    def commit(self, prepared: Prepared, output: TokenOutput, message: Message | ParsedOutput) -> Turn:
        """Add the generation that `prepared` led to, and what it says. All or nothing.

        Raises ValueError for an output that is no turn (aborted, or arrays that do not fit its ids) and for a Prepared
        that was committed before; GraphClosedError after `close`.
        """
        self._check_open()
        if prepared.at in self._used:
            raise ValueError("this request was committed already; another sample needs another prepare")
        parent = prepared.parent or prepared.context.renews
        if parent is not None:
            self._check_own(parent)
        prompt_rows, rows = checked_output(output, len(prepared.prompt_ids))
        reading = self.matcher.read([message_of(message)])[0]
        ids = list(output.token_ids)
        context = self._settled(prepared.context)
        if not context.turns and prompt_rows is not None:
            context.routed_experts = context_rows(context, prompt_rows)
        turn = Turn(
            id=len(self.turns),
            context=context,
            reading=reading,
            ids=ids,
            logprobs=None if output.logprobs is None else list(output.logprobs),
            weight_spans=tuple(output.weight_spans),
            routed_experts=rows,
            finish_reason=output.finish_reason,
            cut=not ids or ids[-1] not in prepared.context.scope.renderer.end_token_ids,
            drift=prepared.drift,
            intent=prepared.intent,
            tag=prepared.tag,
            prepared_at=prepared.at,
            committed_at=self._clock + 1,
            continues=prepared.continues,
        )
        self._mark(turn)
        self._add(turn)
        return turn

    def restore(self, record: TurnRecord) -> Turn:
        """Add a turn of an earlier process, from `turn_record`; records come in the order of their commits.

        Nothing is rendered. Raises ValueError for a record that does not come next; GraphClosedError.
        """
        self._check_open()
        if record.id != len(self.turns):
            raise ValueError(f"turn {len(self.turns)} comes next, not turn {record.id}")
        scope = self._scope(record.tools, record.template_kwargs)
        turn = restored_turn(record, self.turns, scope, self.matcher)
        self._mark(turn)
        self._add(turn)
        return turn

    def record_drop(self, reason: str, count: int) -> None:
        """Note `count` sampled tokens that never became a turn (`aborted`, `disconnected`, …)."""
        if count < 0:
            raise ValueError(f"cannot drop {count} tokens")
        if count:
            self._dropped[reason] = self._dropped.get(reason, 0) + count

    @property
    def dropped(self) -> Mapping[str, int]:
        """Reason → sampled tokens that never became a turn."""
        return self._dropped

    def close(self) -> None:
        """End the session: what is under way cannot be committed any more. Exports go on working. Idempotent."""
        self.closed = True

    def discard(self) -> None:
        """Let go of everything; nothing of the graph may be used any more.

        Turns and contexts name each other, and the collector looks for circles by the number of objects, of which few
        hold much: without this, many discarded graphs would stay in memory.
        """
        self.closed = True
        for turn in self.turns:
            turn.context.turns.clear()
            turn.contexts.clear()
            turn.renewed.clear()
        self.turns, self._roots, self._by_key = [], {}, {}

    def trajectories(self, *, abandoned: AbandonedPolicy = "keep") -> list[Chain]:
        """One chain per kept leaf, in the order of the leaves' commits; each turn is trained in the first that has it.

        `abandoned`: whether the leaves that a retry replaced become chains of their own or are dropped.
        """
        return chains_of(self.session_id, self.turns, abandoned)

    def account(self, *, abandoned: AbandonedPolicy = "keep") -> GraphAccount:
        """Where every sampled token of the session goes with `trajectories(abandoned=abandoned)`."""
        return account_of(self.turns, self.trajectories(abandoned=abandoned), self._dropped, abandoned)

    def _continued(self, found: Found, readings: Sequence[Reading], intent: Intent, tag: str) -> Prepared:
        drift: Drift = "clean" if found.clean else "realigned"
        if found.context is not None:
            prompt = chain_ids(found.context.parent) + found.context.ids
            return Prepared(prompt, len(prompt), found.context, drift, found.matched, intent, tag, self._clock)
        turn = found.turn
        if turn is None:  # a match without a context always ends with a turn
            raise AssertionError("a match names neither a turn nor a context")
        return self._behind(turn, _answering(turn, readings[found.matched :]), drift, found.matched, intent, tag)

    def _behind(
        self,
        turn: Turn,
        new: tuple[Reading, ...],
        drift: Drift,
        matched: int,
        intent: Intent,
        tag: str,
        trail: Trail | None = None,
    ) -> Prepared:
        if turn.contexts or turn.renewed:
            drift = "forked"
        reason = DROPPED if self.thinking == "template" and loses_thinking(turn, new) else ""
        if not reason:
            try:
                context, prompt = self._extended(turn, new, trail)
            except (TemplateDriftError, TemplateError) as error:
                reason = str(error)
            else:
                reused = len(prompt) - len(context.ids)
                return Prepared(prompt, reused, context, drift, matched, intent, tag, self._clock)
        context = self._renewed(turn, new)
        prompt = list(context.ids)
        return Prepared(prompt, 0, context, drift, matched, intent, tag, self._clock, reason, turn)

    def _renewed(self, turn: Turn, new: Sequence[Reading]) -> Context:
        """The start of a tree that renders the chain up to `turn` anew, with `new` behind it."""
        known = chain_readings(turn)
        scope, readings = turn.context.scope, (*known, *new)
        ids = list(scope.renderer.initial([reading.message for reading in readings], scope.tools))
        return Context(None, scope, readings, ids, renews=turn, known=len(known))

    def _extended(self, turn: Turn, new: tuple[Reading, ...], trail: Trail | None) -> tuple[Context, list[int]]:
        """A new context behind `turn` for `new`, and the prompt that ends with it."""
        scope = turn.context.scope
        if trail is None:
            trail = Trail()
            trail.move_to(turn)
        said = [reading.message for reading in new]
        ids = scope.renderer.extension(trail.messages, said, scope.tools, cut=turn.cut, chain=trail.ids)
        closing = len(scope.renderer.closing_ids()) if turn.cut else 0
        context = Context(turn, scope, new, ids, closing)
        return context, trail.lend(context)

    def _started(
        self,
        scope: Scope,
        readings: Sequence[Reading],
        intent: Intent,
        tag: str,
        continues: Turn | Literal["auto"] | None,
    ) -> Prepared:
        ids = list(scope.renderer.initial([reading.message for reading in readings], scope.tools))
        roots = chain.from_iterable(self._roots.values())
        drift, source = relation(roots, self.turns, self._by_key, readings, self.matcher)
        if continues != "auto":
            source = continues
        context = Context(None, scope, tuple(readings), ids)
        return Prepared(list(ids), 0, context, drift, 0, intent, tag, self._clock, continues=source)

    def _mark(self, turn: Turn) -> None:
        if self.thinking == "template":
            mark_thinking(turn)

    def _add(self, turn: Turn) -> None:
        """The one place where the forest grows; nothing in it can fail."""
        self._clock = max(self._clock, turn.committed_at)
        self._used.add(turn.prepared_at)
        context = turn.context
        if not context.turns:
            self._siblings(context).append(context)
        context.turns.append(turn)
        self.turns.append(turn)
        self._by_key[turn.reading.key] = turn

    def _settled(self, context: Context) -> Context:
        """`context`, or the stored one that is the same: same place, same tokens, same messages."""
        for other in self._siblings(context):
            if other is context or (other.ids == context.ids and _same_run(other.readings, context.readings)):
                return other
        return context

    def _siblings(self, context: Context) -> list[Context]:
        """The stored contexts at the place of `context`."""
        if context.parent is not None:
            return context.parent.contexts
        if context.renews is not None:
            return context.renews.renewed
        return self._roots.setdefault(context.scope.key, [])

    def _scope(self, tools: Sequence[ToolSchema], kwargs: Mapping[str, Any]) -> Scope:
        key = self._scope_key(tools, kwargs)
        if known := self._roots.get(key):
            return known[0].scope
        if not kwargs:
            return Scope(key, list(tools), self._renderer)
        if self._renderer_for is None:
            raise ValueError("template_kwargs: this session renders with fixed template variables")
        return Scope(key, list(tools), self._renderer_for(kwargs), dict(kwargs))

    def _scope_key(self, tools: Sequence[ToolSchema], kwargs: Mapping[str, Any]) -> str:
        """The meaning of tools and variables; for a text that came before it is known."""
        text = text_digest([kwargs, list(tools)])
        key = self._scope_keys.get(text) if text else None
        if key is None:
            key = json_meaning([dict(kwargs), sorted(json_meaning(tool) for tool in tools)])
            if text:
                newest = list(self._scope_keys.items())[1 - _SCOPES :]
                self._scope_keys = {**dict(newest), text: key}
        return key

    def _check_own(self, turn: Turn) -> None:
        if turn.id >= len(self.turns) or self.turns[turn.id] is not turn:
            raise ValueError(f"the turn is one of another graph than that of session {self.session_id}")

    def _check_open(self) -> None:
        if self.closed:
            raise GraphClosedError(f"session {self.session_id} is closed")


def _answering(turn: Turn, new: Sequence[Reading]) -> tuple[Reading, ...]:
    """`new` with the results of `turn`'s calls under the call ids that are stored."""
    calls = turn.message.tool_calls
    run = next((i for i, reading in enumerate(new) if reading.message.role != "tool"), len(new))
    results = (
        replace(reading, message=replace(reading.message, tool_call_id=calls[reading.answers].id))
        if 0 <= reading.answers < len(calls)
        else reading
        for reading in new[:run]
    )
    return (*results, *new[run:])


def _same_run(a: Sequence[Reading], b: Sequence[Reading]) -> bool:
    return [(r.key, r.thought) for r in a] == [(r.key, r.thought) for r in b]
