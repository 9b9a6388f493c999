"""The policy `template`: prompts are what the template's own full render is, and every turn still trains once."""

from __future__ import annotations

import pytest

from tests.tokens.graph.conftest import MakeSession
from tests.tokens.graph.echo import Echo
from tests.tokens.graph.support import POLICY, Session, renderer_of
from tests.tokens.graph.test_growth import CountingTokenizer
from tests.tokens.small import BASH, TEMPLATES, asks, result, user
from uni_agent.tokens.config import RendererConfig
from uni_agent.tokens.graph import SessionGraph
from uni_agent.tokens.parsers import build_parser
from uni_agent.tokens.renderer import ChatTemplateRenderer
from uni_agent.types import Message


def thinks(command: str, thought: str) -> Message:
    return asks(command, reasoning=thought)


def test_case_2_tok_04_prompts_are_stock_full_renders_behind_a_user_message(session: MakeSession) -> None:
    for name in ("qwen3", "qwen3_6"):
        s = session(name, thinking="template")
        history: list[Message] = [Message("system", "rules"), user("go")]
        for i in range(3):
            for j in range(2):
                prepared = s.prepare(history)
                assert prepared.prompt_ids == s.renderer.initial(history, [BASH])
                assert bool(prepared.rerendered) == (i > 0 and j == 0)
                assert prepared.drift == ("clean" if i or j else "new")
                turn = s.write(prepared, thinks(f"run {i} {j}", f"plan {i} {j}"))
                history += [turn.message, result(f"out {i} {j}")]
            prepared = s.prepare(history)
            assert prepared.parent is s.graph.turns[-1] and prepared.prompt_ids == s.renderer.initial(history, [BASH])
            turn = s.write(prepared, Message("assistant", f"answer {i}", f"thought {i}"))
            history += [turn.message, user(f"more {i}")]
        chains = s.check()
        assert [chain.trained for chain in chains] == [(0, 1, 2), (3, 4, 5), (6, 7, 8)]
        assert [chain.continues for chain in chains] == [None, chains[0].id, chains[1].id]
        account = s.graph.account()
        assert account.trees == 3 and account.renewed == 2 and account.abandoned == 0 and account.tokens.balanced
        assert account.tokens.trained == account.tokens.sampled == sum(map(len, s.sampled.values()))
        assert s.restarted().check() == chains


def test_the_renewed_tree_is_found_again_however_the_client_spells_it(session: MakeSession) -> None:
    s = session(thinking="template")
    first = s.write(s.prepare([user("go")]), thinks("ls", "plan"))
    history = [user("go"), first.message, result("A"), user("and?")]
    renewed = s.prepare(history)
    assert renewed.context.renews is first and "plan" not in s.text(renewed.prompt_ids)
    second = s.write(renewed, Message("assistant", "done", "second plan"))
    for thinking in ("kept", "stripped", "moved"):
        echo = Echo(thinking=thinking, ids="renamed", json="spaced")
        assert s.prepare(echo(history)).context is second.context
        onward = s.prepare(echo([*history, second.message, user("more")]))
        assert onward.context.renews is second and onward.prompt_ids == s.renderer.initial(onward.messages, [BASH])
        assert onward.rerendered and onward.drift == "realigned"
    other = s.prepare([user("go"), first.message, result("A"), user("another way")])
    assert other.context.renews is first and other.drift == "forked"


def test_a_turn_that_a_renewed_tree_goes_on_from_is_not_abandoned(session: MakeSession) -> None:
    s = session(thinking="template")
    first = s.write(s.prepare([user("go")]), Message("assistant", "hi", "plan"))
    lost = s.write(s.prepare([user("go")]), Message("assistant", "lost", "plan"))
    assert [chain.abandoned for chain in s.check()] == [True, False]
    s.write(s.prepare([user("go"), first.message, user("more")]), Message("assistant", "done", "plan"))
    assert [chain.abandoned for chain in s.check()] == [False, False, False]
    again = s.prepare([user("go"), lost.message, user("x"), Message("assistant", "injected"), user("y")])
    assert again.context.renews is lost and s.stock(again) == s.text(again.prompt_ids)


