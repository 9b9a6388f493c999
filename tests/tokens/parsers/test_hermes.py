import json
import re
from typing import Any

import pytest

from tests.tokens.parsers.support import BASH, TOOLS, agree, hermes, hermes_call, tool
from uni_agent.types import ToolCall

GET = tool("get", id="integer", f="object")


def only(text: str, tools: list[dict[str, Any]] | None = None) -> ToolCall:
    result = agree(hermes(), text, TOOLS if tools is None else tools, pairs=False)
    assert len(result.tool_calls) == 1, result
    return result.tool_calls[0]


def test_result_is_the_same_for_every_cut_parse_11() -> None:
    text = (
        'A<tool_call>\n{"name":"a","arguments":{"x":1}}\n</tool_call>\n'
        '<tool_call>\n{"name":"b","arguments":{"y":"}"}}\n</tool_call>'
    )
    result = agree(hermes(), text, [])
    assert result.content == "A"
    assert [(call.id, call.name, call.arguments) for call in result.tool_calls] == [
        ("call_0", "a", {"x": 1}),
        ("call_1", "b", {"y": "}"}),
    ]
    assert not result.marker_seen


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('<tool_call>\n{"name": "bash", "arguments": {"command": "ls}\n</tool_call>', "not complete|not valid JSON"),
        ('<tool_call>\n{"name": "bash", "arguments": {"command": tru}}\n</tool_call>', "not valid JSON"),
        ('<tool_call>\n{"arguments": {}}\n</tool_call>', "no name"),
        ('<tool_call>\n{"name": 5, "arguments": {}}\n</tool_call>', "no name"),
        ("<tool_call>\n[1]\n</tool_call>", "JSON object"),
        ('<tool_call>\n{"name": "bahs", "arguments": {}}\n</tool_call>', "Did you mean 'bash'.*bash, write_file"),
        ('<tool_call>\n{"name": "bash", "arguments": null}\n</tool_call>', "not null"),
        ('<tool_call>\n{"name": "bash", "arguments": [1]}\n</tool_call>', "not a list"),
        ('<tool_call>\n{"name": "bash", "arguments": "ls"}\n</tool_call>', "string that is not valid JSON"),
        ('<tool_call>\n{"name": "bash", "arguments": "[]"}\n</tool_call>', "not a list"),
        ('<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}}\n</tool_call>', "after the JSON object"),
        ('<tool_call>\n{"name": "bash", "arguments": {"a": NaN}}\n</tool_call>', "NaN"),
        ('<tool_call>\n{"name": "bash", "arguments": {"a": 1e999}}\n</tool_call>', "out of range"),
        ('<tool_call>\n{"name": "bash", "arguments": {"a": "\\ud800"}}\n</tool_call>', "surrogate"),
        ('<tool_call>\n{"name": "bash", "arguments": {}, "arguments": {}}\n</tool_call>', "twice"),
        ("<tool_call>\n</tool_call>", "empty"),
        ("<tool_call>", "not complete"),
        ('<tool_call>\n{"name": "bash", "arguments": {"command": "l', "not complete"),
    ],
)
def test_bad_call_gives_one_error_that_the_model_can_read_parse_09(text: str, said: str) -> None:
    result = agree(hermes(), text, TOOLS, pairs=False)
    (call,) = result.tool_calls
    assert call.error is not None
    assert re.search(said, call.error)
    assert call.arguments == {}
    assert call.raw_arguments in text
    assert result.marker_seen
    assert result.content == ""


def test_arguments_encoded_twice_are_decoded_parse_09() -> None:
    call = only('<tool_call>\n{"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}\n</tool_call>')
    assert (call.error, call.arguments) == (None, {"command": "ls"})


def test_missing_arguments_are_none_at_all() -> None:
    call = only('<tool_call>\n{"name": "bash"}\n</tool_call>')
    assert (call.error, call.arguments) == (None, {})


@pytest.mark.parametrize("arguments", [{"id": 42}, {"f": {"a": True}}, {}, {"id": [1, [2.5]], "x": None}])
def test_argument_deltas_are_the_arguments_for_every_cut_parse_10(arguments: dict[str, Any]) -> None:
    text = f'<tool_call>\n{{"name": "get", "arguments": {json.dumps(arguments)}}}\n</tool_call>'
    result = agree(hermes(), text, [GET])
    assert result.tool_calls[0].arguments == arguments


