"""What a turn costs: reading and rendering what is new. Counted, not timed."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.tokens.graph.support import POLICY, Session, renderer_of
from tests.tokens.small import asks, result, user
from uni_agent.tokens.graph import Reading, SessionGraph, StrictMatcher
from uni_agent.tokens.parsers import build_parser
from uni_agent.tokens.renderer import ChatTemplateRenderer
from uni_agent.tokens.tokenizer import ChatTokenizer
from uni_agent.types import Message


class Counting(StrictMatcher):
    """Counts the messages that are read and the comparisons made."""

    def __init__(self) -> None:
        super().__init__()
        self.messages = self.compared = 0

    def read(self, messages: Sequence[Message]) -> list[Reading]:
        self.messages += len(messages)
        return super().read(messages)

    def same(self, stored: Reading, returned: Reading) -> bool:
        self.compared += 1
        return super().same(stored, returned)


class CountingTokenizer(ChatTokenizer):
    """Counts the characters that are encoded."""

    characters = 0

    def encode_plain(self, text: str) -> list[int]:
        self.characters += len(text)
        return super().encode_plain(text)

    def encode_after_control(self, text: str) -> list[int]:
        self.characters += len(text)
        return super().encode_after_control(text)


def test_a_turn_reads_and_encodes_only_what_is_new() -> None:
    base = renderer_of("qwen3")
    tokenizer = CountingTokenizer.from_folder(POLICY)
    assert isinstance(tokenizer, CountingTokenizer)
    renderer = ChatTemplateRenderer(tokenizer, base.template, build_parser("hermes"), reasoning=True)
    assert renderer.proof.transitions["messages"].append_only
    matcher = Counting()
    s = Session(SessionGraph("s", renderer, matcher=matcher), renderer)
    history: list[Message] = [user("go")]
    costs: list[tuple[int, int, int]] = []
    for i in range(120):
        before = matcher.messages, matcher.compared, tokenizer.characters
        prepared = s.prepare(history)
        costs.append(
            (
                matcher.messages - before[0],
                matcher.compared - before[1] - len(history),
                tokenizer.characters - before[2],
            )
        )
        turn = s.say(prepared, "<think>\nplan\n</think>\n\nstep")
        history += [turn.message, user(f"word {i:03d} " * 20)]
    assert [cost[0] for cost in costs] == [1] + [2] * 119  # the echoed turn and what follows it
    assert max(cost[1] for cost in costs) <= 0  # and compared at most once on a chain without branches
    assert len({cost[2] for cost in costs[1:]}) == 1  # turn 120 encodes what turn 2 does
    assert len(s.check()) == 1


def test_nodes_hold_their_own_tokens_only() -> None:
    renderer = renderer_of("qwen2_5")
    s = Session(SessionGraph("s", renderer), renderer)
    history: list[Message] = [user("go")]
    for i in range(60):
        turn = s.write(s.prepare(history), asks(f"ls {i}"))
        history += [turn.message, result("A" * 50)]
    stored = sum(len(turn.ids) + len(turn.context.ids) for turn in s.graph.turns)
    (chain,) = s.check()
    assert stored == len(chain.cache)


def test_deep_sessions_need_no_recursion() -> None:
    renderer = renderer_of("policy")
    s = Session(SessionGraph("s", renderer), renderer)
    history: list[Message] = [user("go")]
    for _ in range(400):
        turn = s.ask(history, "y", ())
        history += [turn.message, user("n")]
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(250)
    try:
        assert s.prepare(history, ()).parent is s.graph.turns[-1]
        assert len(s.graph.trajectories()) == 1
    finally:
        sys.setrecursionlimit(limit)
