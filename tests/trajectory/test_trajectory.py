"""A trajectory is whole or is not made; it comes back from JSON; its parts are joined; it is cut with an account."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokens.graph.support import Session, renderer_of
from tests.tokens.media.vision import png, vision_renderer, write_vision_folder
from tests.trajectory.support import exported, small
from uni_agent.engine.base import TokenOutput, WeightSpan
from uni_agent.tokens.accounting import masked_copy
from uni_agent.tokens.cache import Span
from uni_agent.tokens.graph import SessionGraph
from uni_agent.trajectory import Trajectory, fit, logical_trajectories
from uni_agent.types import Media, Message, TokenAccount, ToolCall

PNG = Media("image", b"\x89PNG\x00\xff", "image/png")

BAD: list[tuple[str, Any, str]] = [
    ("response_mask", [1, 1], "8 response ids but a mask of 2"),
    ("response_logprobs", [0.0] * 7, "8 response ids but 7 logprobs"),
    ("response_mask", [1, 1, 1, 1, 0, 1, 1, 0], "the mask of observation span 3:5"),
    ("response_mask", [2, 1, 1, 0, 0, 1, 1, 0], "the mask of sampled span 0:3"),
    ("spans", (Span("sampled", 0, 0, 3),), "the spans end at token 3 of 8"),
    ("spans", (Span("sampled", 0, 0, 3), Span("sampled", 1, 4, 8)), "span 4:8 does not follow on token 3"),
    ("spans", (Span("sampled", 5, 0, 8),), "turn number 5 of 2"),
    ("weight_spans", (WeightSpan("1", 0, 9),), "weight span 0:9 does not lie in 8"),
    ("routed_experts", [(7, [[[0]], [[0]]])], "rows for tokens 7:9 of 4 \\+ 8"),
    ("routed_experts", [(-5, [[[0]]])], "rows for tokens -5:-4"),
    ("tags", ("main",), "2 turns but 1 tags"),
    ("message_turns", (None, 0), "5 messages but 2 message_turns"),
    ("message_turns", (None, None, 0, None, 7), r"names turns \[7\]"),
]


@pytest.mark.parametrize(("field", "value", "message"), BAD)
def test_a_trajectory_that_contradicts_itself_is_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"trajectory 's/1': .*{message}"):
        small(**{field: value})


def test_accounting_and_trained_turns_come_from_the_tokens() -> None:
    assert small().accounting == TokenAccount(5, 5, 0, {})
    masked = small(response_mask=[1, 1, 1, 0, 0, 0, 0, 0], dropped={"aborted": 4})
    assert masked.accounting == TokenAccount(9, 3, 2, {"aborted": 4})
    assert (small().trained, masked.trained) == ((0, 1), (0,))


def graph_session() -> Session:
    return Session(SessionGraph("s", renderer_of("qwen3")), renderer_of("qwen3"))


def test_a_chain_becomes_a_trajectory_with_all_that_it_says() -> None:
    session = graph_session()
    call = ToolCall("c", "bash", {"command": "ls"}, '{"command": "ls"}')
    first = session.write(session.prepare([Message("user", "go")], tag="main"), Message("assistant", "", "", (call,)))
    more = [Message("user", "go"), first.message, Message("tool", "x", tool_call_id="c", name="bash")]
    session.write(session.prepare(more, tag="main"), Message("assistant", "done"))
    session.write(session.prepare(more[:1], tag="main", intent="resample"), Message("assistant", "other"))
    one, two = (
        Trajectory.from_chain(
            chain,
            session_id="s",
            materialization_reason="finalized",
            reward=1.0,
            reward_info={"acc": 1},
            exit_reason="finished",
            extra={"x": 1},
        )
        for chain in session.graph.trajectories()
    )
    assert (one.id, one.session_id, one.num_turns, one.scenario) == ("s/1", "s", 2, "main")
    assert (one.materialization_reason, one.reward, one.reward_info) == ("finalized", 1.0, {"acc": 1})
    assert (one.exit_reason, one.extra, one.tags) == ("finished", {"x": 1}, ("main", "main"))
    assert one.message_turns == (None, 0, None, 1) and two.message_turns == (None, 2)
    assert [m.role for m in one.messages] == ["user", "assistant", "tool", "assistant"]
    assert [span.version for span in one.weight_spans] == ["0", "1"]
    assert one.routed_experts is not None and one.routed_experts[0] == (0, [[[i]] for i in session.sampled[0]])


def test_the_scenario_is_that_of_what_is_trained() -> None:
    session = graph_session()
    first = session.ask([Message("user", "go")], "one", tag="main")
    history = [Message("user", "go"), first.message]
    session.ask([*history, Message("user", "on")], "two", tag="main")
    session.ask([*history, Message("user", "summarise")], "in short", tag="compaction")
    session.ask([Message("user", "name it")], "a title", tag="title")
    assert [t.scenario for t in exported(session)] == ["main", "compaction", "title"]


def test_images_of_messages_are_its_media_in_their_order(tmp_path: Path) -> None:
    renderer = vision_renderer(write_vision_folder(tmp_path / "model"))
    session = Session(SessionGraph("s", renderer), renderer)
    small, wide = png(), png(200, 60, 1)
    messages = [Message("user", "ab", parts=("a", small, "b", wide)), Message("assistant", "x"), Message("user", "c")]
    session.ask(messages, "seen")
    (t,) = exported(session)
    assert t.multi_modal_data == (small, wide)


def test_json_is_strict_and_comes_back_exactly() -> None:
    rows = numpy.arange(12, dtype="uint8").reshape(3, 2, 2)
    t = small(
        response_logprobs=[-0.1, float("-inf"), float("nan"), 0.0, 0.0, 5e-324, -1 / 3, 0.0],
        reward=float("inf"),
        routed_experts=[(-4, [[[1]], [[2]]]), (0, rows)],
        multi_modal_data=(PNG,),
        messages=(Message("user", "\udc80", parts=("a", PNG)), *small().messages[1:]),
        tools=({"type": "function", "function": {"name": "f", "parameters": {}}},),
        continues="s/0",
        branched_from=3,
        abandoned=True,
        dropped={"aborted": 2},
        extra={"a": [1, 2.0, None]},
    )
    data = json.loads(json.dumps(t.to_json(), allow_nan=False))
    assert data["accounting"] == {"sampled": 7, "trained": 5, "masked": 0, "dropped": {"aborted": 2}}
    assert data["trained"] == [0, 1] and data["multi_modal_data"][0]["media_type"] == "image/png"
    back = Trajectory.from_json({**data, "unknown": 1})
    assert repr(replace(back, routed_experts=None)) == repr(replace(t, routed_experts=None))
    assert back.multi_modal_data == t.multi_modal_data and back.messages == t.messages
    assert back.routed_experts is not None and back.routed_experts[0] == (-4, [[[1]], [[2]]])
    assert back.routed_experts[1][1].dtype == rows.dtype and (back.routed_experts[1][1] == rows).all()


DAMAGED: list[tuple[str, Any]] = [
    ("prompt_ids", [1.0]),
    ("prompt_ids", None),
    ("response_mask", [True] * 8),
    ("spans", [["sampled", 0, 0]]),
    ("spans", [["guessed", 0, 0, 8]]),
    ("weight_spans", [[7, 0, 1]]),
    ("message_turns", ["0"]),
    ("abandoned", "yes"),
    ("continues", 4),
    ("reward", "high"),
    ("routed_experts", [[0, {"npy": "!"}]]),
    ("multi_modal_data", [{"kind": "video", "data": ""}]),
    ("accounting", {"dropped": {"x": 1.5}}),
    ("tags", [1, 2]),
]


@pytest.mark.parametrize(("key", "value"), DAMAGED)
def test_damaged_json_is_a_clear_error(key: str, value: Any) -> None:
    with pytest.raises(ValueError):
        Trajectory.from_json({**small().to_json(), key: value})


@pytest.mark.parametrize("data", [None, [], {}, {"id": "x"}])
def test_what_is_no_trajectory_is_a_clear_error(data: Any) -> None:
    with pytest.raises(ValueError, match="trajectory"):
        Trajectory.from_json(data)


# ---------------------------------------------------------------------------------------------- joining


def part(id_: str, continues: str | None = None, **changes: Any) -> Trajectory:
    return small(id=id_, continues=continues, **changes)


def joined(*parts: Trajectory) -> list[str]:
    return ["+".join(t.id for t in group) for group in logical_trajectories(parts)]


def test_parts_are_joined_in_their_order() -> None:
    assert joined(part("c", "b"), part("a"), part("x"), part("b", "a")) == ["a+b+c", "x"]


def test_of_several_that_go_on_the_kept_one_of_the_same_scenario_does() -> None:
    title = part("title", "a", scenario="title")
    retried = part("retried", "a", abandoned=True)
    assert joined(part("a"), title, retried, part("b", "a"), part("c", "a")) == ["a+b", "title", "retried", "c"]


def test_a_part_whose_beginning_is_not_given_starts_a_group() -> None:
    assert joined(part("b", "gone"), part("c", "b")) == ["b+c"]


@pytest.mark.parametrize("parts", [[("a", "a")], [("a", "b"), ("b", "a"), ("c", None)]])
def test_circles_and_repeated_ids_are_refused(parts: list[tuple[str, str | None]]) -> None:
    with pytest.raises(ValueError, match="circle"):
        joined(*(part(*p) for p in parts))
    with pytest.raises(ValueError, match="same id"):
        joined(part("a"), part("a"))


@given(st.lists(st.integers(0, 30), max_size=12))
def test_every_part_is_in_exactly_one_group(befores: list[int]) -> None:
    parts = [part(str(n), str(before) if before < n else None) for n, before in enumerate(befores)]
    groups = logical_trajectories(parts)
    assert sorted(t.id for group in groups for t in group) == sorted(t.id for t in parts)


# ---------------------------------------------------------------------------------------------- cutting


def test_a_long_prompt_moves_into_the_response_as_context() -> None:
    t = fit(small(routed_experts=[(0, [[[5]]])]), max_prompt=1)
    assert (t.prompt_ids, t.response_ids[:4]) == ([1], [2, 3, 4, 11])
    assert t.response_mask == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 0]
    assert t.response_logprobs is not None and t.response_logprobs[3] == -0.1
    assert t.weight_spans == (WeightSpan("7", 3, 6), WeightSpan("9", 8, 10))
    assert t.routed_experts == [(3, [[[5]]])]
    assert t.accounting == small().accounting


def test_a_long_response_is_cut_and_counted() -> None:
    t = fit(small(routed_experts=[(0, [[[5]]] * 3), (5, [[[6]]] * 2)]), max_response=6)
    assert t.response_ids == [11, 12, 13, 21, 22, 14]
    assert t.accounting == TokenAccount(5, 4, 0, {"max_length": 1})
    assert t.extra["cut"] == {"tokens": 2, "turn": 1}
    assert t.weight_spans == (WeightSpan("7", 0, 3), WeightSpan("9", 5, 6))
    assert t.routed_experts == [(0, [[[5]]] * 3), (5, [[[6]]])]
    again = fit(t, max_response=3)
    assert again.accounting == TokenAccount(5, 3, 0, {"max_length": 2})
    assert again.extra["cut"] == {"tokens": 5, "turn": None} and again.trained == (0,)


def test_masked_tokens_that_are_cut_are_dropped_too() -> None:
    t = fit(small(response_mask=[0] * 8), max_response=1)
    assert t.accounting == TokenAccount(5, 0, 1, {"max_length": 4})


def test_what_fits_is_left_alone() -> None:
    t = small()
    assert fit(t) is t and fit(t, max_prompt=4, max_response=8) is t


def test_images_are_not_cut_and_limits_are_positive() -> None:
    with pytest.raises(ValueError, match="images"):
        fit(small(multi_modal_data=(PNG,)), max_response=2)
    with pytest.raises(ValueError, match="limit of 0"):
        fit(small(), max_response=0)


def test_a_masked_chain_is_a_masked_trajectory() -> None:
    session = graph_session()
    turn = session.ask([Message("user", "go")], "one")
    chain = session.graph.trajectories()[0]
    t = Trajectory.from_chain(replace(chain, cache=masked_copy(chain.cache, "limit")), session_id="s")
    assert t.trained == () and t.accounting == TokenAccount(len(turn.ids), 0, len(turn.ids), {})


def test_an_engine_without_logprobs_gives_none() -> None:
    session = graph_session()
    prepared = session.prepare([Message("user", "go")])
    session.graph.commit(prepared, TokenOutput([5, 6], None, "length"), Message("assistant", "x"))
    assert exported(session)[0].response_logprobs is None


def test_importing_it_loads_no_framework() -> None:
    modules = ("verl", "tinker", "rows", "sft")
    code = f"import sys\nfor m in {modules}: __import__('uni_agent.trajectory.' + m)\n"
    code += "print([m for m in ('verl', 'tinker', 'torch', 'numpy', 'pyarrow', 'PIL') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
