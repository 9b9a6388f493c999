"""Answers that clients send back, and requests of any shape."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gateway.protocols.messages.support import (
    ADAPTER,
    USER,
    assembled,
    echoed,
    finished,
    read,
    said_by,
    same,
    streamed,
    wire,
)
from uni_agent.gateway.canonical import FinishedTurn, ModelRequest
from uni_agent.gateway.errors import GatewayError
from uni_agent.tokens.base import ArgumentsDelta, CallStarted, ParserEvent, TextDelta
from uni_agent.types import Message, ToolCall

BASH: dict[str, Any] = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}


def call(arguments: str, name: str = "bash") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


GENERATIONS = {
    "text": "Hello.",
    "call alone": call('{"command": "ls"}'),
    "thinking, text, call": "<think>\nplan é\n</think>\n\nLook.\n" + call('{"command": "ls"}'),
    "parallel calls": "Both.\n" + call('{"command": "a"}') + "\n" + call('{"command": "b", "n": 1.0}'),
    "text around calls": "Before.\n\n" + call("{}") + "\nBetween.\n" + call('{"a": [1, null]}') + "\n\nAfter.\n",
    "text behind a call": call('{"a": "<b>"}') + "\nAfter.",
    "thinking twice": "<think>\none\n</think>\n\nA\n<think>\ntwo\n</think>\n\nB",
    "thinking alone": "<think>\nand then it was cut",
    "broken arguments": "Try.\n" + call('{"command": "ls}'),
    "broken, then well": call('{"command": }') + "\n" + call('{"command": "ls"}') + "\nDone.",
    "arguments that are no object": call("[1, 2]"),
    "cut in a call": 'Now\n<tool_call>\n{"name": "bash", "arguments": {"command": "echo',
    "unknown tool": call('{"x": "\\u00e9", "big": 12345678901234567890}', "nope"),
    "odd spelling": call('{ "b":1e3 ,"a" : "\\n\\t\\"" }'),
    "words that look like markup": 'Use `<tool_call>` and "<think>" with care.',
    "wide characters": "\u2028 漢字 😀\n" + call('{"command": "😀\u2029"}'),
}


@pytest.mark.parametrize("thinking", [True, False], ids=["thinking kept", "thinking stripped"])
@pytest.mark.parametrize("way", ["streamed", "whole"])
@pytest.mark.parametrize("text", GENERATIONS.values(), ids=GENERATIONS.keys())
def test_an_answer_that_comes_back_means_what_was_stored(text: str, way: Literal["streamed", "whole"], thinking: bool):
    events, message = said_by(text, [BASH])
    turn = finished(message)
    answer = assembled(streamed(events, turn)) if way == "streamed" else ADAPTER.response(read(), [turn])
    returned = read(USER, echoed(answer, thinking=thinking)).messages[1]
    assert same(message, returned)
    assert [call.id for call in returned.tool_calls] == [
        f"toolu_{turn.head.id}{i:02x}" for i in range(len(message.tool_calls))
    ]
    assert returned.reasoning == (message.reasoning if thinking else "")


def test_a_client_that_strips_every_text_still_means_the_same():
    events, message = said_by(GENERATIONS["text around calls"])
    echo = echoed(assembled(streamed(events, finished(message))))
    for block in echo["content"]:
        if block["type"] == "text":
            block["text"] = block["text"].strip()
    stored = Message("assistant", message.content.replace("\n\n", "\n"), "", message.tool_calls)
    assert same(stored, read(USER, echo).messages[1])


# ---------------------------------------------------------------------------------------- any generation

PIECES = st.sampled_from(
    [
        "word ",
        "\n",
        "  ",
        "<think>\n",
        "</think>\n\n",
        "`<tool_call>`",
        "é😀",
        call("{}"),
        call('{"a": "b"}'),
        call("{"),
        call('{"c": [1.5, "}"]}', "other"),
        '<tool_call>\n{"name": "bash", "argum',
        "</tool_call>",
        "{",
        "}",
    ]
)


@settings(max_examples=100, deadline=None)
@given(st.lists(PIECES, max_size=12), st.integers(1, 40))
def test_any_generation_reads_the_same_streamed_and_whole(pieces: list[str], step: int):
    events, message = said_by("".join(pieces), [BASH], step=step)
    turn = finished(message)
    got = assembled(streamed(events, turn))
    whole = ADAPTER.response(read(), [turn])
    assert {k: v for k, v in got.items() if k not in ("content", "complete")} == {
        k: v for k, v in whole.items() if k != "content"
    }
    assert all(block["text"].strip() for block in got["content"] if block["type"] == "text")
    streamed_back, whole_back = (read(USER, echoed(answer)).messages[1] for answer in (got, whole))
    assert same(streamed_back, whole_back) and same(whole_back, streamed_back)
    # What could not be read as a call has its text; otherwise what comes back is the stored turn.
    assert same(message, streamed_back)


@st.composite
def interleaved(draw: st.DrawFn) -> tuple[list[ParserEvent], FinishedTurn]:
    """Calls whose pieces come in any order, texts between them."""
    written = draw(st.lists(st.sampled_from(["{}", '{"a": "}"}', '{"a": 1}', '{"a": ', "x"]), min_size=1, max_size=4))
    left = [[text[i : i + 2] for i in range(0, len(text), 2)] for text in written]
    events: list[ParserEvent] = []
    started, content = 0, ""
    while started < len(written) or any(left[:started]):
        moves = [i for i in range(started) if left[i]] + ([-1] if started < len(written) else [])
        move = draw(st.sampled_from(moves))
        if move < 0:
            word = draw(st.sampled_from(["", "w", "\n"]))
            if word:
                content += word
                events.append(TextDelta(word))
            events.append(CallStarted(started, f"t{started}"))
            started += 1
        else:
            events.append(ArgumentsDelta(move, left[move].pop(0)))
    calls = tuple(_call(i, text) for i, text in enumerate(written))
    return events, finished(Message("assistant", content, "", calls))


def _call(index: int, text: str) -> ToolCall:
    try:
        return ToolCall("", f"t{index}", json.loads(text), text)
    except ValueError:
        return ToolCall("", f"t{index}", {}, text, "broken")


@settings(max_examples=100, deadline=None)
@given(interleaved())
def test_stream_02_pieces_in_any_order_reach_their_own_call(told: tuple[list[ParserEvent], FinishedTurn]):
    events, turn = told
    got = assembled(streamed(events, turn))
    calls = [block for block in got["content"] if block["type"] == "tool_use"]
    assert [(b["name"], b["input"]) for b in calls] == [(c.name, c.raw_arguments) for c in turn.message.tool_calls]
    text = "".join(block["text"] for block in got["content"] if block["type"] == "text")
    assert text == turn.message.content.rstrip("\n") or text == turn.message.content


# ---------------------------------------------------------------------------------------- any request

Any_ = st.SearchStrategy[Any]

WORDS: Any_ = st.text(max_size=5) | st.sampled_from(["\ud83d", "text", "user", "tool_use", "tool_result"])
SCALARS: Any_ = st.none() | st.booleans() | st.integers() | st.floats() | WORDS
JSON: Any_ = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3), max_leaves=6
)


def fields(names: str, values: Any_) -> Any_:
    """Objects with any of `names`."""
    return st.dictionaries(st.sampled_from(names.split()), values, max_size=5)


KINDS = [
    "text",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "tool_result",
    "image",
    "document",
    "tool_reference",
    "odd",
]


def blocks(inner: Any_) -> Any_:
    """Lists of blocks."""
    names = "text thinking id name input tool_use_id content source tool_name title data"
    return st.lists(st.tuples(st.sampled_from(KINDS), fields(names, inner | JSON)).map(_block), max_size=3)


def _block(pair: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {**pair[1], "type": pair[0]}


CONTENT: Any_ = st.recursive(SCALARS, blocks, max_leaves=5)
MESSAGE: Any_ = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "odd"]) | SCALARS, "content": CONTENT}
)
TOOL: Any_ = fields("name type description input_schema defer_loading", JSON) | JSON
OPTIONS = [
    "tool_choice",
    "temperature",
    "top_p",
    "top_k",
    "stop_sequences",
    "stream",
    "thinking",
    "max_tokens",
    "thread",
    "model",
    "output_config",
    "context_management",
    "container",
    "mcp_servers",
]
BODY: Any_ = st.fixed_dictionaries(
    {
        "messages": st.lists(MESSAGE, max_size=4) | JSON,
        "tools": st.lists(TOOL, max_size=3) | JSON,
        "system": CONTENT,
    },
    optional=dict.fromkeys(OPTIONS, JSON),
)


@settings(max_examples=100, deadline=None)
@given(BODY | st.dictionaries(WORDS, JSON, max_size=4))
def test_any_body_is_read_or_refused(body: dict[str, Any]):
    try:
        request = ADAPTER.read(wire(body))
    except GatewayError as error:
        status, _, answer = ADAPTER.error(error)
        assert status == 400 and json.loads(json.dumps(answer)) == answer
        return
    _renderable(request)


def _renderable(request: ModelRequest) -> None:
    """Nothing in it has no UTF-8 form, and everything can be written as JSON."""
    json.dumps(request.tools, ensure_ascii=False).encode()
    for message in request.messages:
        json.dumps(message.to_openai(), ensure_ascii=False).encode()
        for part in message.parts:
            assert not isinstance(part, str) or part.encode() or not part
    "".join([request.model, *request.stop, request.tool_choice.name]).encode()
