"""Thought, action and text of sampled turns."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokens.conftest import MakeRenderer
from tests.tokens.parsers.support import hermes_call, xml_call
from tests.tokens.small import BASH
from uni_agent.tokens.renderer import ChatTemplateRenderer
from uni_agent.tokens.segments import Segment, turn_segments

FORMATS = {"qwen3": hermes_call("bash", {"command": "ls é"}), "qwen3_coder": xml_call("bash", command="ls é")}


def encode(renderer: ChatTemplateRenderer, text: str, *, stop: bool = False) -> list[int]:
    ids = renderer.tokenizer.encode_after_control(text)
    return [*ids, renderer.stop_token_ids[0]] if stop else ids


def shown(renderer: ChatTemplateRenderer, ids: list[int], segments: list[Segment]) -> list[tuple[str, str]]:
    return [(kind, renderer.decode(ids[start:end])) for kind, start, end in segments]


def split(renderer: ChatTemplateRenderer, text: str, *, stop: bool = False) -> list[tuple[str, str]]:
    ids = encode(renderer, text, stop=stop)
    return shown(renderer, ids, turn_segments(renderer, ids, [BASH]))


@pytest.fixture(params=sorted(FORMATS))
def case(request: pytest.FixtureRequest, make: MakeRenderer) -> tuple[ChatTemplateRenderer, str]:
    return make(request.param), FORMATS[request.param]


def test_thinking_and_prose_before_a_call_are_thought(case: tuple[ChatTemplateRenderer, str]) -> None:
    renderer, call = case
    found = split(renderer, f"I look first.\n\n{call}", stop=True)
    assert [kind for kind, _ in found] == ["thought", "action"]
    assert found[0][1].startswith("I look first.")
    assert found[1][1].endswith("</tool_call><|im_end|>")


def test_a_thinking_block_is_thought_with_its_tags(make: MakeRenderer) -> None:
    found = split(make("qwen3"), f"<think>\nhm <tool_call> no\n</think>\n\n{FORMATS['qwen3']}")
    assert [kind for kind, _ in found] == ["thought", "action"]
    assert "</think>" in found[0][1]


def test_the_answer_of_a_turn_without_a_call_is_text(make: MakeRenderer) -> None:
    found = split(make("qwen3"), "<think>\nhm\n</think>\n\nDone.", stop=True)
    assert [kind for kind, _ in found] == ["thought", "text"]
    assert found[1][1].strip() == "Done.<|im_end|>"


def test_text_behind_calls_is_text_and_space_between_calls_is_theirs(case: tuple[ChatTemplateRenderer, str]) -> None:
    renderer, call = case
    assert [kind for kind, _ in split(renderer, f"{call}\n{call}\n")] == ["action"]
    assert [kind for kind, _ in split(renderer, f"{call}\n{call}\nDone.")] == ["action", "text"]


def test_broken_and_cut_calls_are_actions(case: tuple[ChatTemplateRenderer, str]) -> None:
    renderer, call = case
    assert [kind for kind, _ in split(renderer, f"So.\n{call[: len(call) // 2]}")] == ["thought", "action"]
    assert [kind for kind, _ in split(renderer, "So.\n<tool_call>\nls\n</tool_call>")] == ["thought", "action"]


def test_a_quoted_tag_begins_no_call(case: tuple[ChatTemplateRenderer, str]) -> None:
    renderer, _ = case
    assert [kind for kind, _ in split(renderer, "The tag is `<tool_call>`, I think.")] == ["text"]


def test_a_value_that_holds_a_whole_call_is_one_action(make: MakeRenderer) -> None:
    inner = xml_call("bash", command="echo")
    found = split(make("qwen3_coder"), f"So.\n{xml_call('bash', command=f'cat <<E{chr(10)}{inner}{chr(10)}E')}\nBye.")
    assert [kind for kind, _ in found] == ["thought", "action", "text"]
    assert found[2][1].strip() == "Bye."


def test_nothing_and_a_lone_stop_token(make: MakeRenderer) -> None:
    renderer = make("qwen3")
    assert turn_segments(renderer, []) == []
    assert turn_segments(renderer, [renderer.stop_token_ids[0]]) == [("text", 0, 1)]


def test_a_character_of_several_tokens_goes_where_it_begins(make: MakeRenderer) -> None:
    renderer = make("qwen3")
    ids = encode(renderer, "<think>\n🦀</think>🦀")
    assert [kind for kind, _, _ in turn_segments(renderer, ids)] == ["thought", "text"]
    assert shown(renderer, ids, turn_segments(renderer, ids)) == [("thought", "<think>\n🦀</think>"), ("text", "🦀")]


PIECES = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<function=bash>", "<function=other>", "</function>",
    "<parameter=command>", "</parameter>", "\n", " ", "`", '"', "{", "}", '{"name": "bash", "arguments": {}}', "é漢🦀",
    "ls", "<", "<tool", "<function=bash",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(parts=st.lists(st.sampled_from(PIECES), max_size=25), stop=st.booleans(), name=st.sampled_from(sorted(FORMATS)))
def test_segments_tile_a_turn_and_there_is_an_action_exactly_with_a_call(
    make: MakeRenderer, parts: list[str], stop: bool, name: str
) -> None:
    renderer = make(name)
    ids = encode(renderer, "".join(parts), stop=stop)
    segments = turn_segments(renderer, ids, [BASH])
    assert [start for _, start, _ in segments] == [0, *(end for _, _, end in segments[:-1])][: len(segments)]
    assert (segments[-1][2] if segments else 0) == len(ids)
    assert all(start < end for _, start, end in segments)
    assert all(a[0] != b[0] for a, b in pairwise(segments))
    calls = renderer.parse(ids, [BASH]).tool_calls
    assert any(kind == "action" for kind, _, _ in segments) == bool(calls)


@pytest.mark.parametrize(
    "unit", ["<tool_call>", "</parameter>\n</function>\n</tool_call>\nx\n</function>\n", "<", "a "]
)
def test_the_cost_is_linear(make: MakeRenderer, unit: str) -> None:
    renderer = make("qwen3_coder")
    head = "<tool_call>\n<function=bash>\n<parameter=command>\n"

    def cost(times: int) -> float:
        ids = encode(renderer, head + unit * times)
        return min(_timed(renderer, ids) for _ in range(3))

    assert cost(4000) < 40 * max(cost(400), 1e-3)


def _timed(renderer: ChatTemplateRenderer, ids: list[int]) -> float:
    begin = time.process_time()
    turn_segments(renderer, ids, [BASH])
    return time.process_time() - begin
