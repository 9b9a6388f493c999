"""Sampled ids back to messages, and the limit in tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokens.conftest import MakeRenderer
from tests.tokens.small import BASH, MARKUP, SPECIAL
from uni_agent.tokens.limit import limit_tokens
from uni_agent.tokens.tokenizer import ChatTokenizer

NOTICE = "\n[... {omitted} tokens left out ...]\n"


def test_tok_08_control_tokens_are_part_of_what_is_read_and_kept(make: MakeRenderer) -> None:
    renderer = make("qwen3")
    text = 'ok<tool_call>\n{"name":"bash","arguments":{}}\n</tool_call><|im_end|>'
    ids = renderer.tokenizer.encode(text)
    controls = renderer.tokenizer.controls.ids
    assert {controls["<tool_call>"], controls["</tool_call>"], controls["<|im_end|>"]} <= set(ids)
    assert "".join(renderer.decode([id_]) for id_ in ids) == renderer.decode(ids) == text
    parsed = renderer.parse(ids, [BASH])
    assert parsed.content == "ok"
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == [("bash", {})]


def test_tok_12_text_that_starts_inside_thinking(make: MakeRenderer) -> None:
    renderer = make("qwen3_6")
    assert renderer.starts_in_reasoning
    text = (
        "I should list files.\n</think>\n\n<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n"
        "</function>\n</tool_call><|im_end|>"
    )
    parsed = renderer.parse(renderer.tokenizer.encode(text), [BASH])
    assert parsed.reasoning == "I should list files.\n"
    assert parsed.content == ""
    assert [call.arguments for call in parsed.tool_calls] == [{"command": "ls"}]


def test_tok_12_with_thinking_off_plain_text_is_content(make: MakeRenderer) -> None:
    for name in ("qwen3_6", "qwen3"):
        renderer = make(name, enable_thinking=False)
        assert not renderer.starts_in_reasoning
        parsed = renderer.parse(renderer.tokenizer.encode("Plain answer<|im_end|>"), [])
        assert (parsed.content, parsed.reasoning) == ("Plain answer", "")


def test_only_a_final_stop_token_is_taken_off(make: MakeRenderer) -> None:
    renderer = make("qwen2_5")
    assert renderer.parse(renderer.tokenizer.encode("a<|endoftext|>"), []).content == "a"
    assert renderer.parse(renderer.tokenizer.encode("a"), []).content == "a"
    assert renderer.parse([], []).content == ""


def test_a_stream_agrees_with_the_whole(make: MakeRenderer) -> None:
    renderer = make("qwen3")
    text = '<think>\nplan\n</think>\n\nok\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
    stream = renderer.stream([BASH])
    for char in text:
        stream.feed(char)
    streamed = stream.finish()[1]
    whole = renderer.parse(renderer.tokenizer.encode(text), [BASH])
    assert (streamed.content, streamed.reasoning) == (whole.content, whole.reasoning) == ("ok", "plan\n")
    assert streamed.tool_calls[0].arguments == whole.tool_calls[0].arguments


# ------------------------------------------------------------------------------------------ limits


def test_tok_13_the_limit_counts_tokens_and_cuts_no_character(small_tokenizer: ChatTokenizer) -> None:
    text = "漢" * 310
    out = limit_tokens(small_tokenizer, text, 256, NOTICE)
    assert len(small_tokenizer.encode_plain(out)) <= 256
    head, _, tail = out.partition("\n[... ")
    assert set(head) == {"漢"} and tail.endswith("漢") and "\ufffd" not in out
    assert len(small_tokenizer.encode_plain(out)) > 240


def test_the_notice_tells_how_many_tokens_are_missing(small_tokenizer: ChatTokenizer) -> None:
    text = " a1" * 400
    total = len(small_tokenizer.encode_plain(text))
    out = limit_tokens(small_tokenizer, text, 100, NOTICE)
    omitted = int(out.partition("[... ")[2].partition(" ")[0])
    kept = len(small_tokenizer.encode_plain(out)) - len(
        small_tokenizer.encode_plain(NOTICE.replace("{omitted}", str(omitted)))
    )
    assert abs(total - omitted - kept) <= 2  # tokens at the two seams


def test_a_text_that_fits_is_left_alone(small_tokenizer: ChatTokenizer) -> None:
    text = "short {omitted} <|im_end|>"
    assert limit_tokens(small_tokenizer, text, len(small_tokenizer.encode_plain(text)), NOTICE) == text


@given(
    parts=st.lists(
        st.one_of(
            st.text(st.characters(codec="utf-8"), max_size=8),
            st.sampled_from([*SPECIAL, *MARKUP, "漢", "🧪", "e\u0301"]),
        ),
        max_size=40,
    ),
    limit=st.integers(0, 120),
)
def test_no_limit_is_exceeded_and_no_marker_cut(small_tokenizer: ChatTokenizer, parts: list[str], limit: int) -> None:
    text = "".join(parts)
    out = limit_tokens(small_tokenizer, text, limit, "[{omitted}]")
    assert len(small_tokenizer.encode_plain(out)) <= limit
    if out == text:
        return
    assert out.count("\ufffd") <= text.count("\ufffd")
    head = next(n for n in range(len(out), -1, -1) if text.startswith(out[:n]))
    for match in small_tokenizer.controls.finder().finditer(text):
        assert not match.start() < head < match.end() or out[head - 1 : head] in "<["


def test_a_very_long_text_is_limited_without_encoding_all_of_it(small_tokenizer: ChatTokenizer) -> None:
    text = "start " + "abc 漢字\n" * 80_000 + " end"
    out = limit_tokens(small_tokenizer, text, 64, NOTICE)
    assert len(small_tokenizer.encode_plain(out)) <= 64
    assert out.startswith("start ") and out.endswith(" end") and "[... about " in out
    about = int(out.partition("about ")[2].partition(" ")[0])
    assert 0.5 < about / (80_000 * len(small_tokenizer.encode_plain("abc 漢字\n"))) < 2


@pytest.mark.parametrize("limit", [0, 1, 3, 8])
def test_a_limit_too_small_for_the_notice_keeps_the_start(small_tokenizer: ChatTokenizer, limit: int) -> None:
    out = limit_tokens(small_tokenizer, "漢字 is a word, and here are more words", limit, NOTICE)
    assert "漢字 is a word, and here are more words".startswith(out)
    assert len(small_tokenizer.encode_plain(out)) <= limit
