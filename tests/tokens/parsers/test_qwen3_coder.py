import json
from pathlib import Path
from typing import Any

import pytest

from tests.tokens.parsers.support import BASH, TOOLS, WRITE, agree, hermes_call, streamed, tool, xml, xml_call
from uni_agent.tokens.base import ToolSchema
from uni_agent.types import ToolCall


def only(text: str, tools: list[ToolSchema] | None = None) -> ToolCall:
    result = agree(xml(), text, TOOLS if tools is None else tools, pairs=False)
    assert len(result.tool_calls) == 1, result
    return result.tool_calls[0]


def written(content: str, *, tail: str = "") -> Any:
    """What comes back of a file with `content`."""
    call = only(xml_call("write_file", path="a.py", content=content) + tail)
    assert call.error is None
    assert call.arguments["path"] == "a.py"
    return call.arguments["content"]


def test_result_is_the_same_for_every_cut_parse_11() -> None:
    first, second = xml_call("a", x="1"), xml_call("b", y="}")
    result = agree(xml(), f"A{first}\n{second}", [])
    assert result.content == "A"
    assert [(call.id, call.name, call.arguments) for call in result.tool_calls] == [
        ("call_0", "a", {"x": "1"}),
        ("call_1", "b", {"y": "}"}),
    ]


@pytest.mark.parametrize(
    "value", ["    return 1\n", "", " ", "   ", "\n", "\n\n\n", "\ta\t", " a\n b \n", "\r\na\r\n", "x\n\n"]
)
def test_exactly_one_line_break_is_removed_at_each_end_parse_01(value: str) -> None:
    assert written(value) == value


@pytest.mark.parametrize("value", ["", "    return 1", "    return 1\r\n", "a\r\nb", "\r\n"])
def test_a_call_written_with_crlf_loses_one_crlf_at_each_end(value: str) -> None:
    call = "<tool_call>\n<function=write_file>\n<parameter=content>\n{}\n</parameter>\n</function>\n</tool_call>"
    result = xml().parse(call.replace("\n", "\r\n").format(value), TOOLS)
    assert [c.arguments for c in result.tool_calls] == [{"content": value}]


@pytest.mark.parametrize(
    "value",
    [
        'print("</parameter>")',
        "a</parameter>",
        "a\n</parameter>",
        "</parameter>\nb",
        "a\n</parameter>\n\n  b",
        "<parameter=x>\ny\n</parameter>\nz",
        "a\n<parameter=unknown>\nb",
        "<parameter=path>\nb.py\n</parameter>",
        "Docs:\n<parameter=path>\na\n</parameter>\n<parameter=content>\nb\n</parameter>\nEnd.",
        "</function>",
        "a\n</function>\nb",
        "</tool_call>",
        "a </tool_call> b </function> c",
        "a\n</function>\n</tool_call>\nb",
        "a\n</parameter>\n</function>\n</tool_call>",
        "a\n</parameter>\n</function>\n</tool_call>\nb",
        "</parameter>\n</function>",
        "<tool_call>",
        "a\n<tool_call>\nb",
        "<function=bash>",
        "a\n<function=foo>\nb",
        "</function>\n<function=bash>",
        "</function>\n<tool_call>\nb",
        "</tool_call>\n<tool_call>",
        "<function=",
        "<parameter=",
        "a\n<parameter=>",
        "<parameter=path",
        xml_call("bash", command="ls"),
        "Example:\n"
        + xml_call("write_file", path="x", content="y")
        + "\nand\n"
        + xml_call("bash", command="ls")
        + "\n",
        xml_call("write_file", path="x", content=xml_call("write_file", path="x", content="y")),
        hermes_call("bash", {"command": "</parameter>"}),
    ],
)
def test_markup_inside_a_value_is_text(value: str) -> None:
    assert written(value) == value
    assert written(value, tail="\n") == value


@pytest.mark.parametrize("value", ["a\n<function=foo>\nb", xml_call("bash", command="ls"), "</parameter>\nb"])
def test_markup_inside_a_value_does_not_swallow_the_next_call(value: str) -> None:
    text = xml_call("write_file", path="a", content=value) + "\n" + xml_call("bash", command="ls")
    result = agree(xml(), text, TOOLS, pairs=False)
    assert [call.arguments for call in result.tool_calls] == [{"path": "a", "content": value}, {"command": "ls"}]