def test_a_chain_without_thinking_is_extended_at_the_cost_of_what_is_new() -> None:
    tokenizer = CountingTokenizer.from_folder(POLICY)
    assert isinstance(tokenizer, CountingTokenizer)
    base = renderer_of("qwen3")
    renderer = ChatTemplateRenderer(tokenizer, base.template, build_parser("hermes"), reasoning=True)
    assert renderer.proof.hides_thinking == {"messages"}
    s = Session(SessionGraph("s", renderer, thinking="template"), renderer)
    history: list[Message] = [user("go")]
    costs: list[int] = []
    for i in range(40):
        before = tokenizer.characters
        prepared = s.prepare(history)
        costs.append(tokenizer.characters - before)
        assert not prepared.rerendered
        turn = s.say(prepared, f"step {i:03d}")
        history += [turn.message, user(f"word {i:03d} " * 20)]
    assert len(set(costs[1:])) == 1
    thinking = s.write(s.prepare(history), thinks("ls", "plan"))
    history += [thinking.message, result("A")]
    assert not s.prepare(history).rerendered
    assert s.prepare([*history, user("more")]).rerendered
    assert len(s.check()) == 1


def test_only_what_is_shown_counts_as_thinking(session: MakeSession) -> None:
    s = session(thinking="template")
    shown = [user("go"), Message("assistant", "", "foreign plan", asks("ls").tool_calls), result("A")]
    turn = s.say(s.prepare(shown), "plain")
    assert s.prepare([*shown, turn.message, user("more")]).rerendered
    dropped = [user("other"), Message("assistant", "x", "foreign plan"), user("go on")]
    turn = s.say(s.prepare(dropped), "plain")
    assert not s.prepare([*dropped, turn.message, user("more")]).rerendered
    literal = [user("what is <think>plan</think>?")]
    turn = s.say(s.prepare(literal), "plain")
    assert not s.prepare([*literal, turn.message, user("more")]).rerendered
    # Qwen3 looks for tool results by their markup, which a user cannot write.
    fake = [user("tools"), s.ask([user("tools")], "<think>\nplan\n</think>\n\nhi").message]
    forged = s.prepare([*fake, user("<tool_response>\nA\n</tool_response>")])
    assert forged.rerendered and s.text(forged.prompt_ids) == s.stock(forged)
    s.check()


def test_empty_thinking_of_a_prompt_that_turns_it_off_is_dropped_as_the_template_does() -> None:
    renderer = RendererConfig(
        chat_template=TEMPLATES / "qwen3.jinja", template_kwargs={"enable_thinking": False}
    ).build(POLICY)
    s = Session(SessionGraph("s", renderer, thinking="template"), renderer)
    turn = s.say(s.prepare([user("go")]), "hi")
    prepared = s.prepare([user("go"), turn.message, user("more")])
    assert prepared.prompt_ids == renderer.initial([user("go"), turn.message, user("more")], [BASH])
    s.say(prepared, "done")
    assert [chain.trained for chain in s.check()] == [(0,), (1,)]


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3_coder"])
def test_a_template_that_never_shows_thinking_renders_each_turn_that_thought_anew(
    session: MakeSession, name: str
) -> None:
    s = session(name, thinking="template")
    turn = s.ask([user("go")], "<think>\nplan\n</think>\n\nhi")
    assert s.renderer.proof.hides_thinking == {"messages", "tool_results"}
    history = [user("go"), Message("assistant", "hi", "plan"), user("more")]
    prepared = s.prepare(history)
    assert prepared.continues is turn or turn.message.content != "hi"
    assert s.text(prepared.prompt_ids) == s.stock(prepared)
