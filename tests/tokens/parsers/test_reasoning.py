import pytest

from tests.tokens.parsers.support import TOOLS, agree, hermes, hermes_call, xml, xml_call
from uni_agent.tokens.base import ParsedOutput
from uni_agent.tokens.parsers import OutputParser

LS = hermes_call("bash", {"command": "ls"})


def read(text: str, *, reasoning: bool = True, inside: bool = False, pairs: bool = False) -> ParsedOutput:
    parser = OutputParser(hermes(), reasoning=reasoning, starts_in_reasoning=inside)
    return agree(parser, text, TOOLS, pairs=pairs)


def test_call_inside_thinking_is_never_a_call_parse_08() -> None:
    thought = 'Maybe <tool_call>{"name":"bash","arguments":{"command":"rm -rf build"}}</tool_call>? No.\n'
    result = read(f"<think>\n{thought}</think>\n\n{LS}")
    assert result.reasoning == thought
    assert result.content == ""
    assert [call.arguments for call in result.tool_calls] == [{"command": "ls"}]
    assert not result.marker_seen


def test_every_pair_of_cuts_gives_the_same() -> None:
    result = read("<think>\nA <b\n</think>\n\nHi <tool_call>{}</tool_call>", pairs=True)
    assert (result.reasoning, result.content, len(result.tool_calls)) == ("A <b\n", "Hi", 1)


@pytest.mark.parametrize(("text", "inside"), [(f"<think>\nLet me\n{LS}", False), (f"Let me\n{LS}\n", True)])
def test_call_inside_unclosed_thinking_is_flagged_but_no_call_parse_08(text: str, inside: bool) -> None:
    result = read(text, inside=inside)
    assert result.reasoning == text.removeprefix("<think>\n")
    assert (result.content, result.tool_calls, result.marker_seen) == ("", (), True)


def test_unclosed_thinking_without_markup_is_not_flagged() -> None:
    result = read("<think>\nhm </thin")
    assert (result.reasoning, result.marker_seen) == ("hm </thin", False)


def test_opener_in_the_prompt_tok_12() -> None:
    parser = OutputParser(xml(), reasoning=True, starts_in_reasoning=True)
    text = "I should list files.\n</think>\n\n" + xml_call("bash", command="ls")
    result = agree(parser, text, TOOLS, pairs=False)
    assert result.reasoning == "I should list files.\n"
    assert result.content == ""
    assert [call.arguments for call in result.tool_calls] == [{"command": "ls"}]


def test_opener_that_the_model_repeats_is_dropped() -> None:
    assert read("<think>\nA\n</think>\n\nB", inside=True) == read("A\n</think>\n\nB", inside=True)


def test_plain_answer_is_content_with_thinking_off_tok_12() -> None:
    for reasoning in (True, False):
        result = read("Plain answer", reasoning=reasoning)
        assert (result.content, result.reasoning) == ("Plain answer", "")


def test_without_reasoning_the_tags_are_text_parse_08() -> None:
    result = read(f"<think>\nA\n</think>\n\n{LS}", reasoning=False)
    assert result.content == "<think>\nA\n</think>"
    assert result.reasoning == ""
    assert len(result.tool_calls) == 1


@pytest.mark.parametrize("text", ["<think>\n\n</think>\n\nHi", "<think></think>Hi", "\n <think>\n</think>\n\n\n\nHi"])
def test_empty_thinking_is_none(text: str) -> None:
    result = read(text)
    assert (result.reasoning, result.content) == ("", "Hi")


def test_only_line_breaks_after_the_closing_tag_are_dropped() -> None:
    assert read("<think>A</think>\n\n  code\n").content == "  code\n"


def test_later_thinking_is_split_off_and_tags_inside_calls_are_text() -> None:
    inner = hermes_call("bash", {"command": "echo '\n<think>'"})
    for between in ("\n", ""):
        result = read(f"<think>\nA</think>\n{inner}{between}<think>\nB {LS}\n</think>\n\n{LS}\nEnd")
        assert result.reasoning == f"A\nB {LS}\n"
        assert result.content == "End"
        assert [call.arguments["command"] for call in result.tool_calls] == ["echo '\n<think>'", "ls"]


def test_xml_value_may_hold_a_line_that_opens_thinking() -> None:
    parser = OutputParser(xml(), reasoning=True)
    text = (
        xml_call("write_file", path="a", content="\n<think>\n</think>\n")
        + "\n<think>\n"
        + xml_call("bash", command="x")
    )
    result = agree(parser, text, TOOLS, pairs=False)
    assert [call.arguments for call in result.tool_calls] == [{"path": "a", "content": "\n<think>\n</think>\n"}]
    assert result.reasoning == xml_call("bash", command="x")


def test_thinking_named_in_prose_is_content() -> None:
    text = "Use the <think> tag."
    assert read(text).content == text


@pytest.mark.parametrize("text", ["", " ", "\n\n", "<", "<think", "<think>", "<think>\n", " <think> \n </think> "])
def test_short_texts_hold_no_thinking(text: str) -> None:
    for inside in (False, True):
        result = read(text, inside=inside)
        assert result.tool_calls == ()
        assert result.reasoning in ("", text)