def test_known_opener_ends_a_value_that_was_not_closed_parse_03() -> None:
    text = (
        "<tool_call>\n<function=write_file>\n<parameter=path>\na.txt\n"
        "<parameter=content>\nhello\n</parameter>\n</function>\n</tool_call>"
    )
    assert agree(xml(), text, [WRITE]).tool_calls[0].arguments == {"path": "a.txt", "content": "hello"}


@pytest.mark.parametrize(
    "end", ["</function>\n</tool_call>", "</function>", "</tool_call>", "</function></tool_call>\n"]
)
def test_end_of_the_call_ends_a_value_that_was_not_closed(end: str) -> None:
    call = only(f"<tool_call>\n<function=bash>\n<parameter=command>\nls\n{end}")
    assert (call.error, call.arguments) == (None, {"command": "ls"})


def test_malformed_openers_do_not_lose_the_good_parameter_parse_04() -> None:
    text = (
        "<tool_call>\n<function=bash>\n<parameter=ids: [1]\n</parameter>\n<parameter=>\nx\n</parameter>\n"
        "<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>"
    )
    for tools in ([], TOOLS):
        call = only(text, tools)
        assert (call.error, call.arguments) == (None, {"command": "ls"})
        assert "'<parameter=ids: [1]'" in call.note and "'<parameter=>'" in call.note


@pytest.mark.parametrize(
    "opener", ["<parameter=ids", "<parameter", "<parameter=a b>", "<parameter=\n>", "<parameter=<x>"]
)
def test_malformed_opener_after_a_good_parameter(opener: str) -> None:
    text = (
        "<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n"
        f"{opener}\n1\n</parameter>\n</function>\n</tool_call>"
    )
    call = only(text)
    if opener == "<parameter":  # no opener at all, so what came before it was the value's own text
        assert call.arguments["command"].startswith("ls\n</parameter>")
    else:
        assert (call.error, call.arguments) == (None, {"command": "ls"})
        assert call.note


def test_values_take_the_types_of_the_schema_parse_05() -> None:
    schema = tool("f", zip="string", n="integer", day="integer", flag="boolean", opts="object", nil="string")
    call = only(
        xml_call("f", zip="03106", n="7", day="2026-01-15", flag="True", opts="{'a': 1}", nil="null", extra="5"),
        [schema],
    )
    assert call.arguments == {
        "zip": "03106",
        "n": 7,
        "day": "2026-01-15",
        "flag": True,
        "opts": {"a": 1},
        "nil": "null",
        "extra": "5",
    }
    assert call.error is None


def test_model_text_is_never_run_parse_06(tmp_path: Path) -> None:
    marker = tmp_path / "pwned"
    for value in (f"__import__('os').system('touch {marker}')", f"[__import__('os').system('touch {marker}')]"):
        for kind in ("object", "array"):
            call = only(xml_call("bash", opts=value), [tool("bash", opts=kind)])
            assert call.arguments == {"opts": value}
    assert not marker.exists()


@pytest.mark.parametrize(
    "value", ["[" * 100_000, "[" * 90_000 + "]" * 90_000, "{'a':" * 9_000, "[" + "-" * 19_000 + "1]"]
)
def test_deep_nesting_stays_text_parse_06(value: str) -> None:
    (call,) = xml().parse(xml_call("f", a=value), [tool("f", a="array")]).tool_calls
    assert call.arguments == {"a": value}


def test_json_call_is_an_error_that_names_the_format_parse_16() -> None:
    result = agree(xml(), hermes_call("bash", {"command": "ls"}), TOOLS, pairs=False)
    (call,) = result.tool_calls
    assert call.error is not None and "<function=tool>" in call.error
    assert result.marker_seen


