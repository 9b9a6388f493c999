"""What clients send, as it is read."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.gateway.protocols.chat.support import BASH, HI, PATCH, call, read, same
from uni_agent.gateway.canonical import ToolChoice
from uni_agent.types import Media, Message, ToolCall

PNG = base64.b64encode(b"\x89PNG").decode()
RAW = '{"command": "l'


def assistant(arguments: Any, **fields: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "bash", "arguments": arguments}}],
        **fields,
    }


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"role": "system", "content": "s"}, Message("system", "s")),
        ({"role": "developer", "content": "s"}, Message("system", "s")),
        ({"role": "user", "content": "u", "name": "bob"}, Message("user", "u", name="bob")),
        ({"role": "user", "content": "u", "name": None, "x": {"y": 1}}, Message("user", "u")),
        ({"role": "user", "content": [{"type": "input_text", "text": "a"}, "b"]}, Message("user", "ab")),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, Message("assistant", "no")),
        ({"role": "assistant", "content": None, "refusal": "no"}, Message("assistant", "no")),
        ({"role": "assistant", "content": "t", "refusal": None, "audio": None}, Message("assistant", "t")),
        (
            {"role": "tool", "tool_call_id": "c1", "name": "bash", "content": [{"type": "text", "text": "ok"}]},
            Message("tool", "ok", tool_call_id="c1", name="bash"),
        ),
        ({"role": "tool", "content": "ok"}, Message("tool", "ok")),
        ({"role": "function", "name": "bash", "content": "ok"}, Message("tool", "ok", name="bash")),
        ({"role": "tool", "tool_call_id": "c1", "content": None}, Message("tool", "", tool_call_id="c1")),
    ],
)
def test_each_role_and_form_of_content_is_read(raw: dict[str, Any], message: Message) -> None:
    assert read(raw).messages == (message,)


@pytest.mark.parametrize("content", [None, "", [], [{"type": "text", "text": ""}], [{"type": "text", "text": None}]])
@pytest.mark.parametrize("role", ["user", "system", "assistant", "tool"])
def test_proto_18_contents_that_say_nothing_are_one(role: Any, content: Any) -> None:
    assert read({"role": role, "content": content}).messages == (Message(role, ""),)


def test_proto_18_parts_are_joined_and_unknown_keys_do_not_matter() -> None:
    parts = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]
    assert read({"role": "user", "content": parts}).messages == (Message("user", "ab"),)


def test_an_image_inside_the_request_is_read_and_keeps_its_place() -> None:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}", "detail": "low"}}
    flat = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}
    media = Media("image", b"\x89PNG", "image/png")
    for role in ("user", "tool"):
        found = read({"role": role, "content": [{"type": "text", "text": "a"}, image, "b", flat]}).messages[0]
        assert found.parts == ("a", media, "b", media)
        assert found.content == "ab"


def test_proto_01_a_call_with_broken_arguments_stays_as_the_model_wrote_it() -> None:
    found = read(HI, assistant(RAW), {"role": "tool", "tool_call_id": "c1", "content": "bad json"}).messages
    broken = found[1].tool_calls[0]
    assert (broken.name, broken.arguments, broken.raw_arguments) == ("bash", {}, RAW)
    assert broken.error
    stored = [Message("user", "hi"), Message("assistant", "", "", (call("bash", RAW, error="no JSON"),)), found[2]]
    assert same(stored, found)


@pytest.mark.parametrize("wrapped", [{"INVALID_JSON": RAW}, {"__unparsedToolInput": {"raw": RAW, "len": 13}}])
@pytest.mark.parametrize("text", [True, False])
def test_broken_arguments_that_a_client_wrapped_are_the_same_call(wrapped: Any, text: bool) -> None:
    found = read(HI, assistant(json.dumps(wrapped) if text else wrapped)).messages[1].tool_calls[0]
    assert found.raw_arguments == RAW
    assert found.error


@pytest.mark.parametrize("arguments", ["", "  ", "null", None, {}, "{}"])
def test_proto_02_empty_arguments_are_an_empty_object(arguments: Any) -> None:
    found = read(HI, assistant(arguments)).messages[1].tool_calls[0]
    assert (found.arguments, found.error) == ({}, None)


@pytest.mark.parametrize("arguments", ['{"command": "ls"}', {"command": "ls"}, '{ "command":"\\u006cs" }'])
def test_proto_02_arguments_are_decoded(arguments: Any) -> None:
    found = read(HI, assistant(arguments)).messages[1].tool_calls[0]
    assert (found.id, found.name, found.arguments, found.error) == ("c1", "bash", {"command": "ls"}, None)


@pytest.mark.parametrize("arguments", ["[1]", "3", '"x"', [1], 3, True, '{"a": ' * 300 + "1" + "}" * 300])
def test_arguments_that_are_no_usable_object_are_a_broken_call(arguments: Any) -> None:
    found = read(HI, assistant(arguments)).messages[1].tool_calls[0]
    assert found.error
    assert found.arguments == {}
    assert found.raw_arguments == (arguments if isinstance(arguments, str) else json.dumps(arguments))


def test_calls_of_custom_tools_and_of_the_older_form_are_read() -> None:
    custom = {"id": "c2", "type": "custom", "custom": {"name": "apply_patch", "input": "*** Begin"}}
    found = read(HI, {"role": "assistant", "tool_calls": [custom]}, {"role": "user", "content": "go"}).messages[1]
    assert found.tool_calls[0].arguments == {"input": "*** Begin"}
    older = {"role": "assistant", "content": None, "function_call": {"name": "bash", "arguments": '{"command": "ls"}'}}
    result = {"role": "function", "name": "bash", "content": "ok"}
    found = read(HI, older, result).messages
    assert found[1].tool_calls == (ToolCall("", "bash", {"command": "ls"}, '{"command": "ls"}'),)
    stored = [found[0], Message("assistant", "", "", (call("bash", '{"command": "ls"}'),)), Message("tool", "ok")]
    assert same(stored, found)


@pytest.mark.parametrize(
    "echo",
    [
        {"content": "hi", "reasoning_content": "plan"},
        {"content": "hi", "reasoning": "plan"},
        {"content": "hi", "reasoning_content": "plan", "reasoning": "plan"},
        {"content": "hi", "reasoning_content": None, "reasoning": "plan"},
        {"content": [{"type": "thinking", "thinking": "plan", "signature": ""}, {"type": "text", "text": "hi"}]},
        {"content": "<think>\nplan\n</think>\n\nhi"},
        {"content": "hi"},
    ],
)
def test_proto_16_thinking_survives_every_way_to_send_it_back(echo: dict[str, Any]) -> None:
    found = read(HI, {"role": "assistant", **echo}, {"role": "user", "content": "go"}).messages
    assert same([Message("user", "hi"), Message("assistant", "hi", "plan"), Message("user", "go")], found)


def test_changed_thinking_is_another_turn() -> None:
    found = read(HI, {"role": "assistant", "content": "hi", "reasoning_content": "plot"}).messages
    assert not same([Message("user", "hi"), Message("assistant", "hi", "plan")], found)


def test_only_neighbouring_assistant_messages_become_one() -> None:
    found = read(
        HI, {"role": "assistant", "content": "a"}, assistant('{"command": "ls"}'), HI, assistant("{}")
    ).messages
    assert [message.role for message in found] == ["user", "assistant", "user", "assistant"]
    assert (found[1].content, len(found[1].tool_calls)) == ("a", 1)
    assert len(found[3].tool_calls) == 1


def test_an_empty_assistant_turn_is_kept() -> None:
    empty = {"role": "assistant", "content": ""}
    assert read(HI, empty, HI).messages[1] == Message("assistant", "")
    assert read(HI, empty, empty, HI).messages[1:] == (Message("assistant", ""), Message("user", "hi"))


def test_an_unknown_role_is_read_as_the_users_and_named() -> None:
    request = read({"role": "critic", "content": "x"}, {"role": "critic", "content": "y"})
    assert request.messages == (Message("user", "x"), Message("user", "y"))
    assert request.ignored == ("messages: role 'critic'",)


def test_proto_13_functions_and_custom_tools_are_offered_and_vendor_tools_are_named_once() -> None:
    flat = {"type": "function", "name": "shell", "parameters": {"type": "object"}, "strict": True}
    vendor = [{"type": "web_search"}, {"type": "local_shell"}, {"type": "web_search", "x": 1}]
    bare = {"type": None, "function": {"name": "bare", "description": "", "strict": False}}
    request = read(tools=[BASH, flat, PATCH, *vendor, bare])
    assert request.tools == (
        BASH,
        {"type": "function", "function": {"name": "shell", "parameters": {"type": "object"}}},
        {
            "type": "function",
            "function": {
                "name": "apply_patch",
                "description": "edit",
                "parameters": {
                    "type": "object",
                    "properties": {"input": {"type": "string"}},
                    "required": ["input"],
                },
            },
        },
        {"type": "function", "function": {"name": "bare", "parameters": {"type": "object", "properties": {}}}},
    )
    assert request.ignored == ("tools: web_search", "tools: local_shell")
    assert read(tools=[BASH, flat, PATCH, *vendor, bare]).tools == request.tools


def test_a_grammar_is_named_since_it_does_not_bind() -> None:
    grammar = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /.+/"}}
    assert read(tools=[{"type": "custom", "custom": {"name": "p", "format": grammar}}]).ignored == (
        "tools: grammar of p",
    )
    assert read(tools=[{"type": "custom", "custom": {"name": "p", "format": {"type": "text"}}}]).ignored == ()


ALLOWED = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "bash"}}]}


@pytest.mark.parametrize(
    ("body", "choice"),
    [
        ({}, ToolChoice()),
        ({"tool_choice": None, "parallel_tool_calls": None}, ToolChoice()),
        ({"tool_choice": "auto"}, ToolChoice("auto")),
        ({"tool_choice": "none"}, ToolChoice("none")),
        ({"tool_choice": "required"}, ToolChoice("required")),
        ({"tool_choice": "any"}, ToolChoice("required")),
        ({"tool_choice": {"type": "none"}}, ToolChoice("none")),
        ({"tool_choice": {"type": "function", "function": {"name": "bash"}}}, ToolChoice("named", "bash")),
        ({"tool_choice": {"type": "function", "name": "bash"}}, ToolChoice("named", "bash")),
        ({"tool_choice": {"type": "custom", "custom": {"name": "apply_patch"}}}, ToolChoice("named", "apply_patch")),
        ({"tool_choice": "auto", "parallel_tool_calls": False}, ToolChoice("auto", parallel=False)),
        ({"tool_choice": "required", "parallel_tool_calls": True}, ToolChoice("required")),
    ],
)
def test_proto_08_tool_choice_is_mapped(body: dict[str, Any], choice: ToolChoice) -> None:
    request = read(tools=[BASH, PATCH], **body)
    assert request.tool_choice == choice
    assert len(request.tools) == 2


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_are_the_only_ones_offered(mode: Any) -> None:
    request = read(
        tools=[BASH, PATCH], tool_choice={"type": "allowed_tools", "allowed_tools": {**ALLOWED, "mode": mode}}
    )
    assert request.tools == (BASH,)
    assert request.tool_choice == ToolChoice(mode)


def test_the_older_form_of_tools_has_room_for_one_call() -> None:
    request = read(functions=[BASH["function"]], function_call={"name": "bash"})
    assert request.tools == (BASH,)
    assert request.tool_choice == ToolChoice("named", "bash", parallel=False)


def test_sampling_is_read_under_the_engines_names() -> None:
    body = {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.1, "seed": -1}
    assert read(**body).sampling == body
    assert read(top_k=0, temperature=0, top_p=1).sampling == {"top_k": -1, "temperature": 0.0, "top_p": 1.0}
    assert 0 < read(top_p=0).sampling["top_p"] < 1e-5
    assert read(temperature=None, seed=None).sampling == {}


@pytest.mark.parametrize(
    ("body", "cap"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7),
        ({"max_tokens": 5, "max_completion_tokens": None}, 5),
        ({"max_tokens": 64000.0}, 64000),
        ({"max_completion_tokens": 10**12}, 10**12),
    ],
)
def test_the_newer_cap_wins_and_any_size_is_taken(body: dict[str, Any], cap: int | None) -> None:
    assert read(**body).max_tokens == cap


@pytest.mark.parametrize(
    ("stop", "strings"), [(None, ()), ("x", ("x",)), ([], ()), (["a", "b"], ("a", "b")), (["s"] * 16, ("s",) * 16)]
)
def test_stop_is_one_string_or_several(stop: Any, strings: tuple[str, ...]) -> None:
    assert read(stop=stop).stop == strings


@pytest.mark.parametrize(
    ("body", "ignored"),
    [
        ({"presence_penalty": 0.5, "frequency_penalty": 1}, ("presence_penalty", "frequency_penalty")),
        ({"presence_penalty": 0.0, "frequency_penalty": None, "logit_bias": {}}, ()),
        ({"logit_bias": {"50256": -100}}, ("logit_bias",)),
        ({"response_format": {"type": "text"}}, ()),
        ({"response_format": {"type": "json_object"}}, ("response_format",)),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "N"}}}, ("response_format",)),
        ({"reasoning_effort": "high", "verbosity": "medium", "modalities": ["text"]}, ("reasoning_effort",)),
        ({"verbosity": "low", "web_search_options": {}}, ("web_search_options", "verbosity")),
        ({"logprobs": True, "top_logprobs": 2}, ("top_logprobs",)),
        ({"logprobs": True, "top_logprobs": 0}, ()),
        (
            {
                "service_tier": "auto",
                "store": False,
                "metadata": {"a": "b"},
                "user": "u",
                "prediction": {"type": "content", "content": ""},
                "safety_identifier": "s",
                "prompt_cache_key": "p",
                "brand_new": [1],
            },
            (),
        ),
    ],
)
def test_what_would_change_the_answer_and_is_not_done_is_named(body: dict[str, Any], ignored: tuple[str, ...]) -> None:
    assert read(**body).ignored == ignored


def test_the_rest_of_a_request_is_read() -> None:
    request = read(model="policy", stream=True, n=1, chat_template_kwargs={"enable_thinking": True})
    assert (request.model, request.stream, request.samples) == ("policy", True, 1)
    assert request.template_kwargs == {"enable_thinking": True}
    assert not request.return_tokens
    assert read(n=8).samples == 8
    assert read(return_token_ids=True).return_tokens
    assert read(logprobs=True).return_tokens
