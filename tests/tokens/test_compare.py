from __future__ import annotations

import json

import pytest

from tests.tokens.small import asks, user
from uni_agent.tokens.compare import same_turn
from uni_agent.types import Message, ToolCall


def call(arguments: object, **kwargs: str) -> Message:
    assert isinstance(arguments, dict)
    return Message("assistant", tool_calls=(ToolCall(kwargs.get("id", "a"), kwargs.get("name", "bash"), arguments),))  # pyright: ignore


def test_tok_15_odd_spacing_order_and_escapes_are_the_same_turn() -> None:
    sampled = call({"timeout": 5, "command": "echo '<a>' é"})
    returned = call(json.loads('{"command": "echo \'<a>\' \\u00e9", "timeout": 5}'), id="other")
    assert same_turn(sampled, returned)


@pytest.mark.parametrize(
    ("other"),
    [
        call({"timeout": 5, "command": "x"}),
        call({"timeout": True, "command": "echo"}),
        call({"timeout": 1}),
        call({"timeout": 1, "command": "echo"}, name="python"),
        Message("assistant"),
        asks("echo", "echo"),
        user(""),
    ],
)
def test_other_words_are_another_turn(other: Message) -> None:
    assert not same_turn(call({"timeout": 1, "command": "echo"}), other)


def test_parse_19_an_empty_list_of_calls_is_no_difference() -> None:
    assert same_turn(Message("assistant", "hi"), Message("assistant", "hi", tool_calls=()))


def test_dropped_or_inlined_thinking_is_the_same_turn_changed_thinking_is_not() -> None:
    sampled = Message("assistant", "hi", "plan\n")
    assert same_turn(sampled, Message("assistant", "hi"))
    assert same_turn(sampled, Message("assistant", "<think>\nplan\n</think>\n\nhi"))
    assert not same_turn(sampled, Message("assistant", "hi", "another plan"))


def test_broken_calls_are_compared_as_written() -> None:
    broken = Message("assistant", tool_calls=(ToolCall("a", "bash", {}, '{"command": "ls', "not JSON"),))
    assert same_turn(broken, broken)
    assert not same_turn(broken, call({"command": "ls"}))


def test_other_roles_agree_word_for_word() -> None:
    assert same_turn(user("a"), user("a")) and not same_turn(user("a"), user("a "))