def test_prose_and_code_blocks_are_no_calls_parse_17() -> None:
    text = "I'll run:\n```bash\nls\n```"
    result = agree(xml(), text, TOOLS)
    assert (result.content, result.tool_calls, result.marker_seen) == (text, (), False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<tool_call>", "not complete"),
        ("<tool_call>\n</tool_call>", "empty"),
        ("<tool_call>\nls -la\n</tool_call>", "not a function call"),
        ("<tool_call>\n<function=>\n</function>\n</tool_call>", "no name"),
        ("<tool_call>\n<function=bash\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>", "no name"),
        ("<tool_call>\n<function=bahs>\n</function>\n</tool_call>", "Did you mean 'bash'?"),
        ("<tool_call>\n<function=bash>\n<parameter=command>\nrm -rf build", "ended inside the parameter 'command'"),
        ("<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n", "the text ended"),
        ("<tool_call>\n<function=bash>\n<parameter=comm", "the text ended"),
    ],
)
def test_bad_call_gives_one_error_that_the_model_can_read_parse_09(text: str, said: str) -> None:
    result = agree(xml(), text, TOOLS, pairs=False)
    (call,) = result.tool_calls
    assert call.error is not None and said in call.error
    assert call.arguments == {}
    assert result.marker_seen


def test_bare_function_counts_at_a_line_start_if_the_tool_is_known() -> None:
    bare = "<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>"
    for text in (bare, f"Now:\n{bare}\n", f"{bare}\n</tool_call>", f"{bare}\ndone"):
        assert only(text).arguments == {"command": "ls"}
    for text in (f"Now: {bare}", bare.replace("bash", "bahs")):
        result = agree(xml(), text, TOOLS, pairs=False)
        assert (result.content, result.tool_calls, result.marker_seen) == (text, (), True)
    assert agree(xml(), bare, [], pairs=False).tool_calls == ()


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call><function=bash><parameter=command>ls</parameter></function></tool_call>",
        "<tool_call>\n  <function=bash>\n  <parameter=command>\nls\n</parameter>\n  </function>\n</tool_call>",
        "<tool_call>\n<function=bash>\n<parameter=command>ls</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=bash>\n<parameter=command>\nls</parameter>\n</function>\n</tool_call>",
        '<tool_call>\n<function="bash">\n<parameter="command">\nls\n</parameter>\n</function>\n</tool_call>',
        "<tool_call>\n<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>",
    ],
)
def test_loose_layout_is_read(text: str) -> None:
    call = only(text)
    assert (call.error, call.arguments) == (None, {"command": "ls"})


def test_content_around_calls_is_kept_without_the_space_next_to_them() -> None:
    call = xml_call("bash", command="ls")
    result = agree(xml(), f"Before.\n\n{call}\n\nbetween\n{call}\nafter\n", TOOLS, pairs=False)
    assert result.content == "Before.\nbetween\nafter\n"
    assert len(result.tool_calls) == 2


def test_several_functions_in_one_tag() -> None:
    inner = xml_call("bash", command="ls").removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
    result = agree(xml(), f"<tool_call>\n{inner}\n{inner}\n</tool_call>", TOOLS, pairs=False)
    assert [call.arguments for call in result.tool_calls] == [{"command": "ls"}] * 2


def test_call_without_parameters_streams_an_empty_object_parse_10() -> None:
    call = only("<tool_call>\n<function=now>\n</function>\n</tool_call>", [tool("now")])
    assert (call.error, call.arguments) == (None, {})


def test_unknown_parameter_is_kept_for_the_validation() -> None:
    call = only(xml_call("bash", command="ls", timout="3"), [tool("bash", command="string", timeout="integer")])
    assert call.arguments == {"command": "ls", "timout": "3"}


def test_cut_value_that_shows_a_whole_call_is_not_run() -> None:
    text = "<tool_call>\n<function=write_file>\n<parameter=path>\na\n</parameter>\n<parameter=content>\nDocs:\n"
    (call,) = agree(xml(), text + xml_call("bash", command="ls") + "\nmore", TOOLS, pairs=False).tool_calls
    assert call.error is not None


def test_raw_arguments_are_what_the_model_wrote() -> None:
    call = only(xml_call("bash", command="ls"), [BASH])
    assert call.raw_arguments == "<parameter=command>\nls\n</parameter>"
    events, _ = streamed(xml(), list(xml_call("bash", command="ls")), [BASH])
    assert json.loads("".join(getattr(event, "text", "") for event in events)) == {"command": "ls"}