def test_braces_quotes_and_tags_inside_strings_survive_parse_12() -> None:
    command = "mkdir -p test/{a,b && echo \"}\" '\\\\' </tool_call"
    for value in (command, command + ">", "<tool_call>" + command, 'a"</tool_call>{"', "\\"):
        call = only(hermes_call("bash", {"command": value}))
        assert call.arguments == {"command": value}


def test_text_outside_ascii_is_neither_escaped_nor_repeated_parse_14() -> None:
    text = '<tool_call>\n{"name":"say","arguments":{"t":"Zürich 東京 🧪"}}\n</tool_call>'
    call = agree(hermes(), text, []).tool_calls[0]
    assert call.arguments == {"t": "Zürich 東京 🧪"}
    assert call.raw_arguments == '{"t":"Zürich 東京 🧪"}'


def test_xml_call_is_an_error_that_names_the_format_parse_16() -> None:
    text = "<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>"
    result = agree(hermes(), text, TOOLS, pairs=False)
    (call,) = result.tool_calls
    assert call.error is not None and '{"name": "tool"' in call.error
    assert result.marker_seen


def test_prose_and_code_blocks_are_no_calls_parse_17() -> None:
    text = "I'll run:\n```bash\nls\n```\n"
    result = agree(hermes(), text, TOOLS)
    assert (result.content, result.tool_calls, result.marker_seen) == (text, (), False)


def test_no_calls_means_an_empty_tuple_parse_19() -> None:
    result = hermes().parse("hi", TOOLS)
    assert result.tool_calls == ()


def test_content_around_calls_is_kept_without_the_space_next_to_them() -> None:
    call = hermes_call("bash", {"command": "ls"})
    result = agree(hermes(), f"\n\nBefore. \n\n{call}\n\n between\n{call}\n after \n", TOOLS, pairs=False)
    assert result.content == "\n\nBefore.\nbetween\nafter \n"
    assert len(result.tool_calls) == 2


def test_text_without_calls_is_kept_byte_for_byte() -> None:
    text = " \n a <b> </tool \t\n <tool_cal \n"
    assert agree(hermes(), text, TOOLS).content == text


def test_complete_object_without_closing_tag_counts() -> None:
    open_call = hermes_call("bash", {"command": "ls"}).removesuffix("\n</tool_call>")
    result = agree(hermes(), open_call + "\n" + open_call, TOOLS, pairs=False)
    assert [call.arguments for call in result.tool_calls] == [{"command": "ls"}] * 2
    assert only(open_call + "\n</tool_ca").error is None


def test_calls_after_an_unterminated_string_are_found() -> None:
    good = hermes_call("bash", {"command": "ls"})
    for bad in (
        '<tool_call>\n{"name": "bash", "arguments": {"command": "ls}\n</tool_call>\n',
        '<tool_call>{"name": "bash", "arguments": {"command": "ls}</tool_call>\n',
    ):
        result = agree(hermes(), bad + good, TOOLS, pairs=False)
        assert [call.error is None for call in result.tool_calls] == [False, True]


def test_raw_line_breaks_inside_strings_are_read_and_streamed_as_json() -> None:
    call = only('<tool_call>\n{"name": "bash", "arguments": {"command": "a\n\tb\x01"}}\n</tool_call>')
    assert call.arguments == {"command": "a\n\tb\x01"}


def test_keys_in_any_order_and_escaped() -> None:
    call = only(
        '<tool_call> { "arguments" : {"command":"ls"} , "n\\u0061me":"bash", "id": {"name": "x"} } </tool_call>'
    )
    assert (call.name, call.arguments) == ("bash", {"command": "ls"})


def test_quoted_tag_is_prose_but_flagged() -> None:
    result = agree(hermes(), "Use `<tool_call>` tags.", TOOLS)
    assert (result.content, result.tool_calls, result.marker_seen) == ("Use `<tool_call>` tags.", (), True)


def test_deep_nesting_is_an_error_parse_06() -> None:
    for depth in (101, 900, 100_000):
        text = '<tool_call>\n{"name": "bash", "arguments": {"a": ' + "[" * depth + "]" * depth + "}}\n</tool_call>"
        (call,) = hermes().parse(text, [BASH]).tool_calls
        assert call.error is not None and "nested too deeply" in call.error
