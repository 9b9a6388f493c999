"""The graph and the renderer: same ids as one chain in process, and a way out when a template cannot go on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.tokens.graph.support import Session, renderer_of
from tests.tokens.small import BASH, asks, result, user
from uni_agent.engine.base import TokenOutput
from uni_agent.tokens.base import ToolSchema
from uni_agent.tokens.cache import RolloutCache
from uni_agent.tokens.graph import SessionGraph
from uni_agent.tokens.parsers import build_parser
from uni_agent.tokens.renderer import ChatTemplateRenderer, TemplateDriftError
from uni_agent.types import Message


class Stubborn(ChatTemplateRenderer):
    """Cannot continue any chain."""

    def extension(
        self,
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[ToolSchema],
        *,
        cut: bool,
        chain: Sequence[int] | None = None,
    ) -> list[int]:
        raise TemplateDriftError("the template shows the time")


@pytest.mark.parametrize("name", ["policy", "qwen2_5", "qwen3", "qwen3_coder", "qwen3_6"])
def test_ids_masks_and_logprobs_are_those_of_a_single_chain(name: str) -> None:
    renderer = renderer_of(name)
    s = Session(SessionGraph("s", renderer), renderer)
    history: list[Message] = [Message("system", "rules"), user("go")]
    cache = RolloutCache("s/3", prompt_ids=renderer.initial(history, [BASH]))
    for i in range(4):
        prepared = s.prepare(history)
        assert prepared.prompt_ids == cache.ids
        turn = s.write(prepared, asks(f"ls {i}", "pwd"))
        cache.append_sampled(TokenOutput(turn.ids, turn.logprobs, "stop", turn.weight_spans), i)
        history.append(turn.message)
        new = [result("A", "c0"), result("B", "c1"), user("and?")]
        if i < 3:
            cache.append_context(renderer.extension(history, new, [BASH], cut=False), i)
        history += new
    (chain,) = s.check()
    assert chain.cache.routed_experts is not None
    chain.cache.routed_experts = None
    assert chain.cache == cache


def test_a_template_that_cannot_go_on_starts_a_tree_and_loses_nothing() -> None:
    base = renderer_of("qwen3")
    renderer = Stubborn(base.tokenizer, base.template, build_parser("hermes"), reasoning=True)
    s = Session(SessionGraph("s", renderer), renderer)
    history: list[Message] = [user("go")]
    for i in range(3):
        prepared = s.prepare(history)
        assert bool(prepared.rerendered) == bool(i) and prepared.drift == ("clean" if i else "new")
        assert prepared.prompt_ids == renderer.initial(history, [BASH]) and prepared.reused == 0
        assert prepared.continues is (s.graph.turns[-1] if i else None) and prepared.parent is None
        turn = s.say(prepared, f"turn {i}")
        history += [turn.message, user("more")]
    chains = s.check()
    assert [chain.trained for chain in chains] == [(0,), (1,), (2,)]
    assert [chain.continues for chain in chains] == [None, "s/0", "s/1"] and s.graph.account().renewed == 2
    assert s.prepare([user("go"), s.graph.turns[0].message, user("something else")]).drift == "forked"
    again = s.prepare(history[:3])
    assert again.context is s.graph.turns[1].context


def test_case_2_the_deviation_from_a_full_render_is_the_thinking_alone() -> None:
    for name in ("qwen3", "qwen3_6"):
        renderer = renderer_of(name)
        s = Session(SessionGraph("s", renderer), renderer)
        said = Message("assistant", "hi", "plan")
        turn = s.write(s.prepare([user("go")], ()), said)
        prepared = s.prepare([user("go"), turn.message, user("more")], ())
        stock = s.text(renderer.initial(prepared.messages, ()))
        assert "plan" in s.text(prepared.prompt_ids) and "plan" not in stock
        assert s.text(prepared.prompt_ids).replace("<think>\nplan\n</think>\n\n", "") == stock
