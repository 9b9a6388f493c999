"""A turn's record comes back from the journal as it was."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any, cast

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokens.graph.support import Session, renderer_of
from tests.tokens.small import BASH
from uni_agent.engine.base import TokenOutput, WeightSpan
from uni_agent.gateway.journal import Journal, read_journal, turn_from_json, turn_to_json
from uni_agent.tokens.graph import SessionGraph, TurnRecord, turn_record
from uni_agent.types import Media, Message, ToolCall

texts = st.text(st.characters(codec=None), max_size=12)
scalars: Any = st.none() | st.booleans() | st.integers() | st.floats() | texts
objects: Any = st.dictionaries(
    texts, st.recursive(scalars, lambda x: st.lists(x, max_size=3), max_leaves=6), max_size=3
)
calls = st.builds(ToolCall, texts, texts, objects, texts, st.none() | texts, texts)
media = st.builds(Media, st.just("image"), st.binary(max_size=20), texts)
messages = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    texts,
    texts,
    st.lists(calls, max_size=2).map(tuple),
    texts,
    texts,
    st.lists(texts | media, max_size=3).map(tuple),
)
ids = st.lists(st.integers(0, 2**31), max_size=6)
numbers = st.none() | st.integers(0, 99)


def rows(shape: tuple[int, ...], kind: str) -> Any:
    return numpy.arange(math.prod(shape), dtype=kind).reshape(shape)


arrays: Any = st.builds(
    rows,
    st.tuples(st.integers(0, 4), st.integers(1, 3), st.integers(1, 2)),
    st.sampled_from(["uint8", "int16", "<i4", ">i4", "float32"]),
)
records = st.builds(
    TurnRecord,
    id=st.integers(0, 10**6),
    sibling=numbers,
    parent=numbers,
    tools=st.just(()) | st.lists(objects, max_size=2),
    template_kwargs=objects,
    messages=st.lists(messages, max_size=3).map(tuple),
    context_ids=ids,
    closing=st.integers(0, 5),
    context_experts=st.none() | arrays,
    message=messages,
    ids=ids,
    logprobs=st.none() | st.lists(st.floats(), max_size=6),
    weight_spans=st.lists(st.builds(WeightSpan, texts, st.integers(0, 9), st.integers(0, 9)), max_size=2).map(tuple),
    routed_experts=st.none() | arrays | st.lists(st.lists(st.lists(st.integers(0, 63), max_size=2), max_size=2)),
    finish_reason=texts,
    cut=st.booleans(),
    drift=st.sampled_from(["new", "clean", "realigned", "forked"]),
    intent=st.sampled_from(["auto", "retry", "resample"]),
    tag=texts,
    prepared_at=st.integers(0, 10**9),
    committed_at=st.integers(0, 10**9),
    continues=numbers,
)


def told(record: TurnRecord) -> dict[str, Any]:
    """All fields, the array so that it can be compared. `repr` tells NaN, -0.0, 1 and 1.0, lists and tuples apart."""
    out = {field.name: repr(getattr(record, field.name)) for field in dataclasses.fields(record)}
    array: Any = record.routed_experts
    if hasattr(array, "dtype"):
        out["routed_experts"] = repr((array.dtype.str, array.shape, array.tobytes()))
    # `Media` does not show its bytes.
    out["media"] = repr([part.data for m in record.messages for part in m.parts if isinstance(part, Media)])
    return out


@given(st.lists(records, max_size=3))
@settings(max_examples=80, deadline=None)
def test_records_come_back_exactly(tmp_path_factory: pytest.TempPathFactory, turns: list[TurnRecord]) -> None:
    path = tmp_path_factory.mktemp("j") / "j"
    with Journal(path) as journal:
        for turn in turns:
            journal.append("turn", "s", {"record": turn_to_json(turn)})
    back = [turn_from_json(entry.data["record"]) for entry in read_journal(path)]
    assert [told(turn) for turn in back] == [told(turn) for turn in turns]


def with_unknown_keys(data: Any) -> Any:
    """Every object that the codec writes gets one more key; arguments, schemas and variables are the user's own."""
    if isinstance(data, list):
        return [with_unknown_keys(item) for item in cast("list[Any]", data)]
    if not isinstance(data, dict):
        return data
    own = ("arguments", "tools", "template_kwargs")
    raw = cast("dict[str, Any]", data)
    return {**{k: v if k in own else with_unknown_keys(v) for k, v in raw.items()}, "from_the_future": {"x": 1}}


