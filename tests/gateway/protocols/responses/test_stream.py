"""The event stream: its order, what waits for the commit, and how it fails."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.protocols.responses.support import (
    ADAPTER,
    HEAD,
    Said,
    kinds,
    parsed_frames,
    read,
    say,
    streamed,
    user,
)
from uni_agent.gateway.canonical import ModelRequest
from uni_agent.gateway.errors import ErrorKind, GatewayError
from uni_agent.tokens.base import ArgumentsDelta, CallStarted, TextDelta

LS = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
PWD = LS.replace("ls", "pwd")
EDIT = '<tool_call>\n{"name": "apply_patch", "arguments": {"input": "*** Begin\\n+\\"a\\""}}\n</tool_call>'
SPAWN = '<tool_call>\n{"name": "multi_agent_v1__spawn_agent", "arguments": {"message": "x"}}\n</tool_call>'

TEXT_ITEM = [
    *("output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done"),
    "output_item.done",
]
CALL_ITEM = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
CUSTOM_ITEM = ["output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done", "output_item.done"]


def items(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event["item"] for event in events if event["type"] == "response.output_item.done"]


def before_commit(request: ModelRequest, said: Said) -> list[dict[str, Any]]:
    encoder = ADAPTER.stream(request, HEAD)
    return parsed_frames(b"".join([encoder.opening(), *map(encoder.event, said.events)]))


def test_stream_05_the_whole_sequence_of_a_text_and_a_call() -> None:
    request = read(stream=True)
    said = say(request, f"Let me look.\n{LS}")
    events = streamed(request, said)
    assert kinds(events) == ["created", "in_progress", *TEXT_ITEM, *CALL_ITEM, "completed"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert len([event for event in events if event["type"] == "response.output_text.delta"]) > 2
    first, last = events[0]["response"], events[-1]["response"]
    assert first["id"] == last["id"] == f"resp_{HEAD.id}" and first["status"] == "in_progress"
    assert first["output"] == [] and first["usage"] is None
    assert last["output"] == items(events) == ADAPTER.response(request, [said.turn])["output"]
    assert last["model"] == "policy" and last["usage"]["total_tokens"] == 18


def test_stream_05_an_items_id_is_the_same_in_all_its_events() -> None:
    request = read(reasoning={"summary": "auto"})
    events = streamed(request, say(request, f"<think>\nhm\n</think>\n\nhi\n{LS}\n{EDIT}\n{SPAWN}"))
    ids: dict[int, set[str]] = {}
    for event in events:
        if "output_index" in event:
            ids.setdefault(event["output_index"], set()).add(event.get("item_id") or event["item"]["id"])
    assert [len(found) for found in ids.values()] == [1] * 5 and list(ids) == list(range(5))
    assert [next(iter(found)).split("_")[0] for found in ids.values()] == ["rs", "msg", "fc", "ctc", "fc"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hi", TEXT_ITEM),
        (LS, CALL_ITEM),
        (f"{LS}\n{PWD}", [*CALL_ITEM, *CALL_ITEM]),
        (f"a\n{EDIT}\n{LS}", [*TEXT_ITEM, *CUSTOM_ITEM, *CALL_ITEM]),
        (f"a\n{LS}\nb\n{PWD}\nc", [*TEXT_ITEM, *CALL_ITEM, *TEXT_ITEM, *CALL_ITEM, *TEXT_ITEM]),
        ("", []),
    ],
)
def test_items_are_closed_before_the_next_opens(text: str, expected: list[str]) -> None:
    request = read()
    events = streamed(request, say(request, text))
    assert kinds(events) == ["created", "in_progress", *expected, "completed"]
    opened: list[int] = []
    for event in events:
        if event["type"] == "response.output_item.added":
            assert not opened
            opened.append(event["output_index"])
        elif event["type"] == "response.output_item.done":
            assert opened.pop() == event["output_index"]
    assert events[-1]["response"]["output"] == items(events)


@pytest.mark.parametrize("summary", [False, True])
def test_thinking_streams_in_the_form_that_the_client_reads(summary: bool) -> None:
    request = read(reasoning={"summary": "auto"} if summary else None, include=["reasoning.encrypted_content"])
    events = streamed(request, say(request, "<think>\nlet me see\n</think>\n\nhi"))
    text = ["reasoning_summary_part.added", "reasoning_summary_text.delta", "reasoning_summary_text.done"]
    text = [*text, "reasoning_summary_part.done"] if summary else ["reasoning_text.delta", "reasoning_text.done"]
    thought = ["output_item.added", *text, "output_item.done"]
    assert kinds(events) == ["created", "in_progress", *thought, *TEXT_ITEM, "completed"]
    (item, _) = items(events)
    said = [{"type": "summary_text" if summary else "reasoning_text", "text": "let me see\n"}]
    assert item["summary"] == (said if summary else []) and item.get("content") == (None if summary else said)
    assert item["encrypted_content"] and "see" not in item["encrypted_content"]
    bare = read()
    assert "encrypted_content" not in items(streamed(bare, say(bare, "<think>\nx\n</think>\n\nhi")))[0]


def test_thinking_after_text_has_begun_is_an_item_behind_it() -> None:
    request = read()
    said = say(request, f"<think>\none\n</think>\n\na\n<think>\ntwo\n</think>\nb\n{LS}\n<think>\nthree\n</think>\nc")
    output = items(streamed(request, said))
    assert [item["type"] for item in output] == [
        *("reasoning", "message", "reasoning", "function_call", "reasoning", "message")
    ]
    assert output[1]["content"][0]["text"] == "a\nb" and output[2]["content"][0]["text"].strip() == "two"
    returned = read(user("go"), *output).messages[1]
    assert (returned.content, returned.reasoning) == (said.turn.message.content, said.turn.message.reasoning)


def test_a_call_is_not_done_before_the_turn_is_committed() -> None:
    request = read()
    early = before_commit(request, say(request, f"look\n{LS}\nand\n{PWD}\ndone"))
    assert kinds(early) == ["created", "in_progress", *TEXT_ITEM, *CALL_ITEM[:2]]
    deltas = [event["delta"] for event in early if event["type"].endswith("arguments.delta")]
    assert "".join(deltas) == '{"command": "ls"}' and len(deltas) > 2
    custom = before_commit(request, say(request, f"edit\n{EDIT}\n{LS}"))
    assert kinds(custom) == ["created", "in_progress", *TEXT_ITEM[:3]]


def test_stream_01_a_turn_that_fails_ends_with_failed_and_none_of_its_calls() -> None:
    request = read()
    encoder = ADAPTER.stream(request, HEAD)
    said = say(request, f"look\n{LS}\n{PWD}")
    error = GatewayError(ErrorKind.ENGINE, "the engine went away")
    sent = [encoder.opening(), *map(encoder.event, said.events), encoder.fail(error)]
    events = parsed_frames(b"".join(sent))
    assert kinds(events)[-1] == "failed" and not {"completed", "incomplete"} & set(kinds(events))
    assert [item["type"] for item in items(events)] == ["message"]
    response = events[-1]["response"]
    assert response["status"] == "failed" and response["output"] == items(events)
    assert response["error"] == {"code": "server_error", "message": "the engine went away"}
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (GatewayError(ErrorKind.CONTEXT_LENGTH, "full"), "context_length_exceeded", "exceeds the context window"),
        (GatewayError(ErrorKind.RATE_LIMITED, "busy.", retry_after=2.5), "rate_limit_exceeded", "try again in 2.5s"),
        (GatewayError(ErrorKind.OVERLOADED, "busy"), "rate_limit_exceeded", "try again in 1s"),
        (GatewayError(ErrorKind.BUDGET, "used up"), "insufficient_quota", "used up"),
        (GatewayError(ErrorKind.TIMEOUT, "late"), "server_error", "late"),
        (GatewayError(ErrorKind.GONE, "closed"), "invalid_prompt", "closed"),
        (GatewayError(ErrorKind.INVALID_REQUEST, "bad"), "invalid_prompt", "bad"),
    ],
)
def test_failures_carry_the_code_that_codex_acts_on(error: GatewayError, code: str, words: str) -> None:
    encoder = ADAPTER.stream(read(), HEAD)
    *_, failed = parsed_frames(encoder.opening() + encoder.fail(error))
    assert failed["response"]["error"]["code"] == code and words in failed["response"]["error"]["message"]


def test_a_heartbeat_is_in_progress_once_more_wherever_it_comes() -> None:
    request = read()
    said = say(request, f"look\n{LS}\n{PWD}")
    encoder = ADAPTER.stream(request, HEAD)
    sent = [encoder.opening()]
    for event in said.events:
        sent += [encoder.heartbeat(), encoder.event(event)]
    events = parsed_frames(b"".join([*sent, encoder.finish(said.turn)]))
    beats = [event for event in events if event["type"] == "response.in_progress"]
    assert len(beats) == len(said.events) + 1 and all(beat["response"]["output"] == [] for beat in beats)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    rest = [event["type"] for event in events if event not in beats]
    assert rest == [e["type"] for e in streamed(request, said) if e["type"] != "response.in_progress"]


@pytest.mark.parametrize("finish", ["length", "context"])
def test_proto_09_a_turn_that_was_cut_is_incomplete(finish: Any) -> None:
    request = read()
    said = say(request, "half an ans", finish=finish)
    events = streamed(request, said)
    assert kinds(events)[-1] == "incomplete"
    response = events[-1]["response"]
    assert response["status"] == "incomplete" and response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"
    assert response == ADAPTER.response(request, [said.turn])
    whole = ADAPTER.response(request, [say(request, f"a\n{LS}", finish=finish).turn])
    assert [item["status"] for item in whole["output"]] == ["completed", "completed"]
    broken = ADAPTER.response(request, [say(request, f"a\n{LS[:-20]}", finish=finish).turn])
    assert [item["status"] for item in broken["output"]] == ["completed", "incomplete"]


def test_a_custom_call_that_broke_off_never_looks_like_one() -> None:
    """Half a patch must not run: the client gets a call that it refuses, with what the model wrote."""
    request = read()
    for text in (EDIT[:-25], EDIT.replace('"input"', '"patch"'), EDIT.replace('"*** Begin\\n+\\"a\\""', "5")):
        events = streamed(request, say(request, text))
        assert not any("custom" in event["type"] for event in events)
        (item,) = items(events)
        assert item["type"] == "function_call" and item["name"] == "apply_patch"


def test_the_end_of_a_broken_call_is_what_the_model_wrote() -> None:
    request = read()
    said = say(request, LS[:-20])
    done = next(event for event in streamed(request, said) if event["type"].endswith("arguments.done"))
    assert done["arguments"] == said.turn.message.tool_calls[0].raw_arguments


def test_lone_surrogates_and_line_separators_reach_the_client() -> None:
    request = read()
    said = say(request, "a\ud800b\u2028c\r\nd", pieces=2)
    encoder = ADAPTER.stream(request, HEAD)
    data = b"".join([encoder.opening(), *map(encoder.event, said.events), encoder.finish(said.turn)])
    (item,) = items(parsed_frames(data))
    assert item["content"][0]["text"] == "a\ud800b\u2028c\r\nd"


def test_calls_and_names_as_codex_needs_them() -> None:
    request = read()
    spawn, edit, ls = items(streamed(request, say(request, f"{SPAWN}\n{EDIT}\n{LS}")))
    assert (spawn["name"], spawn["namespace"]) == ("spawn_agent", "multi_agent_v1")
    assert edit["input"] == '*** Begin\n+"a"' and edit["name"] == "apply_patch" and "arguments" not in edit
    assert "namespace" not in ls and ls["call_id"] == f"call_{HEAD.id}02" and ls["id"] == f"fc_{HEAD.id}02"


def test_the_default_namespace_is_not_named() -> None:
    request = read(
        {
            "type": "additional_tools",
            "tools": [{"type": "namespace", "name": "functions", "tools": [{"type": "custom", "name": "exec"}]}],
        },
        user("go"),
        tools=None,
    )
    (item,) = items(streamed(request, say(request, EDIT.replace("apply_patch", "exec"))))
    assert item["type"] == "custom_tool_call" and item["name"] == "exec" and "namespace" not in item


def test_events_are_sent_as_they_come() -> None:
    encoder = ADAPTER.stream(read(), HEAD)
    encoder.opening()
    assert kinds(parsed_frames(encoder.event(TextDelta("h"))))[-1] == "output_text.delta"
    assert kinds(parsed_frames(encoder.event(TextDelta("i")))) == ["output_text.delta"]
    assert kinds(parsed_frames(encoder.event(CallStarted(0, "bash"))))[-1] == "output_item.added"
    assert kinds(parsed_frames(encoder.event(ArgumentsDelta(0, "{")))) == ["function_call_arguments.delta"]
    assert encoder.event(CallStarted(1, "bash")) == encoder.event(ArgumentsDelta(1, "{}")) == b""
