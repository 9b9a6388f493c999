"""Schemas, configuration, installation, and how a call becomes a command."""

from __future__ import annotations

import enum
import io
import json
import sys
import tarfile
import types
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, TypeAdapter, ValidationError

from tests.tools.conftest import Box
from uni_agent.errors import ConfigError
from uni_agent.tools import BUILTIN_TOOLS, AbstractTool, Arguments, BoundCall, ToolConfig, ToolScript, Toolset
from uni_agent.tools.execute_bash import ExecuteBash
from uni_agent.tools.finish import Finish
from uni_agent.tools.search import Search
from uni_agent.tools.str_replace_editor import StrReplaceEditor
from uni_agent.tools.submit import Submit
from uni_agent.types import ToolCall

CONFIGS: TypeAdapter[list[Any]] = TypeAdapter(list[ToolConfig])
ALL = Toolset([ExecuteBash(), StrReplaceEditor(), Finish(), Submit(), Search("http://wiki:8000/base")])


def bind(name: str, raw: dict[str, Any], tools: Toolset = ALL) -> BoundCall | str:
    return tools.bind(ToolCall("1", name, raw))


def bound(name: str, raw: dict[str, Any], tools: Toolset = ALL) -> BoundCall:
    result = bind(name, raw, tools)
    assert isinstance(result, BoundCall), result
    return result


# ------------------------------------------------------------------------------------------------ schemas


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(Arguments):
    """A point."""

    x: int
    title: str | None = None
    """Its name."""


class RichArguments(Arguments):
    """Arguments."""

    zebra: Point
    """Where."""
    title: str
    """A parameter that is called like a keyword of JSON schema."""
    colour: Colour | None = None
    """Which."""
    only: Literal["one"] = "one"
    points: list[Point] | None = None
    either: int | str | None = None
    limits: Annotated[int | None, Field(ge=1)] = None
    table: dict[str, int] = {}


class Rich(AbstractTool):
    """A tool with every kind of argument."""

    name = "rich"
    description = "Rich."
    Arguments = RichArguments

    def command(self, arguments: RichArguments) -> str:
        """Nothing."""
        del arguments
        return "true"


class TreeArguments(Arguments):
    """Arguments that refer to themselves."""

    children: list[TreeArguments] = []


class Tree(Rich):
    """A tool that no template can show."""

    name = "tree"
    Arguments = TreeArguments


