"""What goes out comes back as the same turn, whichever way it went and whatever clients leave out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.gateway.protocols.responses.support import ADAPTER, Said, read, read_body, result, same, say, streamed, user
from uni_agent.gateway.canonical import ModelRequest
from uni_agent.gateway.errors import GatewayError
from uni_agent.tokens.parsers.qwen3_coder import XMLToolParser
from uni_agent.types import Message


def block(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


LS = block("bash", '{ "command"  :  "ls \\u00e9",\n "n": 1.0}')
EDIT = block("apply_patch", json.dumps({"input": '*** Begin Patch\n+ "é" \t\n*** End'}))
SPAWN = block("multi_agent_v1__spawn_agent", '{"message": "x"}')
UNKNOWN = block("multi_agent_v1.spawn_agent", '{"message": "x"}')
THOUGHT = "<think>\nplan\n\n</think>\n\n"

TEXTS = [
    "hi",
    "  leading and trailing \n\n",
    f"{THOUGHT}hi",
    f"{THOUGHT}{LS}",
    THOUGHT,
    LS,
    f"a\n{LS}\n{SPAWN}",
    f"{LS}\nafter",
    f"before\n{LS}\n\n between \n{EDIT}\nafter\n\n",
    f"{THOUGHT}a\n<think>more</think>\nb\n{SPAWN}\n<think>even more\n</think>c",
    EDIT,
    UNKNOWN,
    EDIT[:-20],
    LS[:-30],
    block("apply_patch", '{"input": 5}'),
    block("apply_patch", '{"input": "a", "more": 1}'),
    block("apply_patch", '{"patch": "a"}'),
    block("bash", '{"command": "a\nb"}'),
    block("bash", '"{\\"command\\": \\"ls\\"}"'),
    block("bash", "[1]"),
    block("bash", "{bad}"),
    block("nope", "{}"),
    block("bash", "{}"),
]


def without_ids(item: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key not in ("id", "status")}


def bare(item: dict[str, Any]) -> dict[str, Any] | None:
    """As strands and the AI SDK send items: no ids, no thinking, plain messages."""
    if item["type"] == "reasoning":
        return None
    if item["type"] == "message":
        return {"role": "assistant", "content": "".join(part["text"] for part in item["content"])}
    return without_ids(item)


def answers(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [result(item["call_id"], "ok", f"{item['type']}_output") for item in output if "call_id" in item]


def check(request: ModelRequest, said: Said, output: list[dict[str, Any]]) -> None:
    message = said.turn.message
    results = [Message("tool", "ok", tool_call_id=call.id) for call in message.tool_calls]
    stored = [Message("user", "go"), *([message] if message != Message("assistant") else []), *results]
    for form in (dict, without_ids, bare):
        items = [item for item in map(form, output) if item is not None]
        returned = read(user("go"), *items, *answers(output)).messages
        if form is bare and not (message.content or message.tool_calls):
            continue  # nothing but thinking was said, and this client leaves it out
        assert same(stored, returned), (form, items)
    if not any(call.error for call in message.tool_calls):
        history = read(user("go"), *output).messages
        kept = next((m for m in history if m.role == "assistant"), Message("assistant"))
        assert (kept.content, kept.reasoning.strip()) == (message.content, message.reasoning.strip())
    assert not request.ignored


@pytest.mark.parametrize("summary", [None, {"summary": "auto"}])
@pytest.mark.parametrize("text", TEXTS)
def test_a_turn_comes_back_as_the_same(text: str, summary: Any) -> None:
    request = read(reasoning=summary, include=["reasoning.encrypted_content"])
    said = say(request, text)
    output = ADAPTER.response(request, [said.turn])["output"]
    check(request, said, output)
    check(request, said, streamed(request, said)[-1]["response"]["output"])


XML_CALL = "<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>"
XML_EDIT = XML_CALL.replace("bash", "apply_patch").replace("command", "input")


@pytest.mark.parametrize(
    "text", [XML_CALL, f"a\n{XML_EDIT}\nb", XML_CALL[:-20], XML_CALL[:-30], XML_EDIT[:-30], XML_CALL[:40]]
)
def test_calls_that_were_written_as_xml_come_back_as_the_same(text: str) -> None:
    request = read()
    said = say(request, text, parser=XMLToolParser())
    check(request, said, ADAPTER.response(request, [said.turn])["output"])
    check(request, said, streamed(request, said)[-1]["response"]["output"])


WORDS = st.sampled_from(["a", " ", "\n", "é", "\u2028", "<b>", '"', "go on", "\t", "x" * 40])
PLAIN = st.lists(WORDS, max_size=6).map("".join)
PIECES = st.lists(
    st.one_of(
        PLAIN,
        st.sampled_from([LS, EDIT, SPAWN, UNKNOWN]).map(lambda text: f"\n{text}\n"),
        PLAIN.map(lambda text: f"\n<think>{text}</think>\n"),
    ),
    max_size=6,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(pieces=PIECES, size=st.integers(1, 9), cut=st.integers(0, 60), summary=st.booleans())
def test_any_turn_comes_back_as_the_same_and_its_stream_says_its_output(
    pieces: list[str], size: int, cut: int, summary: bool
) -> None:
    text = "".join(pieces)
    request = read(reasoning={"summary": "auto"} if summary else None)
    said = say(request, text[: len(text) - cut] if cut < 30 else text, pieces=size)
    if not all(call.name for call in said.turn.message.tool_calls):
        return  # a call without a name is shown as text, before it comes here
    whole = ADAPTER.response(request, [said.turn])
    events = streamed(request, said)
    output = events[-1]["response"]["output"]
    assert output == [event["item"] for event in events if event["type"] == "response.output_item.done"]
    check(request, said, whole["output"])
    check(request, said, output)
    if [item["type"] for item in output] == [item["type"] for item in whole["output"]]:
        assert [item["id"] for item in output] == [item["id"] for item in whole["output"]]


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**500),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KINDS = st.sampled_from(
    [
        *("message", "reasoning", "function_call", "custom_tool_call", "function_call_output", "local_shell_call"),
        *("custom_tool_call_output", "shell_call_output", "additional_tools", "item_reference", "web_search_call"),
        *("function", "custom", "namespace", "input_text", "input_image", "refusal"),
    ]
)
FIELDS = st.sampled_from(
    [
        *("role", "content", "summary", "call_id", "name", "arguments", "input", "output", "tools", "namespace", "id"),
        *("encrypted_content", "text", "image_url", "parameters", "format", "action", "description", "function"),
    ]
)
VALUES = JSON | KINDS | st.sampled_from(["user", "assistant", "tool", "developer", "data:image/png;base64,AA"])


def _object(kind: str, rest: dict[str, Any]) -> dict[str, Any]:
    return {"name": "x", **rest, "type": kind}


def _with(outer: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    return {**outer, key: value}


def _nested(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(_with, inner, FIELDS, st.lists(inner, max_size=2) | inner)


_SIMPLE: st.SearchStrategy[dict[str, Any]] = st.builds(_object, KINDS, st.dictionaries(FIELDS, VALUES, max_size=3))
OBJECTS: st.SearchStrategy[dict[str, Any]] = st.recursive(_SIMPLE, _nested, max_leaves=4)
BODY_FIELDS = st.sampled_from(
    [
        *("model", "instructions", "tool_choice", "parallel_tool_calls", "max_output_tokens", "temperature", "top_p"),
        *("stream", "text", "reasoning", "include", "truncation", "metadata", "previous_response_id", "store", "top_k"),
        *("seed", "chat_template_kwargs", "max_tool_calls", "user", "stop", "store", "top_logprobs", "client_metadata"),
    ]
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    items=st.lists(OBJECTS, max_size=3).map(lambda found: [user("go"), *found]) | JSON,
    tools=st.none() | st.lists(OBJECTS, max_size=2) | JSON,
    rest=st.dictionaries(BODY_FIELDS, VALUES | OBJECTS, max_size=2),
)
def test_any_body_is_a_request_or_an_error_of_its_own(items: Any, tools: Any, rest: dict[str, Any]) -> None:
    try:
        request = read_body({"input": items, "tools": tools, **rest})
    except GatewayError as error:
        status, _, body = ADAPTER.error(error)
        assert status == 400 and body["error"]["message"] and body["error"]["type"] == "invalid_request_error"
        return
    said = say(request, "hi\n" + block("bash", "{}"))
    response = ADAPTER.response(request, [said.turn])
    assert json.loads(json.dumps(response, allow_nan=False)) == response
    assert streamed(request, said)[-1]["response"] == response
