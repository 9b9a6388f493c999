"""A stream and a whole answer say the same, whatever the model wrote and however it arrived."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.gateway.protocols.chat.support import ADAPTER, BASH, PATCH, as_shown, joined, read, same, stream, turn
from uni_agent.tokens.base import ArgumentsDelta, CallStarted, ParserEvent, TextDelta, ToolParser
from uni_agent.tokens.parsers import HermesToolParser, OutputParser, XMLToolParser
from uni_agent.types import Message, ToolCall

COMMON = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
TOOLS = [
    {"type": "function", "function": {"name": "write", "parameters": {"properties": {"path": {"type": "string"}}}}},
    BASH,
]


def agrees(events: Sequence[ParserEvent], message: Message, **body: Any) -> dict[str, Any]:
    """The whole answer's message, after checking that the stream says it and that its echo is the turn."""
    request = read(stream=True, **body)
    finished = turn(message.content, *message.tool_calls, reasoning=message.reasoning)
    whole = ADAPTER.response(request, [finished])["choices"][0]
    got = joined(stream(request, events, finished))
    assert got["finish_reasons"] == [whole["finish_reason"]]
    said = whole["message"]
    assert got["message"]["content"] == (said["content"] or "")
    for key in ("reasoning_content", "tool_calls"):
        assert got["message"].get(key) == said.get(key)
    for answer in (said, got["message"]):
        user = {"role": "user", "content": "hi"}
        echoed = read(user, answer, **body).messages
        assert same([Message("user", "hi"), message], echoed)
    return said


@st.composite
def sequences(draw: st.DrawFn) -> tuple[list[ParserEvent], Message]:
    """Events in any order that the seam allows, and the message that they say."""
    events: list[ParserEvent] = []
    names: list[str] = []
    said: list[str] = []
    for kind in draw(st.lists(st.sampled_from(["text", "thought", "call", "more"]), max_size=12)):
        if kind == "call":
            names.append(draw(st.sampled_from(["bash", "write", ""])))
            said.append("")
            events.append(CallStarted(len(names) - 1, names[-1]))
        elif kind == "more" and names:
            index = draw(st.integers(0, len(names) - 1))
            text = draw(TEXT)
            said[index] += text
            events.append(ArgumentsDelta(index, text))
        elif kind != "more":
            events.append(TextDelta(draw(TEXT), reasoning=kind == "thought"))
    for index, text in enumerate(said):
        if draw(st.booleans()) and not text:
            said[index] = json.dumps(draw(st.dictionaries(TEXT, JSON, max_size=3)), ensure_ascii=draw(st.booleans()))
            cut = draw(st.integers(0, len(said[index])))
            events += [ArgumentsDelta(index, said[index][:cut]), ArgumentsDelta(index, said[index][cut:])]
    texts = [event for event in events if isinstance(event, TextDelta)]
    return events, Message(
        "assistant",
        "".join(event.text for event in texts if not event.reasoning),
        "".join(event.text for event in texts if event.reasoning),
        tuple(_call(name, text) for name, text in zip(names, said, strict=True)),
    )


def _call(name: str, text: str) -> ToolCall:
    try:
        decoded: Any = json.loads(text)
    except ValueError:
        decoded = None
    if isinstance(decoded, dict):
        return ToolCall("", name, decoded, text)  # pyright: ignore[reportUnknownArgumentType]
    return ToolCall("", name, {}, text, "no object")


@settings(COMMON)
@given(sequence=sequences())
def test_any_sequence_of_events_says_what_the_whole_answer_says(sequence: tuple[list[ParserEvent], Message]) -> None:
    events, message = sequence
    if "<think>" not in message.content:
        agrees(events, message, tools=TOOLS)


@settings(COMMON)
@given(text=TEXT, cut=st.integers(0, 60))
def test_the_text_of_a_custom_tool_arrives_as_it_is(text: str, cut: int) -> None:
    raw = json.dumps({"input": text})
    events = [CallStarted(0, "apply_patch"), ArgumentsDelta(0, raw[:cut]), ArgumentsDelta(0, raw[cut:])]
    message = Message("assistant", "", "", (ToolCall("", "apply_patch", {"input": text}, raw),))
    said = agrees(events, message, tools=[PATCH])
    assert said["tool_calls"][0]["custom"]["input"] == text


