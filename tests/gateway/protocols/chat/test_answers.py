"""What clients get: whole answers, streams and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gateway.protocols.chat.support import ADAPTER, BASH, HEAD, PATCH, call, chunks, joined, read, stream, turn
from uni_agent.gateway.errors import STATUS, ErrorKind, GatewayError
from uni_agent.tokens.base import ArgumentsDelta, CallStarted, TextDelta
from uni_agent.types import ToolCall

LS = call("bash", '{"command": "ls"}')
ID = "call" + HEAD.id


def test_a_whole_answer() -> None:
    answer = ADAPTER.response(read(tools=[BASH]), [turn("Let me look.", LS, LS, reasoning="plan", reasoning_tokens=2)])
    calls = [
        {"id": f"{ID}{i:02x}", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
        for i in range(2)
    ]
    assert answer == {
        "id": f"chatcmpl-{HEAD.id}",
        "object": "chat.completion",
        "created": HEAD.created,
        "model": "policy",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Let me look.",
                    "refusal": None,
                    "reasoning_content": "plan",
                    "reasoning": "plan",
                    "tool_calls": calls,
                },
                "logprobs": None,
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {
            "prompt_tokens": 11,
            "completion_tokens": 5,
            "total_tokens": 16,
            "prompt_tokens_details": {"cached_tokens": 3},
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
    }


def test_ids_of_calls_survive_clients_that_keep_forty_letters_and_digits() -> None:
    ids = [c["id"] for c in ADAPTER.response(read(), [turn("", *[LS] * 20)])["choices"][0]["message"]["tool_calls"]]
    assert len(set(ids)) == 20
    assert all(id_.isalnum() and len(id_) <= 40 for id_ in ids)


CUT = ToolCall("", "bash", {}, '{"command": "l', "cut off")


@pytest.mark.parametrize(
    ("finished", "content", "reason"),
    [
        (turn("hi"), "hi", "stop"),
        (turn(""), "", "stop"),
        (turn("", reasoning="only"), "", "stop"),
        (turn("hi", finish="stop_sequence", stop_sequence="</s>"), "hi", "stop"),
        (turn("hi", finish="length"), "hi", "length"),
        (turn("hi", finish="context"), "hi", "length"),
        (turn("", LS), None, "tool_calls"),
        (turn("", LS, finish="stop"), None, "tool_calls"),
        (turn("hi", LS), "hi", "tool_calls"),
        (turn("", LS, finish="length"), None, "tool_calls"),
        (turn("", LS, CUT, finish="length"), None, "length"),
        (turn("", CUT, finish="tool_calls"), None, "tool_calls"),
    ],
)
def test_proto_09_the_reason_of_the_end_fits_the_content(finished: Any, content: str | None, reason: str) -> None:
    (choice,) = ADAPTER.response(read(), [finished])["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (content, reason)
    assert joined(stream(read(stream=True), [], finished))["finish_reasons"] == [reason]


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (call("bash", '{ "command":"ls"}'), '{ "command":"ls"}'),
        (ToolCall("", "bash", {"a": "x\ny\\"}, '{"a":\n "x\ny\\\\"}'), '{"a":\n "x\\u000ay\\\\"}'),
        (ToolCall("", "bash", {"b": 1}, "<parameter=b>\n1\n</parameter>"), '{"b": 1}'),
        (ToolCall("", "bash", {}, '{"junk": 1}'), "{}"),
        (ToolCall("", "bash", {}, ""), "{}"),
        (ToolCall("", "bash", {"c": "é"}, '"{\\"c\\": \\"é\\"}"'), '{"c": "é"}'),
        (CUT, '{"command": "l'),
        (ToolCall("", "bash", {}, "", "empty"), "{}"),
    ],
)
def test_arguments_are_json_and_a_broken_calls_are_its_own_text(made: ToolCall, text: str) -> None:
    message = ADAPTER.response(read(), [turn("", made)])["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["arguments"] == text
    if not made.error:
        assert json.loads(text) == made.arguments


def test_several_answers_are_choices_and_their_prompt_is_counted_once() -> None:
    answer = ADAPTER.response(read(n=2), [turn("a"), turn("b")])
    assert [(c["index"], c["message"]["content"]) for c in answer["choices"]] == [(0, "a"), (1, "b")]
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (11, 10)


SAMPLED: dict[str, Any] = {
    "prompt_ids": [1, 2],
    "token_ids": [7, 8, 9],
    "token_texts": ["hé", "\ufffd", "!"],
    "logprobs": [-0.25, float("-inf"), float("nan")],
}
CONTENT: list[dict[str, Any]] = [
    {"token": "hé", "logprob": -0.25, "bytes": [104, 195, 169], "top_logprobs": []},
    {"token": "\ufffd", "logprob": -9999.0, "bytes": None, "top_logprobs": []},
    {"token": "!", "logprob": -9999.0, "bytes": [33], "top_logprobs": []},
]


def test_logprobs_and_ids_are_given_to_those_who_asked() -> None:
    plain = ADAPTER.response(read(), [turn("hi", **SAMPLED)])
    assert plain["choices"][0]["logprobs"] is None
    assert "prompt_token_ids" not in plain
    assert "token_ids" not in plain["choices"][0]
    full = ADAPTER.response(read(logprobs=True, return_token_ids=True), [turn("hi", **SAMPLED)])
    assert full["choices"][0]["logprobs"] == {"content": CONTENT}
    assert (full["prompt_token_ids"], full["choices"][0]["token_ids"]) == ([1, 2], [7, 8, 9])
    json.dumps(full, allow_nan=False)
    none = ADAPTER.response(read(logprobs=True), [turn("hi", token_ids=[7], token_texts=["hi"])])
    assert none["choices"][0]["logprobs"] is None


def test_a_streams_last_choice_has_the_logprobs_and_ids() -> None:
    request = read(stream=True, logprobs=True, return_token_ids=True)
    *_, last = chunks(stream(request, [TextDelta("hi")], turn("hi", **SAMPLED)))
    assert last["choices"][0]["logprobs"] == {"content": CONTENT}
    assert (last["prompt_token_ids"], last["choices"][0]["token_ids"]) == ([1, 2], [7, 8, 9])


# ---------------------------------------------------------------------------------------------- streams

EVENTS = [
    TextDelta("plan", reasoning=True),
    TextDelta("a"),
    CallStarted(0, "bash"),
    ArgumentsDelta(0, '{"k'),
    CallStarted(1, "bash"),
    ArgumentsDelta(1, "{}"),
    ArgumentsDelta(0, '": 1}'),
]
INTERLEAVED = turn("a", call("bash", '{"k": 1}'), call("bash", "{}"), reasoning="plan")


def deltas(data: bytes) -> list[dict[str, Any]]:
    return [choice["delta"] for chunk in chunks(data) for choice in chunk["choices"]]


def test_stream_02_and_04_each_calls_id_and_name_are_said_once_and_calls_do_not_mix() -> None:
    encoder = ADAPTER.stream(read(stream=True), HEAD)
    data = encoder.opening() + b"".join(map(encoder.event, EVENTS)) + encoder.finish(INTERLEAVED)
    first = {"type": "function", "function": {"name": "bash", "arguments": ""}}
    assert deltas(data) == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "plan"},
        {"content": "a"},
        {"tool_calls": [{"index": 0, "id": f"{ID}00", **first}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"k'}}]},
        {"tool_calls": [{"index": 1, "id": f"{ID}01", **first}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '": 1}'}}]},
        {},
    ]


def test_stream_08_events_are_data_alone_and_done_is_the_last() -> None:
    data = stream(read(stream=True), EVENTS, INTERLEAVED)
    assert data.endswith(b"\n\ndata: [DONE]\n\n")
    assert data.count(b"[DONE]") == 1
    for chunk in chunks(data):
        assert {key: chunk[key] for key in ("id", "object", "created", "model")} == {
            "id": f"chatcmpl-{HEAD.id}",
            "object": "chat.completion.chunk",
            "created": HEAD.created,
            "model": "policy",
        }
        assert "usage" not in chunk
        assert all(choice["index"] == 0 for choice in chunk["choices"])


def test_usage_comes_in_a_chunk_of_its_own_when_it_was_asked_for() -> None:
    request = read(stream=True, stream_options={"include_usage": True})
    *before, end, last = chunks(stream(request, [TextDelta("hi")], turn("hi")))
    assert all(chunk["usage"] is None for chunk in [*before, end])
    assert end["choices"][0]["finish_reason"] == "stop"
    assert last["choices"] == []
    assert last["usage"] == ADAPTER.response(request, [turn("hi")])["usage"]


def test_heartbeats_are_chunks_that_say_nothing() -> None:
    (careful,) = chunks(ADAPTER.stream(read(stream=True), HEAD).heartbeat())
    assert careful["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": None}]
    (knows,) = chunks(ADAPTER.stream(read(stream=True, stream_options={"include_usage": True}), HEAD).heartbeat())
    assert knows["choices"] == []
    assert careful["object"] == knows["object"] == "chat.completion.chunk"


def test_stream_01_a_broken_stream_ends_with_the_error_and_no_sign_of_success() -> None:
    encoder = ADAPTER.stream(read(stream=True), HEAD)
    data = encoder.opening() + encoder.event(TextDelta("Hel")) + encoder.event(TextDelta("lo"))
    data += encoder.fail(GatewayError(ErrorKind.ENGINE, "the engine went away"))
    assert b"[DONE]" not in data
    *before, last = chunks(data)
    assert all(choice["finish_reason"] is None for chunk in before for choice in chunk["choices"])
    assert last == {
        "error": {"message": "the engine went away", "type": "server_error", "param": None, "code": "engine_error"}
    }


def test_a_turn_that_was_not_streamed_is_sent_whole() -> None:
    answer = ADAPTER.response(read(), [INTERLEAVED])["choices"][0]
    got = joined(stream(read(stream=True), [], INTERLEAVED))
    assert got["message"]["tool_calls"] == answer["message"]["tool_calls"]
    assert (got["message"]["content"], got["message"]["reasoning_content"]) == ("a", "plan")
    assert got["finish_reasons"] == ["tool_calls"]


@pytest.mark.parametrize("half", range(len(EVENTS) + 1))
def test_what_no_event_said_is_sent_before_the_end(half: int) -> None:
    got = joined(stream(read(stream=True), EVENTS[:half], INTERLEAVED))
    assert got == joined(stream(read(stream=True), EVENTS, INTERLEAVED))


# ---------------------------------------------------------------------------------------------- other forms of calls


def test_proto_13_a_custom_tool_is_answered_with_its_text() -> None:
    made = call("apply_patch", '{"input": "*** Begin\\n"}')
    request = read(tools=[BASH, PATCH], stream=True)
    (choice,) = ADAPTER.response(request, [turn("", LS, made)])["choices"]
    custom = {"id": f"{ID}01", "type": "custom", "custom": {"name": "apply_patch", "input": "*** Begin\n"}}
    assert choice["message"]["tool_calls"][0]["type"] == "function"
    assert choice["message"]["tool_calls"][1] == custom
    events = [
        CallStarted(0, "bash"),
        ArgumentsDelta(0, LS.raw_arguments),
        CallStarted(1, "apply_patch"),
        ArgumentsDelta(1, '{"input": "*** Be'),
        ArgumentsDelta(1, 'gin\\n"}'),
    ]
    for said in (events, []):
        got = joined(stream(request, said, turn("", LS, made)))["message"]
        assert got["tool_calls"] == choice["message"]["tool_calls"]
    echo = read({"role": "assistant", **choice["message"]}).messages[0]
    assert echo.tool_calls[1].arguments == made.arguments


@pytest.mark.parametrize("text", ['{"input": 3}', '{"patch": "x"}', '{"input": "x", "more": 1}'])
def test_a_custom_call_without_its_text_shows_what_the_model_wrote(text: str) -> None:
    answer = ADAPTER.response(read(tools=[PATCH]), [turn("", call("apply_patch", text))])
    assert answer["choices"][0]["message"]["tool_calls"][0]["custom"]["input"] == text


def test_the_older_form_gets_one_function_call() -> None:
    request = read(functions=[BASH["function"]], stream=True)
    (choice,) = ADAPTER.response(request, [turn("", LS)])["choices"]
    assert choice["message"]["function_call"] == {"name": "bash", "arguments": '{"command": "ls"}'}
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "function_call"
    events = [CallStarted(0, "bash"), ArgumentsDelta(0, LS.raw_arguments), CallStarted(1, "bash")]
    got = joined(stream(request, events, turn("", LS, LS)))
    assert got["message"]["function_call"] == choice["message"]["function_call"]
    assert got["finish_reasons"] == ["function_call"]


# ---------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("kind", "type_", "code"),
    [
        (ErrorKind.INVALID_REQUEST, "invalid_request_error", "invalid_value"),
        (ErrorKind.UNSUPPORTED, "invalid_request_error", "unsupported_value"),
        (ErrorKind.CONTEXT_LENGTH, "invalid_request_error", "context_length_exceeded"),
        (ErrorKind.AUTHENTICATION, "invalid_request_error", "invalid_api_key"),
        (ErrorKind.PERMISSION, "invalid_request_error", "insufficient_permissions"),
        (ErrorKind.NOT_FOUND, "invalid_request_error", "not_found"),
        (ErrorKind.GONE, "invalid_request_error", "session_gone"),
        (ErrorKind.TOO_LARGE, "invalid_request_error", "request_too_large"),
        (ErrorKind.RATE_LIMITED, "rate_limit_error", "rate_limit_exceeded"),
        (ErrorKind.BUDGET, "insufficient_quota", "insufficient_quota"),
        (ErrorKind.SERVER_ERROR, "server_error", "server_error"),
        (ErrorKind.ENGINE, "server_error", "engine_error"),
        (ErrorKind.OVERLOADED, "server_error", "overloaded"),
        (ErrorKind.TIMEOUT, "server_error", "timeout"),
    ],
)
def test_each_error_in_openais_words(kind: ErrorKind, type_: str, code: str) -> None:
    status, headers, body = ADAPTER.error(GatewayError(kind, "what is wrong", retry_after=2.6))
    assert status == STATUS[kind]
    assert (body["error"]["type"], body["error"]["code"]) == (type_, code)
    assert "what is wrong" in body["error"]["message"]
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert headers["Retry-After"] == "3"
    assert headers.get("x-should-retry") == ("false" if kind in (ErrorKind.BUDGET, ErrorKind.GONE) else None)


def test_a_retry_is_always_given_a_time_and_a_spent_budget_none() -> None:
    assert ADAPTER.error(GatewayError(ErrorKind.RATE_LIMITED, "x"))[1] == {"Retry-After": "1"}
    assert ADAPTER.error(GatewayError(ErrorKind.OVERLOADED, "x"))[1] == {"Retry-After": "1"}
    assert ADAPTER.error(GatewayError(ErrorKind.BUDGET, "x"))[1] == {"x-should-retry": "false"}


def test_proto_19_a_full_window_is_said_in_openais_sentence() -> None:
    error = GatewayError(ErrorKind.CONTEXT_LENGTH, "too long", details={"prompt_tokens": 140, "limit": 100})
    status, headers, body = ADAPTER.error(error)
    assert (status, headers) == (400, {})
    assert body == {
        "error": {
            "message": "This model's maximum context length is 100 tokens. However, your messages resulted in 140 "
            "tokens. Please reduce the length of the messages.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }
    }
