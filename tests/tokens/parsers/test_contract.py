"""What holds for every parser and any text."""

import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tokens.parsers.support import check_events, hermes, hermes_call, streamed, tool, xml, xml_call
from uni_agent.tokens.base import ToolParser
from uni_agent.tokens.parsers import PARSERS, OutputParser

FORMATS: dict[str, tuple[Callable[[], ToolParser], Callable[[str, dict[str, str]], str]]] = {
    "hermes": (hermes, hermes_call),
    "qwen3_coder": (xml, lambda name, values: xml_call(name, **values)),
}
TOOLS = [
    tool("bash", ["command"], command="string"),
    tool("write_file", ["path", "content"], path="string", content="string"),
    tool("count", n="integer", items="array"),
]
TAGS = [
    *("<tool_call>", "</tool_call>", "<function=bash>", "<function=x>", "</function>", "<think>", "</think>"),
    *("<parameter=content>", "<parameter=path>", "<parameter=zzz>", "<parameter=", "</parameter>"),
]
JUNK = ["\n", "\n\n", " ", "a", "`", "'", '"', "\\", *"{}[]:,", '{"name": "bash", "arguments": {']
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
LOOSE = st.lists(st.sampled_from([*TAGS, *JUNK]), max_size=25).map("".join)
# Inside a line no tag of a value counts; a tag at a line's start is covered case by case in test_qwen3_coder.
LINE = st.lists(
    st.sampled_from([*TAGS, "x", " ", "\t", '"', "\\", "}", "é", "🧪", "\x00", "\x1b", "\u2028"]), max_size=8
)
VALUE = TEXT | st.lists(LINE.map(lambda parts: "> " + "".join(parts) + " ."), max_size=4).map("\n".join)
COMMON = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], derandomize=True
)


def split(text: str, seed: int) -> list[str]:
    """`text` in random pieces."""
    rng = random.Random(seed)
    points = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(12)))
    return [text[a:b] for a, b in zip([0, *points], [*points, len(text)], strict=True)]


def check(parser: ToolParser, text: str, seed: int) -> None:
    whole = parser.parse(text, TOOLS)
    for pieces in (split(text, seed), list(text)):
        events, result = streamed(parser, pieces, TOOLS)
        assert result == whole
        check_events(events, result)
    assert whole.marker_seen is False or not any(call.error is None for call in whole.tool_calls)


def test_every_parser_is_under_this_contract() -> None:
    assert set(FORMATS) == set(PARSERS)


@pytest.mark.parametrize("name", FORMATS)
@settings(COMMON, max_examples=300)
@given(text=LOOSE | TEXT, seed=st.integers(0, 1 << 30), inside=st.booleans())
def test_any_text_is_read_the_same_for_any_cut_parse_11(name: str, text: str, seed: int, inside: bool) -> None:
    parser = FORMATS[name][0]()
    check(parser, text, seed)
    check(OutputParser(parser, reasoning=True, starts_in_reasoning=inside), text, seed)


@pytest.mark.parametrize("name", FORMATS)
@settings(COMMON, max_examples=200)
@given(
    calls=st.lists(st.tuples(VALUE, VALUE), min_size=1, max_size=3),
    content=st.sampled_from(["", "Some text.", "Two\n\nlines"]),
    seed=st.integers(0, 1 << 30),
)
def test_rendered_calls_come_back_byte_for_byte(
    name: str, calls: list[tuple[str, str]], content: str, seed: int
) -> None:
    make, render = FORMATS[name]
    wanted = [{"path": path, "content": body} for path, body in calls]
    text = "\n".join([content, *(render("write_file", values) for values in wanted)])
    parser = make()
    check(parser, text, seed)
    result = parser.parse(text, TOOLS)
    assert [call.arguments for call in result.tool_calls] == wanted
    assert all(call.error is None and not call.note for call in result.tool_calls)
    assert result.content == content


@pytest.mark.parametrize("name", FORMATS)
@settings(COMMON, max_examples=200)
@given(
    value=VALUE,
    edits=st.lists(
        st.tuples(st.integers(0, 400), st.integers(0, 9), st.sampled_from(["", "<", "\n", '"', *TAGS])), max_size=4
    ),
    seed=st.integers(0, 1 << 30),
)
def test_damaged_calls_never_raise(name: str, value: str, edits: list[tuple[int, int, str]], seed: int) -> None:
    make, render = FORMATS[name]
    text = f"Hi\n{render('write_file', {'path': 'a', 'content': value})}\n{render('bash', {'command': 'ls'})}"
    for at, length, new in edits:
        text = text[:at] + new + text[at + length :]
    check(make(), text, seed)


UNITS = [
    *("a", "<", "\n", '"', "{", "\\", "<tool_call>", "</tool_call>", "<think></think>\n", "<function=bash>\n"),
    *("</parameter>\n", "</parameter>\n</function>\n</tool_call>\n", "<parameter=x>\n", "<parameter="),
]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("unit", UNITS)
def test_what_a_parser_holds_back_does_not_grow_with_the_text(name: str, unit: str, inside: bool) -> None:
    """Text that waits unread is read again with the next piece: it must stay short for the work to be linear."""
    make, render = FORMATS[name]
    parser = OutputParser(make(), reasoning=True)
    text = (render("write_file", {"path": "a", "content": "@"}).partition("@")[0] if inside else "") + unit * 3000
    stream = parser.stream(TOOLS)
    for start in range(0, len(text), 50):
        stream.feed(text[start : start + 50])
        inner = getattr(stream, "_inner", None)
        assert len(getattr(stream, "_held", "")) < 300
        assert len(getattr(getattr(inner, "_lexer", None), "_held", "")) < 300
    assert stream.finish()[1] == parser.parse(text, TOOLS)


@pytest.mark.parametrize("name", FORMATS)
def test_a_megabyte_in_pieces_comes_back_whole(name: str) -> None:
    make, render = FORMATS[name]
    body = ("def f(x): return '</parameter>' # <b> \\n\n" * 30_000)[: 1 << 20]
    text = render("write_file", {"path": "a", "content": body})
    pieces = [text[start : start + 65536] for start in range(0, len(text), 65536)]
    result = streamed(make(), pieces, TOOLS)[1]
    assert result.tool_calls[0].arguments["content"] == body