def test_a_schema_is_plain_and_in_declared_order() -> None:
    function = Rich().schema()["function"]
    point = {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "title": {"type": "string", "description": "Its name."}},
        "required": ["x"],
    }
    assert list(function) == ["name", "description", "parameters"]
    assert list(function["parameters"]) == ["type", "properties", "required"]
    properties = function["parameters"]["properties"]
    assert list(properties) == ["zebra", "title", "colour", "only", "points", "either", "limits", "table"]
    assert function["parameters"]["required"] == ["zebra", "title"]
    assert properties["zebra"] == {**point, "description": "Where."}
    assert properties["title"]["type"] == "string"
    assert properties["colour"] == {"type": "string", "description": "Which.", "enum": ["red", "blue"]}
    assert properties["only"] == {"type": "string", "enum": ["one"], "default": "one"}
    assert properties["points"] == {"type": "array", "items": {**point, "description": "A point."}}
    assert properties["either"] == {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert properties["limits"] == {"type": "integer", "minimum": 1}
    assert properties["table"]["additionalProperties"] == {"type": "integer"}
    assert "$" not in json.dumps(function)


def test_arguments_that_refer_to_themselves_are_refused() -> None:
    with pytest.raises(ConfigError, match="refer to themselves"):
        Toolset([Tree()])


def test_builtin_schemas_are_valid_described_and_stable() -> None:
    for schema, again in zip(ALL.schemas(), Toolset(ALL.tools).schemas(), strict=True):
        assert json.dumps(schema) == json.dumps(again)
        parameters = schema["function"]["parameters"]
        jsonschema.Draft202012Validator.check_schema(parameters)
        assert all(prop.get("description") for prop in parameters["properties"].values())
        text = json.dumps(parameters)
        assert not any(f'"{key}"' in text for key in ("title", "$ref", "additionalProperties", "anyOf", "null"))


def test_the_known_tools_have_their_known_arguments() -> None:
    known = {
        schema["function"]["name"]: list(schema["function"]["parameters"]["properties"])
        for schema in Toolset([cls("http://x") if cls is Search else cls() for cls in BUILTIN_TOOLS.values()]).schemas()
    }
    assert known == {
        "execute_bash": ["command"],
        "str_replace_editor": ["command", "path", "file_text", "old_str", "new_str", "insert_line", "view_range"],
        "finish": ["answer"],
        "submit": [],
        "search": ["command", "query_list", "url_list", "topk"],
        "search_arxiv": ["query", "max_results", "days"],
    }


# ------------------------------------------------------------------------------------------------ configuration


def test_a_bare_name_is_a_type() -> None:
    assert CONFIGS.validate_python(["execute_bash", {"type": "submit"}]) == CONFIGS.validate_python(
        [{"type": "execute_bash"}, "submit"]
    )


def test_every_builtin_tool_can_be_configured() -> None:
    for name, cls in BUILTIN_TOOLS.items():
        options = {"base_url": "http://wiki:8000"} if name == "search" else {}
        (config,) = CONFIGS.validate_python([{"type": name, **options}])
        assert type(config.build()) is cls


def test_search_options_reach_the_tool() -> None:
    raw = {
        "type": "search",
        "base_url": "https://wiki/x",
        "timeout": 3,
        "tries": 2,
        "format": "text",
        "crawl_path": None,
    }
    tool = CONFIGS.validate_python([raw])[0].build()
    assert tool.endpoints() == ["https://wiki:443"]
    assert (tool.options.timeout, tool.options.tries, tool.options.format) == (3, 2, "text")
    assert "crawl" in str(bind("search", {"command": "crawl", "url_list": ["u"]}, Toolset([tool])))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("execute_bsh", "'execute_bash', 'str_replace_editor', 'finish', 'submit', 'search', 'search_arxiv', 'plugin'"),
        ({"type": "execute_bash", "timeout": 3}, "Extra inputs"),
        ({"type": "search"}, "base_url"),
        ({"type": "search", "base_url": "wiki:8000"}, "not an http or https address"),
        ({"type": "a.b:c d"}, "pattern"),
        (7, "expected tags"),
    ],
)
def test_configuration_errors_say_what_is_wrong(raw: Any, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        CONFIGS.validate_python([raw])
    assert message in str(caught.value)


def test_the_configurations_schema_knows_bare_names() -> None:
    schema = CONFIGS.json_schema()
    jsonschema.validate(["execute_bash", {"type": "search", "base_url": "http://x"}], schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(["bash"], schema)


@pytest.fixture
def plugin_module() -> Any:
    module = types.ModuleType("plugin_under_test")

    class Greet(AbstractTool):
        name = "greet"
        description = "Greets."
        Arguments = Arguments

        def __init__(self, greeting: str = "hello") -> None:
            self.greeting = greeting

        def command(self, arguments: Arguments) -> str:
            del arguments
            return f"echo {self.greeting}"

    module.Greet = Greet  # pyright: ignore[reportAttributeAccessIssue]
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def test_a_plugin_is_loaded_and_built_with_its_options(plugin_module: Any, box: Box) -> None:
    for raw, word in (
        ("plugin_under_test:Greet", "hello"),
        ({"type": "plugin_under_test:Greet", "options": {"greeting": "hi"}}, "hi"),
    ):
        tool = CONFIGS.validate_python([raw])[0].build()
        assert box.bash(bound("greet", {}, Toolset([tool])).command).out == f"{word}\n"


@pytest.mark.parametrize(
    ("reference", "options", "message"),
    [
        ("no_such_module:Tool", {}, "cannot import"),
        ("plugin_under_test:Nothing", {}, "has no 'Nothing'"),
        ("json:JSONDecoder", {}, "not a subclass"),
        ("plugin_under_test:Greet", {"nam": 1}, "nam"),
    ],
)
def test_a_plugin_that_cannot_be_built_is_a_config_error(
    plugin_module: Any, reference: str, options: dict[str, Any], message: str
) -> None:
    del plugin_module
    config = CONFIGS.validate_python([{"type": reference, "options": options}])[0]
    with pytest.raises(ConfigError, match=message):
        config.build()


# ------------------------------------------------------------------------------------------------ toolset


class Scripted(Rich):
    """A tool with a program and a variable."""

    def __init__(self, name: str, script: ToolScript, value: str = "1") -> None:
        self.name = name  # pyright: ignore[reportAttributeAccessIssue, reportIncompatibleVariableOverride]
        self.script = script
        self.value = value

    def scripts(self) -> list[ToolScript]:
        return [self.script]

    def env(self) -> dict[str, str]:
        return {"KEY": self.value}


def test_tools_that_clash_are_config_errors() -> None:
    one = ToolScript("one", b"1")
    with pytest.raises(ConfigError, match="'finish' is listed twice"):
        Toolset([Finish(), Submit(), Finish()])
    with pytest.raises(ConfigError, match="different program"):
        Toolset([Scripted("a", one), Scripted("b", ToolScript("one", b"2"))])
    with pytest.raises(ConfigError, match="different value"):
        Toolset([Scripted("a", one), Scripted("b", one, "2")])
    for name in ("", "a b", "a/b", "é", "x" * 65):
        with pytest.raises(ConfigError, match="letters, digits"):
            Toolset([Scripted(name, one)])
    for name in ("", "../x", "a/b", "-x"):
        with pytest.raises(ConfigError, match="name of a program"):
            Toolset([Scripted("a", ToolScript(name, b""))])


def test_a_toolset_gathers_what_its_tools_need() -> None:
    shared = ToolScript("one", b"1")
    tools = Toolset([Scripted("a", shared), Scripted("b", shared), Search("http://w"), Finish()])
    assert tools.names == ["a", "b", "search", "finish"]
    assert [script.name for script in tools.scripts()] == ["one", "search"]
    assert tools.env() == {"KEY": "1"}
    assert tools.endpoints() == ["http://w:80"]
    assert tools.get("nothing") is None
    assert isinstance(tools.get("finish"), Finish)


def test_the_archive_holds_every_program_executable_and_is_reproducible() -> None:
    data = ALL.install_archive()
    assert data == Toolset(ALL.tools).install_archive()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert {(member.name, member.mode) for member in archive} == {("str_replace_editor", 0o755), ("search", 0o755)}
    with tarfile.open(fileobj=io.BytesIO(ALL.install_archive("/opt/tools/"))) as archive:
        assert archive.getnames() == ["opt/tools/str_replace_editor", "opt/tools/search"]
    with tarfile.open(fileobj=io.BytesIO(Toolset([Finish()]).install_archive())) as archive:
        assert archive.getnames() == []


# ------------------------------------------------------------------------------------------------ calls


@pytest.mark.parametrize(
    ("name", "raw", "words"),
    [
        ("execute_bahs", {}, ["There is no tool 'execute_bahs'", "did you mean `execute_bash`", "`finish`"]),
        ("", {}, ["names no tool"]),
        ("execute_bash", {}, ["the required parameter `command` is missing"]),
        ("execute_bash", {"command": None}, ["`command`", "valid string", "null"]),
        ("execute_bash", {"command": ["ls"]}, ["`command`", "valid string", '["ls"]']),
        ("execute_bash", {"command": "ls", "timout": 3}, ["no parameter `timout`", "`command`"]),
        ("execute_bash", {"command": "echo a\0b"}, ["`command`", "NUL"]),
        ("execute_bash", {"command": "echo \ud800"}, ["no character"]),
        ("submit", {"answer": "x"}, ["no parameter `answer`", "parameters: none"]),
        ("str_replace_editor", {"command": "veiw", "path": "/x"}, ["`command`", "'view'", '"veiw"']),
        ("str_replace_editor", {"command": "view", "pth": "/x"}, ["`path` is missing", "did you mean `path`"]),
        ("str_replace_editor", {"command": "create", "path": "/x"}, ["`create` needs the parameter `file_text`"]),
        ("str_replace_editor", {"command": "insert", "path": "/x", "new_str": "y"}, ["`insert_line`"]),
        ("str_replace_editor", {"command": "view", "path": "/x", "view_range": [1]}, ["`view_range`", "at least 2"]),
        ("str_replace_editor", {"command": "view", "path": "/x", "view_range": "1-2"}, ["`view_range`", '"1-2"']),
        ("str_replace_editor", {"command": "create", "path": "/x", "file_text": "\0"}, ["`file_text`", "NUL"]),
        (
            "str_replace_editor",
            {"command": "insert", "path": "/x", "new_str": "y", "insert_line": 1.5},
            ["`insert_line`"],
        ),
        ("search", {"query_list": ["a", ""]}, ["at least 1 character"]),
        ("search", {"query_list": []}, ["at least 1 item"]),
        ("search", {"command": "crawl"}, ["`url_list`"]),
        ("search", {"query": "x", "topk": 0}, ["`topk`", "greater than or equal to 1"]),
    ],
)
def test_a_bad_call_gets_a_sentence_that_names_the_fault(name: str, raw: dict[str, Any], words: list[str]) -> None:
    sentence = bind(name, raw)
    assert isinstance(sentence, str)
    assert all(word in sentence for word in words), sentence
    assert "pydantic" not in sentence


HUGE: list[tuple[str, dict[str, Any]]] = [
    ("x" * 10**6, {}),
    ("submit", {"y" * 10**6: 1}),
    ("submit", {f"key{i}": i for i in range(10_000)}),
    ("execute_bash", {"command": ["z" * 10**6]}),
    ("search", {"query_list": [[]] * 10_000}),
]


@pytest.mark.parametrize(
    ("name", "raw"),
    HUGE,
    ids=["tool name", "parameter name", "many parameters", "value", "many values"],
)
def test_what_the_model_reads_of_a_huge_mistake_is_short(name: str, raw: dict[str, Any]) -> None:
    said = bind(name, raw)
    assert isinstance(said, str)
    assert len(said) < 4000


def test_a_call_that_is_broken_already_keeps_its_error() -> None:
    assert ALL.bind(ToolCall("1", "submit", {}, error="bad JSON")) == "bad JSON"


@pytest.mark.parametrize(
    ("name", "raw", "field", "value"),
    [
        (
            "str_replace_editor",
            {"command": "insert", "path": "/x", "new_str": "", "insert_line": "7"},
            "insert_line",
            7,
        ),
        ("str_replace_editor", {"command": "view", "path": "/x", "view_range": "[1, -1]"}, "view_range", [1, -1]),
        ("str_replace_editor", {"command": "view", "path": "/x", "view_range": None}, "view_range", None),
        ("search", {"query": "q"}, "query_list", ["q"]),
        ("search", {"query_list": ["q"], "topk": None}, "topk", 3),
        ("search", {"query_list": '["a", "b"]'}, "query_list", ["a", "b"]),
        ("search", {"query": "[draft] standards"}, "query_list", ["[draft] standards"]),
        ("finish", {"answer": 42}, "answer", "42"),
        ("execute_bash", {"command": "[1]"}, "command", "[1]"),
    ],
)
def test_values_are_read_generously(name: str, raw: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(bound(name, raw).arguments, field) == value


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = (
    st.sampled_from(["command", "path", "answer", "query", "query_list", "view_range", "topk", "file_text"]) | st.text()
)


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from([*ALL.names, "other"]), raw=st.dictionaries(KEYS, JSON, max_size=4))
def test_no_call_makes_binding_fail(name: str, raw: dict[str, Any]) -> None:
    result = bind(name, raw)
    if isinstance(result, str):
        assert result.strip()
    else:
        assert set(raw) <= {*type(result.arguments).model_fields, "query", "queries", "url", "urls"}
        result.command.encode()


# ------------------------------------------------------------------------------------------------ endings


def test_sbx_11_only_the_call_ends_an_episode(box: Box) -> None:
    """SBX-11: no text, printed or in a command, submits; `submit` and `finish` are calls."""
    for command in (
        "grep -rn COMPLETE_TASK .",
        "false && echo COMPLETE_TASK",
        "cat README.md",
        "submit",
        "echo Submitted.",
    ):
        assert not bound("execute_bash", {"command": command}).ends_episode
    for name, raw in (("submit", {}), ("finish", {"answer": "x"})):
        assert bound(name, raw).ends_episode
        assert box.bash(bound(name, raw).command).code == 0
    assert [script.name for script in Toolset([Submit(), Finish()]).scripts()] == []


@settings(max_examples=25, deadline=None)
@given(answer=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40))
def test_any_answer_is_printed_as_it_is(answer: str) -> None:
    import subprocess

    call = bound("finish", {"answer": answer})
    assert call.answer == answer
    done = subprocess.run(["bash", "-s"], input=call.command.encode(), capture_output=True, check=True)
    assert done.stdout == answer.encode() + b"\n"


def test_a_long_answer_is_no_argument_of_a_program(box: Box) -> None:
    assert len(box.call("finish", answer="x" * 400_000).out) == 400_001


def test_bash_runs_unchanged_in_the_agents_shell(box: Box) -> None:
    command = 'cd /; x="it\'s $(echo deep) `echo back`"; echo "$x" $PWD'
    assert bound("execute_bash", {"command": command}).command == command
    assert box.call("execute_bash", command=command).out == "it's deep back /\n"


@pytest.mark.parametrize("size", [10, 70_000, 2_000_000])
def test_a_program_is_called_in_lines_that_every_terminal_and_kernel_takes(size: int) -> None:
    command = bound("str_replace_editor", {"command": "create", "path": "/x", "file_text": "'" * size}).command
    assert command.isascii()
    assert max(map(len, command.splitlines())) < 100_000
    if size > 64_000:
        assert max(map(len, command.splitlines())) < 1024
