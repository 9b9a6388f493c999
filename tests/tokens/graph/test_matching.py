"""Which histories are the same, and which are not."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from typing import Any

import pytest

from tests.tokens.graph.conftest import MakeSession
from tests.tokens.graph.echo import Echo
from tests.tokens.small import BASH, asks, result, user
from uni_agent.tokens.graph import MaskedMatcher, StrictMatcher
from uni_agent.tokens.graph.matcher import fits_mask
from uni_agent.types import Message, ToolCall, parse_messages

THOUGHT = '<think>\nplan\n</think>\n\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'


def test_case_1_thinking_kept_stripped_or_moved_keeps_the_whole_signal(session: MakeSession) -> None:
    for thinking in ("kept", "stripped", "moved"):
        s = session()
        history: list[Message] = [user("go")]
        for i in range(3):
            turn = s.ask(history, THOUGHT.replace("plan", f"plan {i}"))
            history = [*Echo(thinking=thinking)([*history, turn.message]), result(f"out {i}")]
        (chain,) = s.check()
        assert sum(chain.cache.response_mask) == sum(map(len, s.sampled.values()))
        assert s.graph.turns[2].drift == ("clean" if thinking == "kept" else "realigned")


def test_case_2_tok_04_a_new_user_turn_keeps_the_thinking_that_the_template_drops(session: MakeSession) -> None:
    s = session()
    turn = s.ask([user("go")], "<think>\nplan\n</think>\n\nhi", ())
    prepared = s.prepare([user("go"), Message("assistant", "hi"), user("more")], ())
    text = s.text(prepared.prompt_ids)
    assert prepared.parent is turn and prepared.drift == "realigned" and s.graph.thinking == "keep"
    assert text.count("plan") == text.count("more") == text.count("go<|im_end|>") == 1
    s.say(prepared, "done")
    (chain,) = s.check()
    assert chain.trained == (0, 1)


def test_case_3_any_splitting_of_the_sample_stays(session: MakeSession) -> None:
    s = session()
    ids = [id_ for letter in THOUGHT for id_ in s.renderer.tokenizer.encode_plain(letter)]
    ids.append(s.renderer.stop_token_ids[0])
    turn = s.say(s.prepare([user("go")]), "", ids=ids)
    assert len(ids) > len(s.renderer.tokenizer.encode(THOUGHT))
    prepared = s.prepare([user("go"), turn.message, result("A")])
    start = len(s.prompts[0])
    assert prepared.prompt_ids[start : start + len(ids)] == ids
    s.say(prepared, "done")
    s.check()


ODD = '<tool_call>\n{"name":"bash", "arguments": {"timeout":5,"command":"echo \'<a>\' é"}}\n</tool_call>'


@pytest.mark.parametrize(
    "arguments",
    [
        '{"command": "echo \'<a>\' \\u00e9", "timeout": 5}',
        '{"timeout":5,"command":"echo \'<a>\' é"}',
        '{"timeout": 5.0, "command": "echo \'<a>\' é"}',
        '{"timeout": 4, "timeout": 5, "command": "echo \'<a>\' é"}',
        '\n{ "command":\t"echo \'\\u003ca>\' é", "timeout": 5 }',
    ],
)
def test_case_4_tok_15_arguments_are_compared_by_value(session: MakeSession, arguments: str) -> None:
    s = session()
    turn = s.ask([user("go")], ODD)
    call: dict[str, Any] = {"id": "new", "function": {"name": "bash", "arguments": arguments}}
    echoed = parse_messages([{"role": "assistant", "content": None, "tool_calls": [call]}])
    prepared = s.prepare([user("go"), *echoed, result("A", "new")])
    assert prepared.parent is turn
    assert s.text(prepared.prompt_ids).count('{"timeout":5,"command"') == 1
    s.say(prepared, "done")
    assert len(s.check()) == 1


@pytest.mark.parametrize("arguments", ['{"timeout": "5"}', '{"timeout": true}', '{"timeout": 1, "x": null}', "{}"])
def test_case_4_other_values_are_other_turns(session: MakeSession, arguments: str) -> None:
    s = session()
    s.ask([user("go")], '<tool_call>\n{"name": "bash", "arguments": {"command": "a", "timeout": 1}}\n</tool_call>')
    call: dict[str, Any] = {"id": "c", "function": {"name": "bash", "arguments": arguments}}
    prepared = s.prepare([user("go"), *parse_messages([{"role": "assistant", "tool_calls": [call]}]), result("A")])
    assert prepared.parent is None and prepared.drift == "forked" and prepared.continues is None


@pytest.mark.parametrize(
    ("written", "returned", "same"),
    [
        ("12345678901234567890", "12345678901234567000", True),
        ("12345678901234567890", "12345678901234567168.0", True),
        ("1e3", "1000", True),
        ("-0.0", "0", True),
        ("0.1", "0.10000000000000000555", True),
        ("1e999", "1" + 400 * "0", True),
        ("9007199254740993", "9007199254740992", True),
        ("9007199254740994", "9007199254740992", False),
        ("0.1", "0.10000000000000002", False),
        ("1e999", "-1e999", False),
        ("1", "true", False),
        ("true", '"true"', False),
        ("1", '"1"', False),
    ],
)
@pytest.mark.parametrize("matcher", [StrictMatcher(), MaskedMatcher()])
def test_case_4_numbers_are_the_doubles_that_a_javascript_client_makes_of_them(
    session: MakeSession, matcher: StrictMatcher, written: str, returned: str, same: bool
) -> None:
    s = session(matcher=matcher)
    text = f'<tool_call>\n{{"name": "bash", "arguments": {{"command": "a", "n": [{written}]}}}}\n</tool_call>'
    turn = s.ask([user("go")], text)
    arguments = f'{{"n": [{returned}], "command": "a"}}'
    call: dict[str, Any] = {"id": "c", "function": {"name": "bash", "arguments": arguments}}
    prepared = s.prepare([user("go"), *parse_messages([{"role": "assistant", "tool_calls": [call]}]), result("A")])
    assert (prepared.parent is turn) == same
    masked = Message(
        "assistant", tool_calls=(ToolCall("c", "bash", {"n": json.loads(f"[{returned}]"), "command": "***"}),)
    )
    assert (s.prepare([user("go"), masked]).parent is turn) == (same and isinstance(matcher, MaskedMatcher))


def test_case_4_a_malformed_call_comes_back_as_it_was_written(session: MakeSession) -> None:
    s = session()
    turn = s.ask([user("go")], '<tool_call>\n{"name": "bash", "arguments": {"command": True}\n</tool_call>')
    echoed = Message(
        turn.message.role,
        turn.message.content,
        tool_calls=tuple(ToolCall("n", c.name, {}, c.raw_arguments, "not JSON") for c in turn.message.tool_calls),
    )
    assert s.prepare([user("go"), echoed, user("again")]).parent is turn


def test_case_5_parallel_results_in_any_order_under_any_ids(session: MakeSession) -> None:
    s = session()
    said = asks("ls", "pwd", "id")
    turn = s.write(s.prepare([user("go")]), said)
    results = [result("A", "c0"), result("B", "c1"), result("C", "c2")]
    plain = s.prepare([user("go"), turn.message, *results])
    for order in ([2, 0, 1], [1, 2, 0]):
        for echo in (Echo(), Echo(ids="renamed")):
            again = s.prepare(echo([user("go"), turn.message, *(results[i] for i in order)]))
            assert again.parent is turn and again.prompt_ids == plain.prompt_ids
    swapped = [result("A", "c1"), result("B", "c0"), result("C", "c2")]
    assert s.prepare([user("go"), turn.message, *swapped]).prompt_ids != plain.prompt_ids
    nameless = [result(text, "") for text in "ABC"]
    assert s.prepare([user("go"), turn.message, *nameless]).prompt_ids == plain.prompt_ids
    missing = s.prepare([user("go"), turn.message, results[2]])
    assert missing.parent is turn and "A\n" not in s.text(missing.prompt_ids)


def test_ids_of_a_client_that_swaps_them_still_name_the_right_calls(session: MakeSession) -> None:
    s = session()
    turn = s.write(s.prepare([user("go")]), asks("ls", "pwd"))
    calls = tuple(
        ToolCall(id_, c.name, c.arguments) for id_, c in zip(("c1", "c0"), turn.message.tool_calls, strict=True)
    )
    prepared = s.prepare(
        [user("go"), Message("assistant", tool_calls=calls), result("first", "c1"), result("second", "c0")]
    )
    text = s.text(prepared.prompt_ids)
    assert prepared.parent is turn and text.index("first") < text.index("second")


def test_case_7_a_nonce_in_the_system_message_is_no_part_of_its_meaning(session: MakeSession) -> None:
    s = session(matcher=StrictMatcher(ignore=re.compile(r"x-request-nonce: \w+\n")))
    history: list[Message] = []
    for i in range(4):
        system = Message("system", f"x-request-nonce: {i}abc\nBe brief.")
        turn = s.ask([system, user("go"), *history], f"step {i}")
        history += [turn.message, Message("system", f"reminder {i}"), user(f"next {i}")]
    (chain,) = s.check()
    assert chain.trained == (0, 1, 2, 3)


def test_relaxed_matching_takes_masked_secrets_for_the_same_turn(session: MakeSession) -> None:
    text = '<tool_call>\n{"name": "bash", "arguments": {"command": "login --token sk-123 now"}}\n</tool_call>'
    for matcher, same in ((None, False), (MaskedMatcher(), True)):
        s = session(matcher=matcher)
        turn = s.ask([user("my key is sk-123")], text)
        masked = [user("my key is ***"), asks("login --token *** now"), result("ok")]
        prepared = s.prepare(masked)
        assert (prepared.parent is turn) == same
        assert ("sk-123 now" in s.text(prepared.prompt_ids)) == same
        other = [user("my key is ***"), asks("logout --token *** now"), result("ok")]
        assert s.prepare(other).parent is None


def test_relaxed_matching_prefers_the_exact_history(session: MakeSession) -> None:
    s = session(matcher=MaskedMatcher())
    first, masked = s.ask([user("go")], "secret a"), s.ask([user("go")], "secret ***")
    newest = s.ask([user("go")], "secret b")
    assert s.prepare([user("go"), Message("assistant", "secret ***"), user("q")]).parent is masked
    assert s.prepare([user("go"), Message("assistant", "secret a"), user("q")]).parent is first
    assert s.prepare([user("go"), Message("assistant", "sec***"), user("q")]).parent is newest


@pytest.mark.parametrize(
    ("text", "masked", "same"),
    [
        ("abc", "abc", True),
        ("abc", "***", True),
        ("abc", "a***c", True),
        ("abc", "a******", True),
        ("abcabd", "***ab***d", True),
        ("ab", "ab***ab", False),
        ("abc", "b***", False),
        ("abc", "a**c", False),
        ("a***c", "abc", False),
    ],
)
def test_masks_stand_for_any_text(text: str, masked: str, same: bool) -> None:
    assert fits_mask(text, masked) == same


def test_masks_of_a_hostile_client_cost_linear_time() -> None:
    started = time.monotonic()
    assert not fits_mask("a" * 200_000 + "c", "***".join("a" * 20_000) + "***b")
    assert time.monotonic() - started < 5


def test_hostile_messages_are_read(session: MakeSession) -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    odd = ToolCall("c", "bash", deep, "raw")
    reading = StrictMatcher().read([Message("assistant", "\ud800 lone", tool_calls=(odd,)), user("")])
    assert len(reading) == 2
    s = session()
    assert s.prepare([Message("tool", "x", tool_call_id="nobody"), user("")]).parent is None
    with pytest.raises(ValueError, match="at least one message"):
        s.prepare([])


def test_tools_in_another_order_or_spelling_are_the_same_tools(session: MakeSession) -> None:
    s = session()
    tools: list[Any] = [BASH, {"type": "function", "function": {"name": "b", "parameters": {}}}]
    turn = s.ask([user("go")], "hi", tools)
    other: list[Any] = [{"function": {"parameters": {}, "name": "b"}, "type": "function"}, BASH]
    assert s.prepare([user("go"), turn.message, user("q")], other).parent is turn
    assert s.prepare([user("go"), turn.message, user("q")], [BASH]).drift == "forked"


def test_twins_that_say_the_same_are_told_apart_by_their_call_ids(session: MakeSession) -> None:
    s = session()
    ask = [user("one task for two")]
    ids = ["0123456789abcdef0123456700", "fedcba9876543210fedcba9800"]
    said = [replace(asks("ls"), tool_calls=(ToolCall(f"call{name}", "bash", {"command": "ls"}),)) for name in ids]
    twins = [s.write(s.prepare(ask), message) for message in said]
    assert [turn.message for turn in twins] == said
    for number in (1, 0, 1):
        call = ToolCall(f"toolu_{ids[number]}", "bash", {"command": "ls"})
        echo = [*ask, Message("assistant", tool_calls=(call,)), Message("tool", "same", tool_call_id=call.id)]
        assert s.prepare(echo).parent is twins[number]
        s.write(s.prepare(echo), Message("assistant", "done"))
