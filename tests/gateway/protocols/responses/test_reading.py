"""How items, tools and options of a request are read."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.gateway.protocols.responses.support import BASH, PATCH, TOOLS, read, read_body, result, same, user
from uni_agent.gateway.canonical import ToolChoice
from uni_agent.gateway.errors import ErrorKind, GatewayError
from uni_agent.gateway.protocols.openai_responses.ids import thinking_handle
from uni_agent.types import Media, Message, ToolCall

A, B = "a" * 24, "b" * 24
PNG = b"\x89PNG"
PIXEL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"


def text_item(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}], **fields}


def call_item(id_: str, arguments: Any = "{}", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": id_, "name": "bash", "arguments": arguments, **fields}


def call(id_: str, arguments: dict[str, Any] | None = None, name: str = "bash") -> ToolCall:
    return ToolCall(id_, name, arguments or {})


def test_proto_12_items_of_one_turn_are_one_message() -> None:
    request = read(
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
        {"type": "reasoning", "id": "r1", "summary": []},
        text_item("doing"),
        call_item("c1"),
        call_item("c2"),
        result("c1", "A"),
        result("c2", "B"),
    )
    assert [message.role for message in request.messages] == ["user", "assistant", "tool", "tool"]
    stored = [
        Message("user", "go"),
        Message("assistant", "doing", "", (call("x"), call("y"))),
        Message("tool", "A", tool_call_id="x"),
        Message("tool", "B", tool_call_id="y"),
    ]
    assert same(stored, request.messages)


def test_proto_15_short_items_are_messages_and_empty_turns_are_none() -> None:
    request = read(
        user("go"),
        {"role": "assistant", "content": [{"type": "output_text", "text": "hi"}]},
        {"type": "message", "role": "assistant", "content": []},
        user("q"),
    )
    assert request.messages == (Message("user", "go"), Message("assistant", "hi"), Message("user", "q"))


@pytest.mark.parametrize("content", [None, "", [], [{"type": "input_text", "text": ""}], [{"type": "text"}]])
def test_proto_18_nothing_is_written_in_many_ways(content: Any) -> None:
    assert read({"role": "user", "content": content}).messages == (Message("user", ""),)
    items = [user("go"), {"role": "assistant", "content": content}, call_item("c"), result("c", content)]
    assert [message.content for message in read(*items).messages] == ["go", "", ""]


def test_proto_18_parts_are_joined_as_they_are() -> None:
    parts: list[Any] = [{"type": "input_text", "text": "a"}, "b", {"type": "text", "text": "c", "cache_control": {}}]
    assert read({"role": "developer", "content": parts, "phase": None}).messages == (Message("system", "abc"),)


def test_proto_01_broken_arguments_stay_as_the_model_wrote_them() -> None:
    written = '{"command": "l'
    messages = read(user("go"), call_item("c1", written), result("c1", "bad json")).messages
    (broken,) = messages[1].tool_calls
    assert broken.raw_arguments == written and broken.error and broken.arguments == {}
    wrapped = read(user("go"), call_item("c1", '{"INVALID_JSON": "{\\"command\\": \\"l"}')).messages
    assert wrapped[1].tool_calls[0].raw_arguments == written


@pytest.mark.parametrize(
    "thinking",
    [
        {"content": [{"type": "reasoning_text", "text": "plan"}], "summary": []},
        {"summary": [{"type": "summary_text", "text": "plan"}], "content": None},
        {
            "summary": [{"type": "summary_text", "text": "other"}],
            "content": [{"type": "reasoning_text", "text": "plan"}],
        },
    ],
)
def test_proto_16_thinking_belongs_to_the_turn_that_follows(thinking: dict[str, Any]) -> None:
    item = {"type": "reasoning", "id": "rs_1", "encrypted_content": "ZmFrZQ==", **thinking}
    assert read(user("go"), item, text_item("hi")).messages[1] == Message("assistant", "hi", "plan")
    assert read(user("go"), item, call_item("c"), result("c")).messages[1].reasoning == "plan"
    assert read(user("go"), item, user("more")).messages[1] == Message("assistant", "", "plan")


def test_proto_16_thinking_that_a_client_moved_or_dropped_is_the_same_turn() -> None:
    stored = [Message("user", "go"), Message("assistant", "hi", "plan")]
    moved = read(user("go"), text_item("<think>\nplan\n</think>"), text_item("hi")).messages
    dropped = read(user("go"), {"type": "reasoning", "summary": [], "encrypted_content": "x"}, text_item("hi")).messages
    assert same(stored, moved) and same(stored, dropped)


def test_ids_tell_turns_apart_that_follow_each_other() -> None:
    """What Codex keeps of a stream that failed stands in front of the turn that came of the next attempt."""
    failed, retried = text_item("I'll do it.", id=f"msg_{A}00"), text_item("I'll do it.", id=f"msg_{B}00")
    items = [user("go"), failed, retried, call_item(f"call_{B}00", id=f"fc_{B}00"), result(f"call_{B}00")]
    first, second = read(*items).messages[1:3]
    assert first == Message("assistant", "I'll do it.")
    assert second.content == "I'll do it." and len(second.tool_calls) == 1


def test_the_handle_of_the_thinking_tells_turns_apart_too() -> None:
    thoughts: list[Any] = [
        {"type": "reasoning", "summary": [], "encrypted_content": thinking_handle(id_)} for id_ in (A, B)
    ]
    messages = read(user("go"), text_item("one", id=f"msg_{A}00"), thoughts[0], thoughts[1], text_item("two")).messages
    assert [message.content for message in messages] == ["go", "one", "two"]


def test_calls_of_one_turn_with_results_between_them_are_one_turn() -> None:
    ids = [f"call_{A}00", f"call_{A}01"]
    apart = read(user("go"), call_item(ids[0]), result(ids[0], "0"), call_item(ids[1]), result(ids[1], "1")).messages
    assert [message.role for message in apart] == ["user", "assistant", "tool", "tool"]
    foreign = read(user("go"), call_item("x"), result("x"), call_item("y"), result("y")).messages
    assert [message.role for message in foreign] == ["user", "assistant", "tool", "assistant", "tool"]


def test_items_without_ids_join_the_turn_at_hand() -> None:
    messages = read(user("go"), text_item("a"), call_item(f"call_{A}00"), text_item("b")).messages
    assert [message.content for message in messages] == ["go", "a\nb"] and len(messages[1].tool_calls) == 1


def test_custom_and_namespaced_calls_carry_the_names_that_the_model_saw() -> None:
    custom = {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": '*** Begin\n"x"'}
    spawned = call_item("c2", '{"message": "x"}', name="spawn_agent", namespace="multi_agent_v1")
    plain = call_item("c3", name="wait", namespace="functions")
    done = result("c1", [{"type": "input_text", "text": "ok"}], "custom_tool_call_output")
    messages = read(user("go"), custom, spawned, plain, done, result("c2"), result("c3")).messages
    assert [(one.name, one.arguments) for one in messages[1].tool_calls] == [
        ("apply_patch", {"input": '*** Begin\n"x"'}),
        ("multi_agent_v1__spawn_agent", {"message": "x"}),
        ("wait", {}),
    ]
    assert [(message.tool_call_id, message.content) for message in messages[2:]] == [
        ("c1", "ok"),
        ("c2", "ok"),
        ("c3", "ok"),
    ]


def test_calls_that_a_client_ran_in_a_vendors_form_are_context() -> None:
    shell = {"type": "local_shell_call", "call_id": "s", "action": {"type": "exec", "command": ["ls"]}}
    outcome = {"type": "shell_call_output", "call_id": "s", "output": [{"stdout": "a", "outcome": {"exit_code": 0}}]}
    messages = read(user("go"), shell, outcome).messages
    assert messages[1].tool_calls[0].name == "local_shell"
    assert messages[1].tool_calls[0].arguments["command"] == ["ls"]
    assert '"stdout": "a"' in messages[2].content and messages[2].tool_call_id == "s"
    screen = {
        "type": "computer_call_output",
        "call_id": "p",
        "output": {"type": "computer_screenshot", "image_url": PIXEL},
    }
    assert read(user("go"), screen).messages[1].parts == (Media("image", PNG, "image/png"),)


def test_what_a_vendor_ran_is_left_out_and_named_once() -> None:
    search = {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "x"}}
    request = read(user("go"), search, search, {"type": "mcp_list_tools", "tools": []}, text_item("found"))
    assert request.messages == (Message("user", "go"), Message("assistant", "found"))
    assert request.ignored == ("input: web_search_call", "input: mcp_list_tools")


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "item_reference", "id": "msg_1"}, "input[1]"),
        ({"type": "compaction", "encrypted_content": "x"}, "input[1]"),
        ({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}, "input[1].content[0]"),
        ({"role": "user", "content": [{"type": "input_audio", "data": "x"}]}, "input[1].content[0]"),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}, "input[1].content[0]"),
        (
            {"role": "user", "content": [{"type": "input_image", "image_url": "https://x/y.png"}]},
            "input[1].content[0].image_url",
        ),
        ({"role": "system", "content": [{"type": "input_image", "image_url": PIXEL}]}, "input[1].content"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_its_path(item: dict[str, Any], param: str) -> None:
    with pytest.raises(GatewayError) as caught:
        read(user("go"), item)
    assert caught.value.kind is ErrorKind.UNSUPPORTED and caught.value.param == param and param in caught.value.message


@pytest.mark.parametrize(
    ("field", "value"),
    [("conversation", "c"), ("conversation", {"id": "c"}), ("prompt", {"id": "p"}), ("background", True)],
)
def test_what_is_kept_at_the_vendor_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(GatewayError, match=field) as caught:
        read(**{field: value})
    assert caught.value.kind is ErrorKind.UNSUPPORTED and caught.value.param == field


def test_images_stand_at_their_place() -> None:
    picture = {"type": "input_image", "image_url": PIXEL, "detail": "high"}
    parts = [{"type": "input_text", "text": "a"}, picture, {"type": "input_text", "text": "b"}]
    media = Media("image", PNG, "image/png")
    assert read({"role": "user", "content": parts}).messages == (Message("user", "ab", parts=("a", media, "b")),)
    messages = read(user("go"), call_item("c"), result("c", [{**picture, "image_url": {"url": PIXEL}}])).messages
    assert messages[2] == Message("tool", "", tool_call_id="c", parts=(media,))


def test_instructions_lead_and_a_previous_response_keeps_its_whole_name() -> None:
    request = read(instructions="Be brief.", previous_response_id=f"resp_{A}", store=True)
    assert request.messages[0] == Message("system", "Be brief.") and request.instructions == 1
    assert request.previous_response_id == f"resp_{A}"
    assert read(previous_response_id="foreign").previous_response_id == "foreign"
    bare = read_body({"model": "m", "input": [], "previous_response_id": f"resp_{A}"})
    assert bare.messages == () and bare.instructions == 0


def test_a_string_is_a_user_message_and_nothing_is_an_error() -> None:
    assert read_body({"input": "hello"}).messages == (Message("user", "hello"),)
    bodies: list[dict[str, Any]] = [{}, {"input": []}, {"input": None}, {"input": [], "instructions": "x"}]
    for body in bodies:
        with pytest.raises(GatewayError, match="nothing to answer"):
            read_body(body)


def test_proto_13_custom_tools_are_offered_and_vendor_tools_left_out() -> None:
    tools: list[Any] = [
        {"type": "function", "name": "shell", "parameters": {"type": "object"}},
        {**PATCH, "description": None},
        {"type": "web_search"},
        {"type": "local_shell"},
        {"type": "web_search"},
        {"type": "namespace", "name": "mcp", "tools": []},
    ]
    request = read(tools=tools)
    assert [tool["function"]["name"] for tool in request.tools] == ["shell", "apply_patch"]
    offered = request.tools[1]["function"]
    assert offered["parameters"]["required"] == ["input"]
    assert "lark grammar" in offered["description"] and "start: /.+/" in offered["description"]
    assert request.ignored == ("tools: grammar of apply_patch", "tools: web_search", "tools: local_shell")
    assert read(tools=tools).tools == request.tools


def test_names_of_a_namespace_are_joined_as_codex_joins_them() -> None:
    def names(namespace: str, *inner: str) -> list[str]:
        tools = [{"type": "function", "name": name} for name in inner]
        request = read(tools=[{"type": "namespace", "name": namespace, "tools": tools}])
        return [tool["function"]["name"] for tool in request.tools]

    assert names("agents", "spawn", "_wait") == ["agents__spawn", "agents_wait"]
    assert names("mcp__git__", "log") == ["mcp__git__log"]
    assert names("functions", "exec") == ["exec"]


def test_a_second_tool_of_the_same_name_is_left_out() -> None:
    other = {**BASH, "description": "another"}
    request = read(tools=[BASH, other])
    assert len(request.tools) == 1 and request.ignored == ("tools[1]: bash again",)
    again = {"type": "additional_tools", "tools": [BASH]}
    assert read(again, user("go"), tools=[BASH]).ignored == ()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice()),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "name": "bash"}, ToolChoice("named", "bash")),
        ({"type": "custom", "name": "apply_patch"}, ToolChoice("named", "apply_patch")),
        (
            {"type": "function", "name": "spawn_agent", "namespace": "multi_agent_v1"},
            ToolChoice("named", "multi_agent_v1__spawn_agent"),
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "bash"}]},
            ToolChoice("required"),
        ),
    ],
)
def test_tool_choice(value: Any, expected: ToolChoice) -> None:
    request = read(tool_choice=value)
    assert request.tool_choice == expected
    assert request.ignored == (("tool_choice.allowed_tools",) if isinstance(value, dict) and "mode" in value else ())


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"tool_choice": {"type": "web_search"}}, ErrorKind.UNSUPPORTED),
        ({"tool_choice": {"type": "function", "name": "none"}}, ErrorKind.INVALID_REQUEST),
        ({"tool_choice": "sometimes"}, ErrorKind.INVALID_REQUEST),
        ({"tool_choice": "required", "tools": [{"type": "web_search"}]}, ErrorKind.INVALID_REQUEST),
        ({"parallel_tool_calls": "no"}, ErrorKind.INVALID_REQUEST),
        ({"stream": "yes"}, ErrorKind.INVALID_REQUEST),
        ({"temperature": float("nan")}, ErrorKind.INVALID_REQUEST),
        ({"top_p": 10**400}, ErrorKind.INVALID_REQUEST),
        ({"max_output_tokens": 0}, ErrorKind.INVALID_REQUEST),
        ({"max_output_tokens": 1e999}, ErrorKind.INVALID_REQUEST),
        ({"tools": [{"type": "function"}]}, ErrorKind.INVALID_REQUEST),
        ({"tools": "bash"}, ErrorKind.INVALID_REQUEST),
        ({"tools": [{**BASH, "parameters": {"x": float("inf")}}]}, ErrorKind.INVALID_REQUEST),
        ({"reasoning": "high"}, ErrorKind.INVALID_REQUEST),
        ({"include": "all"}, ErrorKind.INVALID_REQUEST),
        ({"input": 5}, ErrorKind.INVALID_REQUEST),
        ({"input": ["go"]}, ErrorKind.INVALID_REQUEST),
        ({"input": [{"content": "go"}]}, ErrorKind.INVALID_REQUEST),
    ],
)
def test_options_that_mean_nothing_are_refused(body: dict[str, Any], kind: ErrorKind) -> None:
    with pytest.raises(GatewayError) as caught:
        read(**body)
    assert caught.value.kind is kind and caught.value.param.split(".")[0].split("[")[0] in body


def test_deep_nesting_is_refused_before_it_breaks_anything() -> None:
    deep: Any = {}
    for _ in range(500):
        deep = {"properties": {"x": deep}}
    for body in ({"tools": [{**BASH, "parameters": deep}]}, {"text": {"format": deep}}, {"tool_choice": deep}):
        with pytest.raises(GatewayError):
            read(**body)
    with pytest.raises(GatewayError, match="deep"):
        read(user("go"), call_item("c", deep))


def test_what_was_asked_and_is_not_done_is_named_and_hints_are_not() -> None:
    request = read(
        text={"format": {"type": "json_object"}, "verbosity": "low"},
        reasoning={"effort": "high", "summary": "auto"},
        include=["reasoning.encrypted_content", "message.output_text.logprobs"],
        truncation="auto",
        max_tool_calls=3,
        metadata={"k": "v"},
        prompt_cache_key="pk",
        service_tier="auto",
        client_metadata={"x": 1},
        safety_identifier="s",
        surprise=None,
    )
    assert request.ignored == (
        *("text.format", "text.verbosity", "reasoning.effort", "include.message.output_text.logprobs"),
        *("max_tool_calls", "truncation"),
    )


def test_sampling_and_caps_are_read() -> None:
    request = read(temperature=0.7, top_p=1, max_output_tokens=64.0, seed=3, stream=True)
    assert request.sampling == {"temperature": 0.7, "top_p": 1.0, "seed": 3}
    assert request.max_tokens == 64 and request.stream and request.samples == 1
    bare = read(temperature=None, max_output_tokens=None, stream=None, tools=TOOLS)
    assert bare.sampling == {} and bare.max_tokens is None and not bare.stream


def test_an_unknown_role_is_a_user_and_named() -> None:
    request = read(user("go"), {"role": "critic", "content": "hm"}, {"type": "message", "role": None, "content": "x"})
    assert [message.role for message in request.messages] == ["user"] * 3
    assert request.ignored == ("input: role critic",)
