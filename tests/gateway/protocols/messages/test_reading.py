"""What requests say."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.gateway.protocols.messages.support import ADAPTER, USER, body, read, readings, same, wire
from uni_agent.gateway.canonical import ToolChoice
from uni_agent.gateway.errors import ErrorKind, GatewayError
from uni_agent.types import Media, Message, ToolCall

PNG = b"\x89PNG\r\n"
IMAGE: dict[str, Any] = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()},
}


def text(value: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **fields}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def call(name: str = "bash", id_: str = "toolu_1", **values: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": name, "input": values}


def result(content: Any, id_: str = "toolu_1", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id_, "content": content, **fields}


def refused(*messages: dict[str, Any], **fields: Any) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        read(*messages, **fields)
    assert caught.value.status == 400
    return caught.value


# ------------------------------------------------------------------------------------------------ system


@pytest.mark.parametrize("system", [None, "", [], [text("")]])
def test_no_system_prompt_gives_no_message(system: Any):
    request = read(system=system)
    assert request.messages == (Message("user", "go"),)
    assert request.instructions == 0


@pytest.mark.parametrize("system", ["Be brief.", [text("Be brief.")], [text("Be "), text("brief.", cache_control={})]])
def test_the_system_prompt_is_one_message_in_front(system: Any):
    request = read(system=system)
    assert request.messages[0] == Message("system", "Be brief.")
    assert request.instructions == 1


def test_proto_04_a_billing_block_of_the_system_prompt_is_left_out():
    def prompt(number: str) -> Any:
        return [text(f"x-anthropic-billing-header: cc_version=9.9.9.abc; cch={number};"), text("You are a coder.")]

    one, two = read(system=prompt("11111")), read(system=prompt("22222"))
    assert one.messages == two.messages == (Message("system", "You are a coder."), Message("user", "go"))


def test_proto_04_the_same_text_anywhere_else_stays():
    billing = "x-anthropic-billing-header: cch=1;"
    request = read(user(text(billing)), {"role": "system", "content": billing}, system=[text(f"see {billing}")])
    assert [message.content for message in request.messages] == [f"see {billing}", billing, billing]


def test_of_a_system_string_only_the_billing_line_is_left_out():
    assert read(system="x-anthropic-billing-header: cch=1;\nBe brief.").messages[0].content == "Be brief."


def test_proto_06_a_system_message_stays_at_its_place():
    request = read(
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "ok"},
        {"role": "system", "content": [text("reminder", cache_control={})], "output_config": {"effort": "low"}},
        {"role": "user", "content": "q"},
    )
    assert [(m.role, m.content) for m in request.messages] == [
        ("user", "go"),
        ("assistant", "ok"),
        ("system", "reminder"),
        ("user", "q"),
    ]
    assert request.instructions == 0


# ------------------------------------------------------------------------------------------------ messages


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_proto_18_null_empty_and_no_parts_are_the_same(role: str):
    spellings: list[Any] = [None, "", [], [text("")]]
    messages = [read(USER, {"role": role, "content": content}).messages[1] for content in spellings]
    assert messages == [Message(role)] * 4  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_proto_18_two_parts_are_their_texts_as_they_are(role: str):
    parts = [text("a", cache_control={"type": "ephemeral"}, unknown=1), text("b", citations=None)]
    assert read(USER, {"role": role, "content": parts}).messages[1].content == "ab"


def test_thinking_text_and_calls_of_an_assistant_turn():
    request = read(
        USER,
        assistant(
            {"type": "thinking", "thinking": "plan", "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "xx"},
            text("hi"),
            call(command="ls"),
        ),
    )
    assert request.messages[1] == Message(
        "assistant", "hi", "plan", (ToolCall("toolu_1", "bash", {"command": "ls"}, '{"command": "ls"}'),)
    )


@pytest.mark.parametrize("thinking", [{"signature": ""}, {}, {"signature": "abc"}, {"signature": None}])
def test_proto_16_thinking_is_read_whatever_its_signature(thinking: dict[str, Any]):
    echoed = read(USER, assistant({"type": "thinking", "thinking": "plan", **thinking}, text("hi"))).messages[1]
    stored = Message("assistant", "hi", "plan")
    assert echoed == stored
    stripped = read(USER, assistant({"type": "redacted_thinking", "data": "x"}, text("hi"))).messages[1]
    assert stripped.reasoning == "" and same(stored, stripped)


@pytest.mark.parametrize(
    "broken",
    ['{"command": "l', "not json", "[1]", '{"a": 1} and more'],
)
def test_proto_01_arguments_that_were_no_json_keep_their_text(broken: str):
    wrapped = {"__unparsedToolInput": {"raw": broken, "len": len(broken)}}
    messages = read(
        USER, assistant({**call(), "input": wrapped}), user(result("bad json", is_error=True)), USER
    ).messages
    (returned,) = messages[1].tool_calls
    assert returned.error and returned.raw_arguments == broken and returned.arguments == {}
    assert messages[2] == Message("tool", "bad json", tool_call_id="toolu_1")


@pytest.mark.parametrize("value", [None, "", {}, "null"])
def test_missing_arguments_are_an_empty_object(value: Any):
    (returned,) = read(USER, assistant({**call(), "input": value})).messages[1].tool_calls
    assert returned.arguments == {} and returned.error is None


def test_arguments_nested_too_deeply_do_not_end_the_session():
    deep: Any = "x"
    for _ in range(200):
        deep = {"a": deep}
    (returned,) = read(USER, assistant(call(deep=deep))).messages[1].tool_calls
    assert returned.error and "deep" in returned.raw_arguments


def test_halves_of_surrogate_pairs_become_the_replacement_character():
    request = read(
        user(text("cut \ud83d")),
        assistant(text("x\udc00"), call(command="a\ud83d")),
        user(result("out \ud83d")),
        assistant({**call(), "input": {"__unparsedToolInput": {"raw": '{"command": "\\ud83d"}', "len": 21}}}),
        system="s\ud83d",
    )
    said = [m.content for m in request.messages] + [str(c.arguments) for m in request.messages for c in m.tool_calls]
    assert "".join(said).encode() and said[0] == "s\ufffd" and said[1] == "cut \ufffd"
    calls = [c for m in request.messages for c in m.tool_calls]
    assert [c.arguments for c in calls] == [{"command": "a\ufffd"}, {}]
    assert calls[1].error and calls[1].raw_arguments == '{"command": "\\ud83d"}', "as the model wrote it"


def test_whole_pairs_stay():
    assert read(user(text("😀 \ud83d\ude00"))).messages[0].content == "😀 😀"


def test_results_stand_in_front_of_what_else_the_user_says():
    request = read(
        USER,
        assistant(call(id_="a"), call(id_="b")),
        user(text("one "), result("B", "b"), text("two"), result([text("A1"), text("A2")], "a")),
    )
    assert request.messages[2:] == (
        Message("tool", "B", tool_call_id="b"),
        Message("tool", "A1A2", tool_call_id="a"),
        Message("user", "one two"),
    )


def test_results_alone_bring_no_user_message():
    request = read(USER, assistant(call()), user(result(None), text("")))
    assert request.messages[2:] == (Message("tool", "", tool_call_id="toolu_1"),)


def test_images_of_users_and_results_keep_their_place():
    request = read(user(text("see"), IMAGE, text("there")), assistant(call()), user(result([text("shot"), IMAGE])))
    media = Media("image", PNG, "image/png")
    assert request.messages[0] == Message("user", "seethere", parts=("see", media, "there"))
    assert request.messages[2] == Message("tool", "shot", tool_call_id="toolu_1", parts=("shot", media))


def test_documents_of_text_are_text():
    plain = {"type": "document", "title": "notes", "source": {"type": "text", "media_type": "text/plain", "data": "A"}}
    parts = {"type": "document", "source": {"type": "content", "content": [text("B"), text("C")]}}
    assert read(user(plain, parts)).messages[0].content == "notes\nABC"


def test_blocks_of_other_servers_are_the_text_they_carry():
    search = {
        "type": "web_search_tool_result",
        "tool_use_id": "s",
        "content": [{"type": "web_search_result", "title": "T", "url": "http://u", "encrypted_content": "zzz"}],
    }
    mcp = {"type": "mcp_tool_result", "tool_use_id": "m", "is_error": False, "content": [text("done")]}
    odd = {"type": "from_the_future", "text": "new"}
    request = read(USER, assistant(search, text("\n"), mcp), user(odd))
    assert request.messages[1].content == "T\nhttp://u\ndone"
    assert request.messages[2].content == "new"


@pytest.mark.parametrize(
    ("block", "path"),
    [
        ({"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}, "messages[0].content[1].source.url"),
        ({"type": "image", "source": {"type": "file", "file_id": "f"}}, "messages[0].content[1].source"),
        ({"type": "document", "source": {"type": "base64", "data": "JVBE"}}, "messages[0].content[1].source"),
        ({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}, "messages[0].content[1]"),
        ({"type": "container_upload", "file_id": "f"}, "messages[0].content[1]"),
    ],
)
def test_what_cannot_be_shown_is_refused_with_its_path(block: dict[str, Any], path: str):
    error = refused(user(text("a"), block))
    assert (error.kind, error.param) == (ErrorKind.UNSUPPORTED, path)
    assert error.message.startswith(path)


@pytest.mark.parametrize(
    ("messages", "path"),
    [
        (None, "messages"),
        ([], "messages"),
        ("go", "messages"),
        (["go"], "messages[0]"),
        ([{"content": "go"}], "messages[0].role"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": ["go"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"text": "go"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text", "text": 3}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "image", "source": "x"}]}], "messages[0].content[0].source"),
        ([{"role": "assistant", "content": [{"type": "tool_use", "name": 1}]}], "messages[0].content[0].name"),
        ([user(result([text("a"), 1]))], "messages[0].content[0].content[1]"),
        ([user({**result("a"), "tool_use_id": 1})], "messages[0].content[0].tool_use_id"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_path(messages: Any, path: str):
    with pytest.raises(GatewayError) as caught:
        ADAPTER.read(wire({"model": "m", "messages": messages}))
    assert (caught.value.kind, caught.value.param) == (ErrorKind.INVALID_REQUEST, path)


def test_an_unknown_role_is_read_as_the_users_and_named():
    request = read({"role": "critic", "content": "hm"})
    assert request.messages == (Message("user", "hm"),)
    assert request.ignored == ("messages: role critic",)


# ------------------------------------------------------------------------------- turns in several messages


def test_a_turn_that_was_split_between_its_blocks_is_one_turn():
    thinking = {"type": "thinking", "thinking": "plan", "signature": "s"}
    whole = read(USER, assistant(thinking, text("hi"), call(id_="a"), call(id_="b"), text("\nbye")))
    split = read(
        USER,
        assistant(thinking),
        assistant(text("hi")),
        assistant(call(id_="a")),
        assistant(call(id_="b"), text("\nbye")),
    )
    assert split.messages == whole.messages


def test_a_turn_that_went_on_from_a_cut_one_stays_a_turn_of_its_own():
    request = read(USER, {"role": "assistant", "content": "half"}, assistant(text(" and the rest"), call()))
    assert [m.content for m in request.messages] == ["go", "half", " and the rest"]


@pytest.mark.parametrize("after", ["\nafter", "after"])
def test_a_text_behind_a_call_begins_a_line(after: str):
    assert read(USER, assistant(text("before"), call(), text(after))).messages[1].content == "before\nafter"


# ------------------------------------------------------------------------------------------------ tools

BASH: dict[str, Any] = {"name": "bash", "description": "Run.", "input_schema": {"type": "object", "properties": {}}}


def names(tools: Any) -> list[str]:
    return [tool["function"]["name"] for tool in tools]


def test_custom_tools_are_function_schemas_with_or_without_their_type():
    request = read(tools=[BASH, {**BASH, "name": "b", "type": "custom", "cache_control": {}, "strict": True}])
    assert request.tools[0] == {
        "type": "function",
        "function": {"name": "bash", "description": "Run.", "parameters": {"type": "object", "properties": {}}},
    }
    assert names(request.tools) == ["bash", "b"]


def test_proto_13_tools_that_a_server_runs_are_left_out_and_named_once():
    request = read(
        tools=[
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
            BASH,
            {"type": "bash_20250124", "name": "bash"},
            {"type": "web_search_20250305", "name": "web_search"},
            {"type": "text_editor_20250728", "name": "e"},
        ]
    )
    assert names(request.tools) == ["bash"]
    assert request.ignored == ("tools: web_search_20250305", "tools: bash_20250124", "tools: text_editor_20250728")


def test_deferred_tools_are_shown_where_they_are_loaded_and_the_list_stays():
    later = {"name": "later", "description": "L", "input_schema": {"type": "object"}, "defer_loading": True}
    ask = assistant(call("ToolSearch", query="later"))
    loaded = user(result([{"type": "tool_reference", "tool_name": "later"}]), text("Tool loaded."))
    before = read(USER, tools=[BASH])
    after = read(USER, ask, loaded, tools=[later, BASH])
    assert after.tools == before.tools
    function = {"name": "later", "description": "L", "parameters": {"type": "object"}}
    assert after.messages[2].content == (
        'Tool loaded: {"type": "function", "function": {"name": "later", "description": "L", '
        '"parameters": {"type": "object"}}}\n'
    )
    assert after.loaded_tools == ({"type": "function", "function": function},)
    assert read(USER, ask, loaded, tools=[BASH]).messages[2].content == "Tool loaded: later\n"


def test_deferred_tools_that_nothing_here_could_load_are_ordinary_ones():
    later = {**BASH, "name": "later", "defer_loading": True}
    search = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    assert names(read(tools=[search, BASH, later]).tools) == ["bash", "later"]
    assert names(read(tools=[later]).tools) == ["later"]


BAD_TOOLS: list[tuple[Any, str]] = [
    ({}, "tools"),
    ([1], "tools[0]"),
    ([{"input_schema": {}}], "tools[0].name"),
    ([{"name": 3}], "tools[0].name"),
    ([BASH, {"name": "x", "type": 3}], "tools[1].type"),
    ([{"name": "x", "input_schema": {"description": "\ud83d"}}], "tools[0].input_schema"),
]


@pytest.mark.parametrize(("tools", "path"), BAD_TOOLS)
def test_tools_that_cannot_be_read_are_refused_with_their_path(tools: Any, path: str):
    assert refused(tools=tools).param == path


@pytest.mark.parametrize(
    ("choice", "meant"),
    [
        (None, ToolChoice()),
        ({"type": "auto"}, ToolChoice()),
        ({"type": "any"}, ToolChoice("required")),
        ({"type": "none"}, ToolChoice("none")),
        ({"type": "tool", "name": "bash"}, ToolChoice("named", "bash")),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(parallel=False)),
        ({"type": "any", "disable_parallel_tool_use": False}, ToolChoice("required")),
        ({"type": "tool", "name": "bash", "disable_parallel_tool_use": True}, ToolChoice("named", "bash", False)),
    ],
)
def test_proto_08_tool_choice(choice: Any, meant: ToolChoice):
    assert read(tools=[BASH], tool_choice=choice).tool_choice == meant


@pytest.mark.parametrize(
    ("choice", "tools"),
    [
        ("auto", [BASH]),
        ({"type": "some"}, [BASH]),
        ({}, [BASH]),
        ({"type": "tool", "name": "nope"}, [BASH]),
        ({"type": "tool", "name": "web_search"}, [{"type": "web_search_20250305", "name": "web_search"}]),
        ({"type": "any"}, []),
        ({"type": "auto", "disable_parallel_tool_use": "yes"}, [BASH]),
    ],
)
def test_proto_08_a_choice_that_cannot_be_made_is_refused(choice: Any, tools: Any):
    assert refused(tools=tools, tool_choice=choice).param.startswith("tool_choice")


# ------------------------------------------------------------------------------------------------ parameters


def test_parameters_have_the_names_of_sampling_params():
    request = read(
        temperature=0.5, top_p=0.9, top_k=20, stop_sequences=["</s>", ""], stream=True, max_tokens=128_000, model="x"
    )
    assert request.sampling == {"temperature": 0.5, "top_p": 0.9, "top_k": 20}
    assert (request.stop, request.stream, request.max_tokens, request.model) == (("</s>",), True, 128_000, "x")
    assert request.samples == 1 and request.template_kwargs == {}


def test_parameters_may_all_be_missing_or_null():
    bare = ADAPTER.read(wire({"messages": [USER]}))
    names = "temperature top_p top_k stop_sequences stream max_tokens model system tools tool_choice thinking metadata"
    more = "thread output_config context_management mcp_servers container"
    nulls = dict.fromkeys([*names.split(), *more.split()])
    null = ADAPTER.read(wire({"messages": [USER], **nulls}))
    for request in (bare, null):
        assert (request.sampling, request.stop, request.max_tokens, request.stream) == ({}, (), None, False)
        assert request.ignored == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 2.5),
        ("temperature", "hot"),
        ("temperature", float("nan")),
        ("temperature", True),
        ("top_p", -0.1),
        ("top_k", 1.5),
        ("max_tokens", 0),
        ("max_tokens", "10"),
        ("stream", "yes"),
        ("model", 3),
        ("stop_sequences", "x"),
        ("stop_sequences", [1]),
        ("system", 5),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(name: str, value: Any):
    assert refused(**{name: value}).param.split("[")[0] == name


def test_what_asks_for_nothing_is_tolerated_in_silence():
    request = read(
        thinking={"type": "adaptive"},
        metadata={"user_id": "{}"},
        service_tier="auto",
        betas=["x"],
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        mcp_servers=[],
        container=None,
        from_the_future={"a": 1},
    )
    assert request.ignored == ()


def test_what_asks_for_something_that_is_not_done_is_named():
    request = read(
        thinking={"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
        output_config={"format": {"type": "json_schema", "schema": {}}, "effort": "low"},
        context_management={"edits": [{"type": "clear_tool_uses_20250919"}, 3]},
        mcp_servers=[{"type": "url", "url": "http://x", "name": "x"}],
        container="c",
    )
    assert set(request.ignored) == {
        "thinking.budget_tokens",
        "thinking.display: omitted",
        "output_config.format",
        "output_config.effort",
        "container",
        "mcp_servers",
        "context_management: clear_tool_uses_20250919",
        "context_management: ?",
    }
    assert read(thinking={"type": "disabled"}).ignored == ("thinking.type: disabled",)


def test_a_thread_is_refused_in_the_words_that_make_the_sdk_send_everything():
    error = refused(thread={"type": "create"})
    status, _, answer = ADAPTER.error(error)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


def test_proto_10_a_count_needs_no_cap_and_its_answer_is_the_number():
    counted = ADAPTER.read_count(
        wire({"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": []}, "/v1/messages/count_tokens")
    )
    assert counted.messages == (Message("user", "hi"),) and counted.max_tokens is None and not counted.stream
    assert ADAPTER.count_response(17) == {"input_tokens": 17}
    assert readings(counted.messages) == readings(ADAPTER.read(wire(body({"role": "user", "content": "hi"}))).messages)


def test_a_request_nested_without_end_is_refused():
    content: Any = [text("x")]
    for _ in range(500):
        content = [{"type": "odd", "content": content}]
    assert read({"role": "user", "content": content}).messages[0].content == "x"
    for _ in range(5000):
        content = [{"type": "odd", "content": content}]
    assert refused({"role": "user", "content": content}).kind is ErrorKind.INVALID_REQUEST
