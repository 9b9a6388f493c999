"""Turns that stop at another token than the template's own end of turn, and templates whose turns have none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tokens.graph.conftest import MakeSession
from tests.tokens.graph.support import Session
from tests.tokens.small import BASH, TEMPLATES, add, result, train, user, write_folder
from uni_agent.tokens.config import RendererConfig
from uni_agent.tokens.graph import SessionGraph
from uni_agent.tokens.renderer import ChatTemplateRenderer
from uni_agent.types import Message

CALL = '\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> ChatTemplateRenderer:
    """A model whose turns end with the next header, at which it stops."""
    tokenizer: Any = train()
    add(tokenizer, ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"), special=True)
    folder = write_folder(tmp_path_factory.mktemp("headers"), tokenizer)
    stops = [tokenizer.token_to_id(text) for text in ("<|endoftext|>", "<|user|>", "<|observation|>")]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
    return RendererConfig(chat_template=TEMPLATES / "headers.jinja", tool_parser="hermes").build(folder)


def opened(renderer: ChatTemplateRenderer) -> Session:
    return Session(SessionGraph("s", renderer), renderer)


def ids(renderer: ChatTemplateRenderer, text: str) -> list[int]:
    return renderer.tokenizer.encode(text)


def test_increments_of_a_template_without_ends_of_turn_are_proved(headers: ChatTemplateRenderer) -> None:
    assert headers.proof.allows("messages") and headers.proof.allows("tool_results"), headers.proof
    assert headers.closing_ids() == [] and headers.end_token_ids == headers.stop_token_ids


def test_case_6_a_stop_token_that_is_the_next_header_is_not_repeated(headers: ChatTemplateRenderer) -> None:
    s = opened(headers)
    history: list[Message] = [user("go")]
    for i in range(2):
        said = s.say(s.prepare(history), "", ids=ids(headers, f"{CALL}<|observation|>"))
        history += [said.message, result(f"out {i}", said.message.tool_calls[0].id)]
        prepared = s.prepare(history)
        assert prepared.parent is said and s.text(prepared.prompt_ids) == s.stock(prepared)
        said = s.say(prepared, "", ids=ids(headers, "\ndone<|user|>"))
        history += [said.message, user("more")]
        prepared = s.prepare(history)
        assert prepared.parent is said and s.text(prepared.prompt_ids) == s.stock(prepared)
    (chain,) = s.check()
    assert s.text(chain.cache.ids).count("<|observation|>") == 2


@pytest.mark.parametrize("stop", ["<|endoftext|>", "<|observation|>", ""])
def test_another_stop_stays_and_the_header_follows(headers: ChatTemplateRenderer, stop: str) -> None:
    s = opened(headers)
    finish = "stop" if stop else "length"
    turn = s.say(s.prepare([user("go")]), "", finish=finish, ids=ids(headers, f"\ndone{stop}"))
    prepared = s.prepare([user("go"), turn.message, user("more")])
    assert prepared.parent is turn and not prepared.rerendered
    assert s.text(prepared.prompt_ids).replace(f"done{stop}", "done") == s.stock(prepared)
    s.say(prepared, "\nrest")
    (chain,) = s.check()
    assert [span.kind for span in chain.cache.spans] == ["sampled", "observation", "sampled"]


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "qwen3_coder"])
def test_a_turn_that_stopped_at_the_end_of_text_keeps_it_and_is_closed_as_context(
    small_folder: Path, name: str
) -> None:
    renderer = RendererConfig(chat_template=TEMPLATES / f"{name}.jinja").build(small_folder)
    end, own = ids(renderer, "<|endoftext|>")[0], ids(renderer, "<|im_end|>")[0]
    assert renderer.stop_token_ids == (own, end) and renderer.end_token_ids == (own,)
    s = opened(renderer)
    turn = s.say(s.prepare([user("go")]), "", ids=[*ids(renderer, "hi"), end])
    assert turn.cut and turn.message.content == "hi"
    prepared = s.prepare([user("go"), turn.message, user("more")])
    assert prepared.parent is turn
    assert s.text(prepared.prompt_ids).replace("<|endoftext|>", "") == s.stock(prepared)
    s.say(prepared, "done")
    (chain,) = s.check()
    closing = [span for span in chain.cache.spans if span.kind == "closing"]
    assert [chain.cache.response_ids[span.start : span.end] for span in closing] == [[own]]


def test_follow_extends_a_turn_that_the_caller_holds(session: MakeSession) -> None:
    s = session()
    turn = s.ask([user("go")], CALL.strip())
    for i in range(3):
        answer = [result(f"out {i}", turn.message.tool_calls[0].id), user(f"and {i}")]
        followed = s.graph.follow(turn, answer, tag="loop")
        matched = s.prepare([*s.request_of(turn), turn.message, *answer])
        assert followed.prompt_ids == matched.prompt_ids and followed.parent is turn and followed.tag == "loop"
        assert (followed.drift, followed.reused, followed.matched) == ("clean", matched.reused, matched.matched)
        turn = s.say(followed, CALL.strip())
    assert [chain.trained for chain in s.check()] == [(0, 1, 2, 3)]
    branch = s.graph.follow(s.graph.turns[1], [user("another way")])
    assert branch.drift == "forked" and branch.parent is s.graph.turns[1]
    s.say(branch, "x")
    again = s.graph.follow(s.graph.turns[1], [user("another way")])
    assert s.say(again, "y").context is branch.context
    s.check()
    with pytest.raises(ValueError, match="another graph"):
        session().graph.follow(turn, [user("x")])


def test_prompts_that_were_followed_stay_right_when_branches_and_requests_mix(session: MakeSession) -> None:
    s = session()
    turn = s.ask([user("go")], "hi")
    one = s.graph.follow(turn, [user("one")])
    seen = list(one.prompt_ids)
    two = s.graph.follow(turn, [user("two")])
    three = s.prepare([user("go"), turn.message, user("three")])
    assert one.prompt_ids == seen and two.prompt_ids[: len(s.prompts[0])] == s.prompts[0]
    said = [s.say(prepared, text) for prepared, text in ((two, "2"), (three, "3"), (one, "1"))]
    for number, followed in enumerate(said):
        prepared = s.graph.follow(followed, [user(f"more {number}")])
        assert prepared.prompt_ids == s.prepare(prepared.messages).prompt_ids
        s.say(prepared, "done")
    twice = [s.graph.follow(turn, [user("same")]) for _ in range(2)]
    first = s.say(twice[1], "a")
    s.say(twice[0], "b")
    onward = s.graph.follow(first, [user("z")])
    assert onward.prompt_ids == s.prepare(onward.messages).prompt_ids
    s.check()


def test_follow_keeps_to_the_thinking_policy(session: MakeSession) -> None:
    s = session(thinking="template")
    turn = s.ask([user("go")], "<think>\nplan\n</think>\n\nhi")
    prepared = s.graph.follow(turn, [user("more")])
    assert prepared.rerendered and prepared.prompt_ids == s.renderer.initial(prepared.messages, [BASH])
    s.say(prepared, "done")
    assert len(s.check()) == 2