@given(records)
@settings(max_examples=50, deadline=None)
def test_unknown_keys_are_passed_over(record: TurnRecord) -> None:
    assert told(turn_from_json(with_unknown_keys(turn_to_json(record)))) == told(record)


def test_a_session_is_rebuilt_from_its_journal(tmp_path: Path) -> None:
    session = Session(SessionGraph("s", renderer_of("qwen3")), renderer_of("qwen3"))
    history = [Message("user", "go")]
    for n in range(4):
        call = ToolCall(f"c{n}", "bash", {"command": f"echo {n}"})
        turn = session.write(session.prepare(history, [BASH]), Message("assistant", "", f"think {n}", (call,)))
        history += [turn.message, Message("tool", f"out {n}", tool_call_id=call.id, name="bash")]
    session.ask(history[:3], "a branch")
    with Journal(tmp_path / "j") as journal:
        for turn in session.graph.turns:
            journal.append("turn", "s", {"record": turn_to_json(turn_record(turn))})
    again = SessionGraph("s", renderer_of("qwen3"))
    for entry in read_journal(tmp_path / "j"):
        again.restore(turn_from_json(entry.data["record"]))
    assert again.trajectories() == session.graph.trajectories()
    assert again.prepare(history, [BASH]).prompt_ids == session.prepare(history, [BASH]).prompt_ids


def test_a_turn_costs_what_it_added(tmp_path: Path) -> None:
    session = Session(SessionGraph("s", renderer_of("qwen3")), renderer_of("qwen3"))
    history = [Message("user", "go " * 500)]
    sizes: list[int] = []
    for n in range(30):
        turn = session.ask(history, f"reply {n:03}")
        history += [turn.message, Message("user", f"more {n:03}")]
        sizes.append(len(json.dumps(turn_to_json(turn_record(turn)))))
    assert max(sizes[2:]) - min(sizes[2:]) < 40
    assert sizes[0] > 2 * max(sizes[1:])


def test_rows_of_a_longer_array_are_written_alone() -> None:
    whole = numpy.zeros((100_000, 4, 2), dtype="int16")
    session = Session(SessionGraph("s", renderer_of("qwen3")), renderer_of("qwen3"))
    prepared = session.prepare([Message("user", "go")], [])
    rows = whole[: len(prepared.prompt_ids) + 3]
    turn = session.graph.commit(
        prepared, TokenOutput([1, 2, 3], None, "stop", routed_experts=rows), Message("assistant", "x")
    )
    data = turn_to_json(turn_record(turn))
    assert len(json.dumps(data)) < 3000
    assert turn_from_json(data).routed_experts.shape == (3, 4, 2)


good = turn_to_json(
    TurnRecord(
        id=0,
        sibling=None,
        parent=None,
        tools=(),
        template_kwargs={},
        messages=(),
        context_ids=[1],
        closing=0,
        context_experts=None,
        message=Message("assistant", "x"),
        ids=[2],
        logprobs=None,
        weight_spans=(),
        routed_experts=None,
        finish_reason="stop",
        cut=False,
        drift="new",
        intent="auto",
        tag="",
        prepared_at=1,
        committed_at=2,
        continues=None,
    )
)
BAD: list[tuple[str, Any]] = [
    ("id", "0"),
    ("id", True),
    ("ids", [1.5]),
    ("ids", "12"),
    ("ids", None),
    ("logprobs", ["x"]),
    ("message", {"role": "judge"}),
    ("message", []),
    ("message", {"role": "user", "content": 3}),
    ("message", {"role": "user", "parts": [{"kind": "image", "data": "!"}]}),
    ("message", {"role": "user", "tool_calls": [{"arguments": []}]}),
    ("weight_spans", [["1", 0]]),
    ("weight_spans", [[1, 0, 1]]),
    ("routed_experts", {"npy": "AAAA"}),
    ("drift", "away"),
    ("cut", 1),
    ("tools", [1]),
]


@pytest.mark.parametrize(("key", "value"), BAD)
def test_a_damaged_record_is_a_clear_error(key: str, value: Any) -> None:
    with pytest.raises(ValueError):
        turn_from_json({**good, key: value})


@pytest.mark.parametrize("key", ["id", "ids", "logprobs", "message", "context_ids", "cut", "drift"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(ValueError, match=key):
        turn_from_json({k: v for k, v in good.items() if k != key})


def test_an_array_of_objects_is_refused() -> None:
    record = dataclasses.replace(turn_from_json(good), routed_experts=numpy.array([{}, None], dtype=object))
    with pytest.raises(ValueError):
        turn_to_json(record)
