"""Random clients against the invariants of token-exact sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from tests.tokens.graph.echo import Echo, echoes
from tests.tokens.graph.support import OTHER, Session, renderer_of
from tests.tokens.small import BASH
from uni_agent.tokens.graph import Prepared, SessionGraph, ThinkingPolicy, Turn
from uni_agent.tokens.transcript import without_thinking
from uni_agent.types import Message, ToolCall

EMPTY = "<think>\n\n</think>\n\n"
NONE: Any = multiple()  # pyright: ignore[reportUnknownVariableType] - of no type at all


@dataclass(frozen=True)
class Entry:
    """A message as the client means it, and the turn it is; None for what was not sampled in this history."""

    message: Message
    turn: Turn | None = None


@dataclass(frozen=True)
class Talk:
    """A conversation that a client holds; it ends with a reply."""

    entries: tuple[Entry, ...]
    tools: tuple[Any, ...]

    @property
    def tip(self) -> Turn | None:
        return next((entry.turn for entry in reversed(self.entries) if entry.turn), None)


class Clients(RuleBasedStateMachine):
    """Texts are numbered, so that equal meaning is equal history and the right parent is always known."""

    template = "qwen3"
    thinking: ThinkingPolicy = "keep"
    talks = Bundle("talks")
    pending = Bundle("pending")

    def __init__(self) -> None:
        super().__init__()
        renderer = renderer_of(self.template)
        self.session = Session(SessionGraph("s", renderer, thinking=self.thinking), renderer)
        self.count = 0

    def word(self, what: str) -> str:
        self.count += 1
        return f"{what} {self.count} é漢"

    def reply(self, calls: int, thinks: bool, text: bool) -> Message:
        made = [
            ToolCall(f"c{self.count}.{i}", "bash", {"command": self.word("run"), "timeout": i}) for i in range(calls)
        ]
        content = self.word("say") if text or not made else ""
        thinks = thinks and self.template in ("qwen3", "qwen3_6")
        return Message("assistant", content, self.word("plan") if thinks else "", tuple(made))

    def news(self, talk: Talk, kinds: list[str]) -> list[Entry]:
        calls = talk.entries[-1].message.tool_calls
        out = [Message("tool", self.word("result"), tool_call_id=call.id, name="bash") for call in reversed(calls)]
        for kind in kinds:
            out.append(Message("assistant" if kind == "injected" else "user", self.word(kind)))
        return [Entry(message) for message in out or [Message("user", self.word("more"))]]

    def request(self, entries: tuple[Entry, ...], tools: tuple[Any, ...], echo: Echo, **kwargs: Any) -> Prepared:
        prepared = self.session.prepare(echo([entry.message for entry in entries]), tools, **kwargs)
        parent = next((entry.turn for entry in reversed(entries) if entry.turn), None)
        assert behind(prepared) is parent
        chain = self.session.prompts[parent.id] + self.session.sampled[parent.id] if parent is not None else []
        if not prepared.rerendered:  # I1
            assert prepared.prompt_ids[: len(chain)] == chain
        text, stock = self.session.text(prepared.prompt_ids), self.session.stock(prepared)
        assert without_thinking(text) == without_thinking(stock)  # I4
        if prepared.rerendered:
            assert self.thinking == "template" and text == stock and not stock.startswith(self.session.text(chain))
        elif self.thinking == "template":  # but for empty blocks, which stay while no message drops thinking
            assert text.replace(EMPTY, "") == stock.replace(EMPTY, "")
        return prepared

    def answer(self, prepared: Prepared, entries: tuple[Entry, ...], tools: tuple[Any, ...], said: Message) -> Talk:
        turn = self.session.write(prepared, said)
        return Talk((*entries, Entry(said, turn)), tools)

    @rule(target=talks, system=st.booleans(), calls=st.integers(0, 2), thinks=st.booleans(), other=st.booleans())
    def open(self, system: bool, calls: int, thinks: bool, other: bool) -> Talk:
        entries = (Entry(Message("user", self.word("go"))),)
        if system:
            entries = (Entry(Message("system", "rules")), *entries)
        tools = (BASH, OTHER) if other else (BASH,)
        prepared = self.request(entries, tools, Echo())
        assert prepared.drift == "new"
        return self.answer(prepared, entries, tools, self.reply(calls, thinks, True))

    @rule(
        target=talks,
        talk=talks,
        echo=echoes,
        kinds=st.lists(st.sampled_from(["more", "injected"]), max_size=2),
        calls=st.integers(0, 2),
        thinks=st.booleans(),
        text=st.booleans(),
    )
    def go_on(self, talk: Talk, echo: Echo, kinds: list[str], calls: int, thinks: bool, text: bool) -> Talk:
        entries = (*talk.entries, *self.news(talk, kinds))
        fork = talk.tip is not None and bool(talk.tip.contexts or talk.tip.renewed)
        prepared = self.request(entries, talk.tools, echo)
        assert (prepared.drift == "forked") == fork or talk.tip is None
        return self.answer(prepared, entries, talk.tools, self.reply(calls, thinks, text))

    @rule(
        target=talks, talk=talks, echo=echoes, intent=st.sampled_from(["auto", "retry", "resample"]), keep=st.booleans()
    )
    def send_again(self, talk: Talk, echo: Echo, intent: Any, keep: bool) -> Any:
        if talk.entries[-1].turn is None:
            return NONE
        entries, last = talk.entries[:-1], talk.entries[-1].turn
        before = self.session.prompts[last.id]
        prepared = self.session.prepare(echo([entry.message for entry in entries]), talk.tools, intent=intent)
        assert prepared.context is last.context and prepared.prompt_ids == before
        again = self.answer(prepared, entries, talk.tools, self.reply(1, False, True))
        return again if keep else NONE

    @rule(target=talks, talk=talks, echo=echoes, back=st.integers(1, 3))
    def leave_earlier(self, talk: Talk, echo: Echo, back: int) -> Any:
        turns = [i for i, entry in enumerate(talk.entries) if entry.turn]
        if len(turns) <= back:
            return NONE
        shorter = Talk(talk.entries[: turns[-1 - back] + 1], talk.tools)
        entries = (*shorter.entries, *self.news(shorter, ["more"]))
        prepared = self.request(entries, talk.tools, echo)
        assert prepared.drift == "forked"
        return self.answer(prepared, entries, talk.tools, self.reply(0, True, True))

    @rule(target=talks, talk=talks, echo=echoes, which=st.integers(0, 3))
    def edit(self, talk: Talk, echo: Echo, which: int) -> Any:
        turns = [i for i, entry in enumerate(talk.entries) if entry.turn]
        if not turns:
            return NONE
        at = turns[which % len(turns)]
        changed = Entry(Message("assistant", self.word("edited"), tool_calls=talk.entries[at].message.tool_calls))
        rest = [Entry(entry.message) for entry in talk.entries[at + 1 :]]
        entries = (*talk.entries[:at], changed, *rest, Entry(Message("user", self.word("more"))))
        return self.answer(self.request(entries, talk.tools, echo), entries, talk.tools, self.reply(1, False, False))

    @rule(target=talks, talk=talks, echo=echoes)
    def change_tools(self, talk: Talk, echo: Echo) -> Talk:
        fresh = {**OTHER, "function": {**OTHER["function"], "description": self.word("tool")}}
        tools = (BASH, fresh)
        entries = tuple(Entry(entry.message) for entry in talk.entries) + tuple(self.news(talk, ["more"]))
        prepared = self.request(entries, tools, echo)
        assert prepared.drift == "forked"
        return self.answer(prepared, entries, tools, self.reply(1, False, True))

    @rule(target=talks, talk=talks, echo=echoes)
    def compact(self, talk: Talk, echo: Echo) -> Any:
        if talk.tip is None:
            return NONE
        asked = (*talk.entries, *self.news(talk, ["summarise"]))
        summary = Message("assistant", self.word("a summary of everything that was done so far, in many words"))
        done = self.answer(self.request(asked, talk.tools, echo), asked, talk.tools, summary)
        entries = (Entry(Message("user", f"Earlier: {summary.content}\n{self.word('go on')}")),)
        prepared = self.request(entries, talk.tools, echo)
        assert prepared.continues is done.tip
        return self.answer(prepared, entries, talk.tools, self.reply(1, True, False))

    @rule(target=pending, talk=talks, echo=echoes)
    def prepare_only(self, talk: Talk, echo: Echo) -> Any:
        entries = (*talk.entries, *self.news(talk, []))
        return self.request(entries, talk.tools, echo), entries, talk.tools

    @rule(target=talks, waiting=consumes(pending), lands=st.booleans())
    def answer_late(self, waiting: Any, lands: bool) -> Any:
        prepared, entries, tools = waiting
        return self.answer(prepared, entries, tools, self.reply(0, False, True)) if lands else NONE

    @invariant()
    def every_turn_is_trained_once_where_the_backend_saw_it(self) -> None:
        self.session.check()

    def teardown(self) -> None:
        again = self.session.restarted()
        for policy in ("keep", "drop"):
            assert again.graph.trajectories(abandoned=policy) == self.session.graph.trajectories(abandoned=policy)
            assert again.graph.account(abandoned=policy) == self.session.graph.account(abandoned=policy)
        for turn in self.session.graph.turns:
            request = [*self.session.request_of(turn), turn.message, Message("user", self.word("after"))]
            mine, other = (s.prepare(request, turn.context.scope.tools) for s in (self.session, again))
            assert mine.prompt_ids == other.prompt_ids and mine.drift == other.drift
            assert behind(mine) is turn and behind(other) is again.graph.turns[turn.id]
            assert mine.rerendered == other.rerendered


def behind(prepared: Prepared) -> Turn | None:
    """The turn that a request goes on from, in its tree or in one that renders it anew."""
    return prepared.parent or prepared.context.renews


def machine(name: str, thinking: ThinkingPolicy) -> type[RuleBasedStateMachine]:
    return type(f"Clients_{name}_{thinking}", (Clients,), {"template": name, "thinking": thinking})


@pytest.mark.parametrize("thinking", ["keep", "template"])
@pytest.mark.parametrize("name", ["policy", "qwen2_5", "qwen3", "qwen3_coder", "qwen3_6"])
def test_random_clients_keep_the_invariants(name: str, thinking: ThinkingPolicy) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        machine(name, thinking), settings=settings(max_examples=12, stateful_step_count=14, deadline=None)
    )
