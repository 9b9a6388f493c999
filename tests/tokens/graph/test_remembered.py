"""What is remembered of earlier requests never changes how a request is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from uni_agent.tokens.graph import Reading, StrictMatcher
from uni_agent.tokens.graph.remembered import ReadingMemory
from uni_agent.types import Message, ToolCall

CALLS = (
    (),
    (ToolCall("a", "run", {"x": 1}, '{"x": 1}'),),
    (ToolCall("a", "run", {"x": True}, '{"x": true}'), ToolCall("b", "run", {}, "{}")),
    (ToolCall("b", "run", {"x": 1}), ToolCall("a", "run", {"x": True})),
)


def assistant(text: str, calls: tuple[ToolCall, ...]) -> Message:
    return Message("assistant", text, tool_calls=calls)


def tool(text: str, id_: str) -> Message:
    return Message("tool", text, tool_call_id=id_)


def other(role: Literal["system", "user"], text: str) -> Message:
    return Message(role, text)


MESSAGES = st.one_of(
    st.builds(other, st.sampled_from(["system", "user"]), st.sampled_from(["go", "on"])),
    st.builds(assistant, st.sampled_from(["", "<think>why</think>so"]), st.sampled_from(CALLS)),
    st.builds(tool, st.sampled_from("12"), st.sampled_from("abz")),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.lists(MESSAGES, max_size=5)), min_size=1, max_size=12))
def test_a_memory_reads_what_the_matcher_reads(edits: list[tuple[int, list[Message]]]) -> None:
    """Each request is the one before, cut somewhere and gone on from there."""
    matcher = StrictMatcher()
    memory = ReadingMemory(matcher)
    history: list[Message] = []
    for keep, new in edits:
        history = [*history[: keep or len(history)], *new]
        assert memory.read(history) == matcher.read(history)


def test_arguments_that_python_takes_for_equal_are_read_apart() -> None:
    memory, matcher = ReadingMemory(StrictMatcher()), StrictMatcher()
    values: list[Any] = [1, True, 1.0]
    for value in values:
        history = [
            Message("user", "go"),
            Message("assistant", tool_calls=(ToolCall("a", "run", {"x": value}),)),
            Message("tool", "1", tool_call_id="a"),
            Message("assistant", "done"),
        ]
        assert [r.key for r in memory.read(history)] == [r.key for r in matcher.read(history)]


class Counting(StrictMatcher):
    """Counts the messages that are read."""

    messages = 0

    def read(self, messages: Sequence[Message]) -> list[Reading]:
        self.messages += len(messages)
        return super().read(messages)


def test_a_conversation_beside_the_main_one_does_not_push_it_out() -> None:
    matcher = Counting()
    memory = ReadingMemory(matcher)
    main, side = [Message("user", "main")] * 9, [Message("user", "side")]
    memory.read(main)
    for _ in range(5):
        side += [Message("assistant", "yes"), Message("user", "more")]
        memory.read(side)
    before = matcher.messages
    memory.read([*main, Message("assistant", "done")])
    assert matcher.messages - before == 1
