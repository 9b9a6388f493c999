"""What cannot be read is refused with the path of it, and nothing crashes."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gateway.protocols.chat.support import ADAPTER, BASH, HI, PATCH, read, read_body
from uni_agent.gateway.canonical import ModelRequest
from uni_agent.gateway.errors import ErrorKind, GatewayError

URL = "data:image/png;base64,iVBORw=="
ALLOWED: dict[str, Any] = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "bash"}}]}
INVALID, UNSUPPORTED = ErrorKind.INVALID_REQUEST, ErrorKind.UNSUPPORTED


def user(part: Any) -> dict[str, Any]:
    return {"messages": [HI, {"role": "user", "content": [{"type": "text", "text": "a"}, part]}]}


def deep(levels: int = 300) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


def said(call: Any) -> dict[str, Any]:
    return {"messages": [HI, {"role": "assistant", "tool_calls": [call]}]}


REFUSED: list[tuple[dict[str, Any], ErrorKind, str]] = [
    ({}, INVALID, "messages"),
    ({"messages": None}, INVALID, "messages"),
    ({"messages": []}, INVALID, "messages"),
    ({"messages": "hi"}, INVALID, "messages"),
    ({"messages": {"role": "user"}}, INVALID, "messages"),
    ({"messages": ["hi"]}, INVALID, "messages[0]"),
    ({"messages": [HI, {"content": "x"}]}, INVALID, "messages[1].role"),
    ({"messages": [{"role": 3}]}, INVALID, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 3}]}, INVALID, "messages[0].content"),
    ({"messages": [{"role": "user", "content": {"type": "text"}}]}, INVALID, "messages[0].content"),
    (user(3), INVALID, "messages[1].content[1]"),
    (user({"text": "x"}), INVALID, "messages[1].content[1].type"),
    (user({"type": "text", "text": 3}), INVALID, "messages[1].content[1].text"),
    (user({"type": "file", "file": {"file_id": "f"}}), UNSUPPORTED, "messages[1].content[1]"),
    (user({"type": "input_audio", "input_audio": {}}), UNSUPPORTED, "messages[1].content[1]"),
    (user({"type": "hologram"}), UNSUPPORTED, "messages[1].content[1]"),
    (
        user({"type": "image_url", "image_url": {"url": "http://h/i.png"}}),
        UNSUPPORTED,
        "messages[1].content[1].image_url",
    ),
    (
        user({"type": "image_url", "image_url": {"url": "data:image/png;base64,$$"}}),
        INVALID,
        "messages[1].content[1].image_url",
    ),
    (
        {"messages": [{"role": "system", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
        UNSUPPORTED,
        "messages[0].content[0]",
    ),
    ({"messages": [{"role": "tool", "tool_call_id": 3}]}, INVALID, "messages[0].tool_call_id"),
    ({"messages": [{"role": "assistant", "reasoning": {}}]}, INVALID, "messages[0].reasoning"),
    ({"messages": [{"role": "assistant", "tool_calls": {}}]}, INVALID, "messages[0].tool_calls"),
    (said(3), INVALID, "messages[1].tool_calls[0]"),
    (said({"id": "c"}), INVALID, "messages[1].tool_calls[0].function"),
    (said({"type": "custom", "custom": {"input": 3}}), INVALID, "messages[1].tool_calls[0].custom.input"),
    (said({"function": {"arguments": deep()}}), INVALID, "messages[1].tool_calls[0].function.arguments"),
    ({"model": 3}, INVALID, "model"),
    ({"stream": "yes"}, INVALID, "stream"),
    ({"stream_options": "x"}, INVALID, "stream_options"),
    ({"temperature": 2.1}, INVALID, "temperature"),
    ({"temperature": -0.1}, INVALID, "temperature"),
    ({"temperature": "1"}, INVALID, "temperature"),
    ({"temperature": True}, INVALID, "temperature"),
    ({"temperature": float("nan")}, INVALID, "temperature"),
    ({"top_p": 1.01}, INVALID, "top_p"),
    ({"top_p": float("inf")}, INVALID, "top_p"),
    ({"top_k": -2}, INVALID, "top_k"),
    ({"top_k": 1.5}, INVALID, "top_k"),
    ({"min_p": 2}, INVALID, "min_p"),
    ({"repetition_penalty": 0}, INVALID, "repetition_penalty"),
    ({"seed": 1 << 63}, INVALID, "seed"),
    ({"seed": "a"}, INVALID, "seed"),
    ({"max_tokens": 0}, INVALID, "max_tokens"),
    ({"max_completion_tokens": -1}, INVALID, "max_completion_tokens"),
    ({"max_tokens": float("inf")}, INVALID, "max_tokens"),
    ({"stop": ""}, INVALID, "stop[0]"),
    ({"stop": ["a", ""]}, INVALID, "stop[1]"),
    ({"stop": ["a", 1]}, INVALID, "stop[1]"),
    ({"stop": ["a"] * 17}, INVALID, "stop"),
    ({"stop": 1}, INVALID, "stop"),
    ({"n": 0}, INVALID, "n"),
    ({"n": 9}, UNSUPPORTED, "n"),
    ({"n": 2, "stream": True}, UNSUPPORTED, "n"),
    ({"logprobs": 1}, INVALID, "logprobs"),
    ({"top_logprobs": 21}, INVALID, "top_logprobs"),
    ({"return_token_ids": "x"}, INVALID, "return_token_ids"),
    ({"response_format": "json"}, INVALID, "response_format"),
    ({"chat_template_kwargs": [1]}, INVALID, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"messages": []}}, INVALID, "chat_template_kwargs.messages"),
    ({"chat_template_kwargs": deep()}, INVALID, "chat_template_kwargs"),
    ({"tools": {}}, INVALID, "tools"),
    ({"tools": [3]}, INVALID, "tools[0]"),
    ({"tools": [{"type": 3}]}, INVALID, "tools[0].type"),
    ({"tools": [BASH, {"type": "function"}]}, INVALID, "tools[1].function.name"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, INVALID, "tools[0].function.name"),
    ({"tools": [{"type": "custom", "custom": None}]}, INVALID, "tools[0].custom"),
    (
        {"tools": [{"type": "function", "function": {"name": "x", "parameters": deep()}}]},
        INVALID,
        "tools[0].function.parameters",
    ),
    ({"functions": [{}]}, INVALID, "functions[0].name"),
    ({"tools": [BASH], "tool_choice": 3}, INVALID, "tool_choice"),
    ({"tools": [BASH], "tool_choice": "sometimes"}, INVALID, "tool_choice"),
    ({"tool_choice": "required"}, INVALID, "tool_choice"),
    ({"tools": [BASH], "tool_choice": {"type": "function", "function": {"name": "ls"}}}, INVALID, "tool_choice"),
    ({"tools": [BASH], "tool_choice": {"type": "function"}}, INVALID, "tool_choice"),
    ({"tools": [BASH], "tool_choice": {"type": "web_search"}}, UNSUPPORTED, "tool_choice"),
    (
        {"tools": [BASH], "tool_choice": {"type": "allowed_tools", "tools": [{"name": "ls"}]}},
        INVALID,
        "tool_choice.allowed_tools.tools[0]",
    ),
    ({"tools": [BASH], "parallel_tool_calls": 1}, INVALID, "parallel_tool_calls"),
]


@pytest.mark.parametrize(("body", "kind", "param"), REFUSED)
def test_what_cannot_be_read_is_refused_with_its_path(body: dict[str, Any], kind: ErrorKind, param: str) -> None:
    given_messages = "messages" in body or body == {}
    with pytest.raises(GatewayError) as caught:
        read_body(body if given_messages else {"messages": [HI], **body})
    assert (caught.value.kind, caught.value.param) == (kind, param)
    assert caught.value.message
    status, _, answer = ADAPTER.error(caught.value)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["param"] == param


KEYS = [
    *(
        "role",
        "content",
        "name",
        "type",
        "text",
        "refusal",
        "image_url",
        "url",
        "thinking",
        "reasoning",
        "id",
        "custom",
    ),
    *("reasoning_content", "tool_calls", "function_call", "function", "arguments", "input", "tool_call_id", "format"),
    *("parameters", "description", "mode", "tools", "allowed_tools", "include_usage"),
]
BODY_KEYS = [
    *("messages", "tools", "functions", "tool_choice", "function_call", "parallel_tool_calls", "model", "stream"),
    *("stream_options", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "n"),
    *("repetition_penalty", "stop", "logprobs", "top_logprobs", "return_token_ids", "chat_template_kwargs"),
    *("response_format", "logit_bias", "presence_penalty", "reasoning_effort", "modalities"),
]
WORDS = [
    *("user", "assistant", "tool", "function", "system", "developer", "text", "image_url", "custom", "allowed_tools"),
    *("auto", "none", "required", "bash", "", "{", "{}", '{"a": NaN}', "\ud800", "data:image/png;base64,AAAA"),
]
LEAF = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS) | st.text(max_size=5)
VALUE: st.SearchStrategy[Any] = st.recursive(
    LEAF,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)
        | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=25,
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(WORDS)}, optional={key: VALUE for key in KEYS if key != "role"}
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    body=st.dictionaries(st.sampled_from(BODY_KEYS), VALUE, max_size=6),
    messages=st.none() | st.lists(MESSAGE | VALUE, max_size=5),
)
def test_any_json_is_a_request_or_a_clear_error(body: dict[str, Any], messages: Any) -> None:
    if messages is not None:
        body = {**body, "messages": messages}
    is_a_request_or_a_clear_error(body)


def is_a_request_or_a_clear_error(body: Any) -> bool:
    """Whether `body`, as it comes over the wire, is a request."""
    try:
        request = read_body(json.loads(json.dumps(body)))
    except GatewayError as error:
        assert error.kind in (INVALID, UNSUPPORTED)
        assert error.param
        json.dumps(ADAPTER.error(error)[2], allow_nan=False)
        return False
    assert isinstance(request, ModelRequest)
    assert request.messages
    return True


FULL: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": URL}}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "plan",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{}"}},
                {"id": "c2", "type": "custom", "custom": {"name": "apply_patch", "input": "x"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "ok"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}], "function_call": {"name": "f"}},
        {"role": "function", "name": "f", "content": "ok"},
    ],
    "tools": [BASH, PATCH, {"type": "web_search"}],
    "functions": [BASH["function"]],
    "tool_choice": {"type": "allowed_tools", "allowed_tools": ALLOWED},
    "function_call": {"name": "bash"},
    "parallel_tool_calls": False,
    "stream": False,
    "stream_options": {"include_usage": True},
    "max_tokens": 5,
    "max_completion_tokens": 6,
    **{"temperature": 1, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "repetition_penalty": 1.1, "seed": 1, "n": 2},
    **{"stop": ["x"], "logprobs": True, "top_logprobs": 1, "return_token_ids": True, "logit_bias": {"1": 2}},
    "chat_template_kwargs": {"enable_thinking": True},
    "response_format": {"type": "json_schema", "json_schema": {}},
}
JUNK: list[Any] = [
    *(None, True, False, 0, 1, -1, 10**400, 0.5, 1e400, -1e400, float("nan"), "", "x", "\ud800", "auto", "required"),
    *(
        [],
        [None],
        [[]],
        ["x"],
        [{}],
        {},
        {"type": "x"},
        {"type": []},
        {"type": "text"},
        {"name": {}},
        deep(110),
        [deep(110)],
    ),
]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) inside `value`."""
    out: list[tuple[Any, Any]] = []
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():  # pyright: ignore
        out += [(value, key), *places(value[key])]
    return out


def damaged(*junk: tuple[int, Any]) -> dict[str, Any]:
    """`FULL` with a junk value at each of the places."""
    body = json.loads(json.dumps(FULL))
    spots = places(body)
    for index, value in junk:
        holder, key = spots[index]
        holder[key] = value
    return body


def test_a_request_with_anything_at_any_place_is_read_or_refused() -> None:
    assert is_a_request_or_a_clear_error(FULL)
    rng = random.Random(7)
    size = len(places(FULL))
    bodies = [damaged((i, junk)) for i in range(size) for junk in rng.sample(JUNK, 12)]
    bodies += [damaged(*((rng.randrange(size), rng.choice(JUNK)) for _ in range(3))) for _ in range(400)]
    outcomes = [is_a_request_or_a_clear_error(body) for body in bodies]
    assert 0.1 < sum(outcomes) / len(outcomes) < 0.9


def test_the_adapter_says_which_protocol_it_speaks() -> None:
    assert ADAPTER.name == "openai_chat"
    assert read().wire.protocol == "openai_chat"
