"""What turns look like to a client: whole, as events, and when they fail."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gateway.protocols.messages.support import (
    ADAPTER,
    HEAD,
    assembled,
    finished,
    frames,
    read,
    said_by,
    streamed,
)
from uni_agent.gateway.canonical import FinishReason
from uni_agent.gateway.errors import ErrorKind, GatewayError
from uni_agent.tokens.base import ArgumentsDelta, CallStarted, ParserEvent, TextDelta
from uni_agent.types import Message, ToolCall

LS = ToolCall("call0", "bash", {"command": "ls"}, '{"command": "ls"}')
BROKEN = ToolCall("call1", "bash", {}, '{"command": "é😀', "arguments are not JSON")
TEXT_AND_CALL = 'Look.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls -la"}}\n</tool_call>'


def whole(message: Message, reason: FinishReason = "stop", **fields: Any) -> dict[str, Any]:
    return ADAPTER.response(read(), [finished(message, reason, **fields)])


def blocks(stream: bytes) -> list[tuple[str, int]]:
    """The starts and stops of a stream, with their indexes."""
    return [(name, data["index"]) for name, data in frames(stream) if name.endswith(("block_start", "block_stop"))]


# ------------------------------------------------------------------------------------------------ whole


def test_a_whole_answer_is_a_message_object():
    answer = whole(Message("assistant", "hi", "plan", (LS,)), thought=7)
    signature = answer["content"][0].pop("signature")
    assert isinstance(signature, str) and signature
    assert answer == {
        "id": f"msg_{HEAD.id}",
        "type": "message",
        "role": "assistant",
        "model": "my-model",
        "content": [
            {"type": "thinking", "thinking": "plan"},
            {"type": "text", "text": "hi"},
            {"type": "tool_use", "id": f"toolu_{HEAD.id}00", "name": "bash", "input": {"command": "ls"}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 140,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 20,
            "output_tokens_details": {"thinking_tokens": 7},
        },
    }


def test_proto_09_a_call_without_text_is_the_only_block():
    answer = whole(Message("assistant", "", "", (LS,)), "stop")
    assert [block["type"] for block in answer["content"]] == ["tool_use"]
    assert answer["stop_reason"] == "tool_use"


@pytest.mark.parametrize("content", ["", " \n"])
def test_an_answer_without_words_has_no_blocks(content: str):
    assert whole(Message("assistant", content, "\n"))["content"] == []


@pytest.mark.parametrize(
    ("reason", "calls", "stop", "expected"),
    [
        ("stop", (), "", ("end_turn", None)),
        ("tool_calls", (LS,), "", ("tool_use", None)),
        ("stop", (LS,), "", ("tool_use", None)),
        ("length", (), "", ("max_tokens", None)),
        ("length", (LS, BROKEN), "", ("max_tokens", None)),
        ("context", (), "", ("max_tokens", None)),
        ("stop_sequence", (), "</s>", ("stop_sequence", "</s>")),
        ("stop_sequence", (LS,), "</s>", ("tool_use", None)),
    ],
)
def test_proto_09_stop_reasons(
    reason: FinishReason, calls: tuple[ToolCall, ...], stop: str, expected: tuple[str, str | None]
):
    turn = finished(Message("assistant", "x", "", calls), reason, stop=stop)
    answer = ADAPTER.response(read(), [turn])
    assert (answer["stop_reason"], answer["stop_sequence"]) == expected
    last = frames(streamed([], turn))[-2][1]
    assert (last["delta"]["stop_reason"], last["delta"]["stop_sequence"]) == expected


def test_broken_arguments_stand_under_the_key_that_claude_code_writes():
    (block,) = whole(Message("assistant", "", "", (BROKEN,)))["content"]
    assert block["input"] == {"__unparsedToolInput": {"raw": '{"command": "é😀', "len": 16}}


@pytest.mark.parametrize("raw", ['{"a": NaN}', "[1]", '"x"', "1", '{"a": 1e999}', '{"a": "\\ud83d"}'])
def test_what_is_no_plain_json_object_counts_as_broken(raw: str):
    (block,) = whole(Message("assistant", "", "", (ToolCall("c", "bash", {}, raw, "no"),)))["content"]
    assert block["input"]["__unparsedToolInput"]["raw"] == raw
    json.dumps(block, allow_nan=False).encode()


@pytest.mark.parametrize(("raw", "values"), [('{"a": 1}', {"a": 1}), ("", {}), ("{}", {})])
def test_a_call_refused_for_its_name_keeps_its_arguments(raw: str, values: dict[str, Any]):
    (block,) = whole(Message("assistant", "", "", (ToolCall("c", "nope", {}, raw, "There is no tool"),)))["content"]
    assert block["input"] == values


def test_proto_11_the_prompt_is_counted_whole_from_the_first_event_on():
    turn = finished(Message("assistant", "hi"), cached=139)
    start = frames(streamed([TextDelta("hi")], turn))[0][1]["message"]["usage"]
    last = frames(streamed([TextDelta("hi")], turn))[-2][1]["usage"]
    end = ADAPTER.response(read(), [turn])["usage"]
    assert start["input_tokens"] == last["input_tokens"] == end["input_tokens"] == 140
    assert all(u["cache_read_input_tokens"] == u["cache_creation_input_tokens"] == 0 for u in (start, last, end))
    assert last["output_tokens"] == end["output_tokens"] == 20


# ------------------------------------------------------------------------------------------------ stream


def test_stream_08_every_frame_names_its_type_and_nothing_else_is_sent():
    events, message = said_by(TEXT_AND_CALL)
    names = [name for name, _ in frames(streamed(events, finished(message)))]
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert frames(ADAPTER.stream(read(), HEAD).heartbeat()) == [("ping", {"type": "ping"})]


def test_a_stream_says_what_the_whole_answer_says():
    events, message = said_by(f"<think>\nplan\n</think>\n\n{TEXT_AND_CALL}")
    turn = finished(message)
    got = assembled(streamed(events, turn))
    assert got.pop("complete") is True
    got["content"][-1]["input"] = json.loads(got["content"][-1]["input"])
    assert got == ADAPTER.response(read(), [turn])


def test_deltas_leave_as_they_come():
    encoder = ADAPTER.stream(read(), HEAD)
    encoder.opening()
    first = frames(encoder.event(TextDelta("Hel")))
    assert [name for name, _ in first] == ["content_block_start", "content_block_delta"]
    assert frames(encoder.event(TextDelta("lo")))[0][1]["delta"] == {"type": "text_delta", "text": "lo"}
    call = frames(encoder.event(CallStarted(0, "bash")))
    assert [name for name, _ in call] == ["content_block_stop", "content_block_start", "content_block_delta"]
    assert call[1][1]["content_block"] == {"type": "tool_use", "id": f"toolu_{HEAD.id}00", "name": "bash", "input": {}}
    assert call[2][1]["delta"] == {"type": "input_json_delta", "partial_json": ""}
    piece = frames(encoder.event(ArgumentsDelta(0, '{"a')))
    assert piece[0][1]["delta"] == {"type": "input_json_delta", "partial_json": '{"a'}


def test_thinking_is_signed_before_its_block_ends():
    events: list[ParserEvent] = [TextDelta("plan", reasoning=True), TextDelta("hi")]
    stream = streamed(events, finished(Message("assistant", "hi", "plan")))
    kinds = [data["delta"]["type"] for name, data in frames(stream) if name == "content_block_delta"]
    assert kinds == ["thinking_delta", "signature_delta", "text_delta"]
    assert blocks(stream) == [
        ("content_block_start", 0),
        ("content_block_stop", 0),
        ("content_block_start", 1),
        ("content_block_stop", 1),
    ]


def test_stream_02_calls_that_interleave_are_blocks_in_a_row():
    events: list[ParserEvent] = [
        TextDelta("a"),
        CallStarted(0, "x"),
        ArgumentsDelta(0, '{"k'),
        CallStarted(1, "y"),
        ArgumentsDelta(1, "{}"),
        ArgumentsDelta(0, '":1}'),
    ]
    calls = (ToolCall("", "x", {"k": 1}, '{"k":1}'), ToolCall("", "y", {}, "{}"))
    got = assembled(streamed(events, finished(Message("assistant", "a", "", calls))))
    assert [(block["type"], block.get("name"), block.get("input")) for block in got["content"]] == [
        ("text", None, None),
        ("tool_use", "x", '{"k":1}'),
        ("tool_use", "y", "{}"),
    ]
    assert [block["id"] for block in got["content"][1:]] == [f"toolu_{HEAD.id}00", f"toolu_{HEAD.id}01"]


def test_no_call_is_closed_before_the_turn_is_committed():
    encoder = ADAPTER.stream(read(), HEAD)
    sent = encoder.opening()
    for event in (TextDelta("a"), CallStarted(0, "x"), ArgumentsDelta(0, "{}"), CallStarted(1, "y")):
        sent += encoder.event(event)
    sent += encoder.event(ArgumentsDelta(1, "{}")) + encoder.event(TextDelta("\nb"))
    assert blocks(sent) == [("content_block_start", 0), ("content_block_stop", 0), ("content_block_start", 1)]
    calls = (ToolCall("", "x", {}, "{}"), ToolCall("", "y", {}, "{}"))
    got = assembled(sent + encoder.finish(finished(Message("assistant", "a\nb", "", calls))))
    assert [block.get("text", block.get("input")) for block in got["content"]] == ["a", "{}", "{}", "\nb"]


def test_what_waits_behind_a_call_is_no_silence():
    encoder = ADAPTER.stream(read(), HEAD)
    for event in (CallStarted(0, "x"), ArgumentsDelta(0, "{}"), CallStarted(1, "y")):
        encoder.event(event)
    sent = [encoder.event(ArgumentsDelta(1, " ")) for _ in range(300)]
    assert [frames(out) for out in sent if out] == [[("ping", {"type": "ping"})]] * 4


def test_text_behind_a_call_is_a_block_of_its_own():
    events, message = said_by(f"{TEXT_AND_CALL}\nDone.")
    got = assembled(streamed(events, finished(message)))
    assert [block["type"] for block in got["content"]] == ["text", "tool_use", "text"]
    assert [block["text"] for block in got["content"] if block["type"] == "text"] == ["Look.", "\nDone."]


def test_whitespace_alone_opens_no_block():
    events: list[ParserEvent] = [TextDelta("\n"), CallStarted(0, "x"), ArgumentsDelta(0, "{}"), TextDelta(" \n")]
    turn = finished(Message("assistant", "\n \n", "", (ToolCall("", "x", {}, "{}"),)))
    got = assembled(streamed(events, turn))
    assert [block["type"] for block in got["content"]] == ["tool_use"]
    kept: list[ParserEvent] = [TextDelta("\n"), TextDelta(" hi")]
    assert assembled(streamed(kept, finished(Message("assistant", "\n hi"))))["content"][0]["text"] == "\n hi"


def test_a_turn_that_was_not_streamed_is_sent_at_the_end():
    turn = finished(Message("assistant", "hi", "plan", (LS, BROKEN)))
    got = assembled(streamed([], turn))
    assert [block["type"] for block in got["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert [block["input"] for block in got["content"][2:]] == ['{"command": "ls"}', BROKEN.raw_arguments]


def test_whitespace_that_waited_is_not_said_twice_when_the_rest_comes_at_the_end():
    got = assembled(streamed([TextDelta("\n")], finished(Message("assistant", "\nhi"))))
    assert got["content"] == [{"type": "text", "text": "\nhi"}]


def test_stream_01_a_turn_that_fails_ends_with_an_error_and_closes_no_call():
    encoder = ADAPTER.stream(read(), HEAD)
    sent = encoder.opening()
    for event in (TextDelta("Hel"), CallStarted(0, "bash"), ArgumentsDelta(0, '{"command": "rm x"}')):
        sent += encoder.event(event)
    sent += encoder.fail(GatewayError(ErrorKind.ENGINE, "connection reset"))
    got = frames(sent)
    assert got[-1] == (
        "error",
        {"type": "error", "error": {"type": "api_error", "message": "connection reset"}, "request_id": None},
    )
    assert not {"message_delta", "message_stop"} & {name for name, _ in got}
    assert blocks(sent)[-1] == ("content_block_start", 1)  # the call cannot have run


# ------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("kind", "status", "type_"),
    [
        (ErrorKind.INVALID_REQUEST, 400, "invalid_request_error"),
        (ErrorKind.UNSUPPORTED, 400, "invalid_request_error"),
        (ErrorKind.CONTEXT_LENGTH, 400, "invalid_request_error"),
        (ErrorKind.AUTHENTICATION, 401, "authentication_error"),
        (ErrorKind.PERMISSION, 403, "permission_error"),
        (ErrorKind.NOT_FOUND, 404, "not_found_error"),
        (ErrorKind.GONE, 410, "not_found_error"),
        (ErrorKind.TOO_LARGE, 413, "request_too_large"),
        (ErrorKind.RATE_LIMITED, 429, "rate_limit_error"),
        (ErrorKind.BUDGET, 429, "rate_limit_error"),
        (ErrorKind.SERVER_ERROR, 500, "api_error"),
        (ErrorKind.ENGINE, 502, "api_error"),
        (ErrorKind.OVERLOADED, 529, "overloaded_error"),
        (ErrorKind.TIMEOUT, 504, "timeout_error"),
    ],
)
def test_errors_have_anthropics_types(kind: ErrorKind, status: int, type_: str):
    got, headers, answer = ADAPTER.error(GatewayError(kind, "no", details={"request_id": "req_1", "turns": 3}))
    assert got == status and answer["type"] == "error" and answer["request_id"] == "req_1"
    assert answer["error"]["type"] == type_ and "details" not in answer["error"]
    final = kind in (ErrorKind.AUTHENTICATION, ErrorKind.GONE, ErrorKind.BUDGET)
    assert (headers.get("x-should-retry") == "false") is final
    assert ("Retry-After" in headers) is (kind in (ErrorKind.RATE_LIMITED, ErrorKind.OVERLOADED))


@pytest.mark.parametrize("prompt", [100, 140])
def test_proto_19_a_full_window_is_said_in_anthropics_words(prompt: int):
    error = GatewayError(ErrorKind.CONTEXT_LENGTH, "full", details={"prompt_tokens": prompt, "limit": 100})
    status, headers, answer = ADAPTER.error(error)
    assert status == 400 and "Retry-After" not in headers
    assert answer["error"] == {
        "type": "invalid_request_error",
        "message": f"prompt is too long: {prompt} tokens > 100 maximum",
    }
    vague = ADAPTER.error(GatewayError(ErrorKind.CONTEXT_LENGTH, "full"))[2]
    assert vague["error"]["message"] == "prompt is too long: full"


def test_a_limit_says_when_to_come_back():
    error = GatewayError(ErrorKind.RATE_LIMITED, "busy", retry_after=7)
    assert ADAPTER.error(error)[1]["Retry-After"] == "7"