HERMES = [
    '<tool_call>\n{"name": "write", "arguments": {"path": "a\nb"}}\n</tool_call>',
    '<tool_call>\n{"name": "write", "arguments": {"path": "a\tb\\"" ,\n "n": 1.0}}\n</tool_call>',
    '<tool_call>\n{"arguments": {"path": "\\u00e9", "path": "x"}, "name": "write"}\n</tool_call>',
    '<tool_call>\n{"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}\n</tool_call>',
    '<tool_call>\n{"name": "bash"}\n</tool_call>',
    '<tool_call>\n{"name": "bash", "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "nosuch", "arguments": {"a": 1}}\n</tool_call>',
    '<tool_call>\n{"name": "bash", "arguments": {"command": "l',
    '<tool_call>\n{"name": "bash", "arguments": null}\n</tool_call>',
    "<tool_call>\nls\n</tool_call>",
]
XML = [
    "<tool_call>\n<function=write>\n<parameter=path>\na\n</parameter>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>",
    '<tool_call>\n<function=bash>\n<parameter=command>\necho "é\t"\n</parameter>\n</function>\n</tool_call>',
    "<tool_call>\n<function=bash>\n</function>\n</tool_call>",
    '<tool_call>\n<function=bash>\n{"command": "ls"}\n</function>\n</tool_call>',
    "<tool_call>\n<function=nosuch>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>\n<function=bash>\n<parameter=command>\nls",
    "<tool_call>\n</tool_call>",
]
PIECES = ["Hi", "\n", "<think>\nplan\n</think>\n\n", "`<tool_call>`", " x "]


def parsed(parser: ToolParser, text: str, seed: int) -> tuple[list[ParserEvent], Message]:
    """The events of `text` in random pieces, and the message that a client is shown."""
    rng = random.Random(seed)
    points = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(8)))
    reading = parser.stream(TOOLS)
    events: list[ParserEvent] = []
    for a, b in zip([0, *points], [*points, len(text)], strict=True):
        events += reading.feed(text[a:b])
    rest, result = reading.finish()
    return [*events, *rest], as_shown([*events, *rest], result)


def outputs(calls: list[str]) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from([*PIECES, *calls]), max_size=5).map("\n".join)


@pytest.mark.parametrize("text", HERMES)
def test_each_hermes_call_is_the_same_streamed_and_whole(text: str) -> None:
    for seed in range(20):
        agrees(*parsed(OutputParser(HermesToolParser(), reasoning=True), f"Hi\n{text}", seed), tools=TOOLS)


@pytest.mark.parametrize("text", XML)
def test_each_xml_call_is_the_same_streamed_and_whole(text: str) -> None:
    for seed in range(20):
        agrees(*parsed(OutputParser(XMLToolParser(), reasoning=True), f"Hi\n{text}", seed), tools=TOOLS)


@settings(COMMON)
@given(text=outputs(HERMES), seed=st.integers(0, 1 << 20))
def test_what_hermes_models_write_is_the_same_streamed_and_whole(text: str, seed: int) -> None:
    agrees(*parsed(OutputParser(HermesToolParser(), reasoning=True), text, seed), tools=TOOLS)


@settings(COMMON)
@given(text=outputs(XML), seed=st.integers(0, 1 << 20))
def test_what_xml_models_write_is_the_same_streamed_and_whole(text: str, seed: int) -> None:
    agrees(*parsed(OutputParser(XMLToolParser(), reasoning=True), text, seed), tools=TOOLS)


@settings(COMMON)
@given(arguments=st.dictionaries(TEXT, JSON, max_size=4), seed=st.integers(0, 1 << 20), compact=st.booleans())
def test_any_arguments_a_model_writes_as_json_keep_their_text(
    arguments: dict[str, Any], seed: int, compact: bool
) -> None:
    raw = json.dumps(arguments, separators=(",", ":") if compact else None, ensure_ascii=compact)
    text = f'<tool_call>\n{{"name": "bash", "arguments": {raw}}}\n</tool_call>'
    said = agrees(*parsed(HermesToolParser(), text, seed), tools=TOOLS)
    assert said["tool_calls"][0]["function"]["arguments"] == raw
