"""Trajectories as frameworks take them, against their real classes where they are installed."""

from __future__ import annotations

import base64
import importlib
import importlib.util
import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
import pytest

from tests.trajectory import verl_copy
from tests.trajectory.support import small
from uni_agent.errors import ConfigError, MissingExtraError
from uni_agent.trajectory import Trajectory, rows, tinker, verl
from uni_agent.trajectory.experts import aligned_experts, missing_experts
from uni_agent.trajectory.sft import sft_example
from uni_agent.types import Media, Message

RECORD = {
    *("prompts", "responses", "response_mask", "loss_mask", "input_ids", "position_ids", "rm_scores"),
    *("rollout_log_probs", "num_turns", "uid", "multi_modal_inputs", "extra_fields"),
}
"""What verl's v1 trainer reads of a trajectory in the TransferQueue."""

LOOP = "verl.experimental.agent_loop.agent_loop"


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


needs_tinker = pytest.mark.skipif(not installed("tinker"), reason="the Tinker SDK is not installed")
needs_pillow = pytest.mark.skipif(not installed("PIL"), reason="Pillow is not installed")
needs_torch = pytest.mark.skipif(not installed("torch"), reason="torch is not installed")


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Any:
    """verl's own module, or the restatement of it where verl is not installed."""
    if not installed("verl"):
        monkeypatch.setitem(sys.modules, LOOP, verl_copy)
    return importlib.import_module(LOOP)


# ---------------------------------------------------------------------------------------------- verl: AgentLoopOutput


def test_the_fields_are_those_of_the_agent_loop_output(loop: Any) -> None:
    fields = verl.agent_loop_fields(small())
    known: Any = loop.AgentLoopOutput.model_fields
    assert set(fields) <= set(known)
    assert {name for name, field in known.items() if field.is_required()} <= set(fields)
    assert set(fields["metrics"]) == set(loop.AgentLoopMetrics.model_fields)
    assert fields["prompt_ids"] == [1, 2, 3, 4] and fields["response_mask"] == [1, 1, 1, 0, 0, 1, 1, 0]
    assert fields["reward_score"] == 0.5 and fields["num_turns"] == 4
    extra = fields["extra_fields"]
    assert extra["reward_extra_info"] == {"acc": 1.0, "note": "fine"}
    assert (extra["min_global_steps"], extra["max_global_steps"]) == (7, 9)
    assert extra["accounting"] == {"sampled": 5, "trained": 5, "masked": 0, "dropped": {}}


def test_lengths_are_limited_with_an_account() -> None:
    fields = verl.agent_loop_fields(small(), max_prompt=3, max_response=5)
    assert fields["prompt_ids"] == [1, 2, 3] and fields["response_ids"] == [4, 11, 12, 13, 21]
    assert fields["extra_fields"]["accounting"]["dropped"] == {"max_length": 2}
    assert fields["extra_fields"]["max_global_steps"] == 7


def test_steps_come_from_weight_versions_or_from_the_caller() -> None:
    unmarked = small(weight_spans=())
    with pytest.raises(ValueError, match="marked no weights; pass `global_steps`"):
        verl.agent_loop_fields(unmarked)
    assert verl.agent_loop_fields(unmarked, global_steps=4)["extra_fields"]["max_global_steps"] == 4
    named = small(weight_spans=tuple(type(w)(f"step-{w.version}", w.start, w.end) for w in small().weight_spans))
    with pytest.raises(ValueError, match=r"step-7.*pass `step_of`"):
        verl.agent_loop_fields(named, global_steps=4)
    extra = verl.agent_loop_fields(named, step_of=lambda v: int(v.removeprefix("step-")))["extra_fields"]
    assert (extra["min_global_steps"], extra["max_global_steps"]) == (7, 9)


def empty(**changes: Any) -> Trajectory:
    return small(response_ids=[], response_mask=[], response_logprobs=[], spans=(), weight_spans=(), **changes)


def test_an_empty_response_is_refused() -> None:
    with pytest.raises(ValueError, match="no response"):
        verl.agent_loop_fields(empty(), global_steps=1)


def expert_rows(start: int, count: int) -> tuple[int, Any]:
    return start, numpy.arange(count * 2, dtype="uint8").reshape(count, 2, 1) + 10


def test_experts_are_aligned_by_absolute_position() -> None:
    t = small(routed_experts=[expert_rows(-4, 4), expert_rows(0, 7)])
    out = aligned_experts(t)
    assert out.shape == (12, 2, 1) and missing_experts(t) == 0
    assert out[3].tolist() == [[16], [17]] and out[4].tolist() == [[10], [11]]
    assert out[11].tolist() == [[0], [0]]
    assert (verl.agent_loop_fields(t)["routed_experts"] == out).all()


def test_experts_with_gaps_are_left_out_and_counted() -> None:
    t = small(routed_experts=[expert_rows(0, 3), expert_rows(5, 2)])
    assert missing_experts(t) == 4 + 2
    fields = verl.agent_loop_fields(t)
    assert fields["routed_experts"] is None and fields["extra_fields"]["routed_experts_missing"] == 6
    assert aligned_experts(t)[9].tolist() == [[10], [11]]
    assert aligned_experts(small()) is None


def test_experts_of_different_shapes_are_refused() -> None:
    t = small(routed_experts=[expert_rows(-4, 4), (0, numpy.zeros((7, 3, 1)))])
    with pytest.raises(ValueError, match="one shape"):
        aligned_experts(t)


def test_the_last_of_a_sessions_trajectories_is_the_main_one() -> None:
    main = small(id="main"), small(id="go on", continues="main")
    other = small(id="branch", response_mask=[1, 1, 1, 0, 0, 0, 0, 0])
    retried = small(id="retried", abandoned=True)
    sub = small(id="sub", scenario="sub_agent")
    ordered = verl.session_order([*main, other, empty(id="nothing"), retried, sub])
    assert [t.id for t in ordered] == ["sub", "retried", "branch", "main", "go on"]
    assert verl.session_order([]) == []


# ---------------------------------------------------------------------------------------------- verl: records


@needs_torch
def test_the_record_has_the_fields_the_trainer_reads() -> None:
    import torch

    key, record, tag = verl.transfer_queue_record(
        small(), uid="u-1", session=2, index=0, global_steps=9, row={"data_source": "x"}
    )
    assert key == "u-1_2_0" and set(record) >= RECORD
    assert tag == {
        "status": "success",
        "prompt_len": 4,
        "response_len": 8,
        "seq_len": 12,
        "global_steps": 9,
        "min_global_steps": 7,
        "max_global_steps": 9,
    }
    assert record["input_ids"].tolist() == small().ids and record["position_ids"].tolist() == list(range(12))
    assert record["rm_scores"].tolist() == [0.0] * 7 + [0.5]
    assert record["rollout_log_probs"].dtype == torch.float32 and record["response_mask"].dtype == torch.int64
    assert record["loss_mask"].tolist() == record["response_mask"].tolist() == small().response_mask
    assert record["data_source"] == "x" and record["uid"] == "u-1" and record["num_turns"] == 4


@needs_torch
def test_a_record_is_refused_where_the_trainer_would_die() -> None:
    options: dict[str, Any] = {"session": 0, "index": 0, "global_steps": 1}
    with pytest.raises(ValueError, match="uid"):
        verl.transfer_queue_record(small(), uid="a_b", **options)
    with pytest.raises(ValueError, match="no reward"):
        verl.transfer_queue_record(small(reward=None), uid="a", **options)
    picture = small(multi_modal_data=(Media("image", b"x"),))
    with pytest.raises(ValueError, match="images need"):
        verl.transfer_queue_record(picture, uid="a", **options)


def test_padded_fields_pad_prompts_left_and_responses_right() -> None:
    out = verl.padded_fields(small(), prompt_length=6, response_length=10, pad_token_id=99)
    assert out["prompts"] == [99, 99, 1, 2, 3, 4]
    assert out["responses"] == [11, 12, 13, 21, 22, 14, 15, 23, 99, 99]
    assert out["response_mask"] == [1, 1, 1, 0, 0, 1, 1, 0, 0, 0]
    assert out["attention_mask"] == [0, 0] + [1] * 12 + [0, 0]
    # As verl computes them: the running count of the mask, less one, not below 0.
    counted = numpy.clip(numpy.cumsum(out["attention_mask"]) - 1, 0, None)
    assert out["position_ids"] == counted.tolist()
    assert out["rollout_log_probs"][-3:] == [0.0] * 3 and len(out["input_ids"]) == 16


# ---------------------------------------------------------------------------------------------- verl: its classes


@needs_torch
def test_verls_own_class_makes_the_same_tensors_of_it(loop: Any) -> None:
    import torch

    given = small(routed_experts=[expert_rows(-4, 4), expert_rows(0, 7)])
    output = verl.agent_loop_output(given)
    assert type(output) is loop.AgentLoopOutput
    data = output.as_dict()
    _, record, _ = verl.transfer_queue_record(given, uid="u", session=0, index=0, global_steps=9)
    for name in ("prompts", "responses", "response_mask", "rollout_log_probs", "rm_scores", "routed_experts"):
        assert torch.equal(data[name], record[name]) and data[name].dtype == record[name].dtype, name
    # `as_dict` leaves out what was not set, and the trainer dies without these.
    assert data["num_turns"] == 4 and data["extra_fields"]["max_global_steps"] == 9
    assert data["metrics"] == record["metrics"]


def test_the_restatement_of_verls_classes_is_right(loop: Any) -> None:
    for name in ("AgentLoopOutput", "AgentLoopMetrics"):
        mine, real = getattr(verl_copy, name).model_fields, getattr(loop, name).model_fields
        assert {k: (f.is_required(), f.default) for k, f in real.items() if k != "metrics"} == {
            k: (f.is_required(), f.default) for k, f in mine.items() if k != "metrics"
        }
    options: Any = {**verl.agent_loop_fields(small()), "routed_experts": [[[1]], [[2]]]}
    mine, real = (module.AgentLoopOutput(**options).as_dict() for module in (verl_copy, loop))
    assert {k: str(v) for k, v in mine.items()} == {k: str(v) for k, v in real.items()}


def test_records_go_through_verls_table(loop: Any) -> None:
    options: dict[str, Any] = {"uid": "u", "session": 0, "global_steps": 9}
    given = [small(), small(prompt_ids=[1])]
    records = [verl.transfer_queue_record(t, index=i, **options)[1] for i, t in enumerate(given)]
    assert {frozenset(record) for record in records} == {frozenset(records[0])}  # the first one's keys are read of all
    if loop is verl_copy:
        return
    table: Any = importlib.import_module("verl.utils.tensordict_utils").list_of_dict_to_tensordict(records)
    assert len(table) == 2 and [row.tolist() for row in table["prompts"].unbind()] == [[1, 2, 3, 4], [1]]
    assert table["responses"][1].tolist() == small().response_ids


def test_without_verl_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, LOOP, None)
    with pytest.raises(MissingExtraError, match=r"uni-agent\[train\]"):
        verl.agent_loop_output(small())


@needs_pillow
def test_images_are_decoded_and_broken_ones_refused() -> None:
    from PIL import Image  # pyright: ignore

    file = io.BytesIO()
    Image.new("L", (3, 2)).save(file, "png")  # pyright: ignore
    image = verl.pil_image(Media("image", file.getvalue(), "image/png"))
    assert image.size == (3, 2) and image.mode == "RGB"
    for data in (b"", b"GIF89a", file.getvalue()[:40]):
        with pytest.raises(ConfigError, match="cannot be read"):
            verl.pil_image(Media("image", data, "image/png"))


# ---------------------------------------------------------------------------------------------- Tinker


def test_a_datum_predicts_each_token_from_those_before() -> None:
    fields = tinker.datum_fields(small(), advantage=[1.0, 2.0, 3.0, 9.0, 9.0, 4.0, 5.0, 9.0])
    inputs = fields["loss_fn_inputs"]
    assert fields["model_input"]["chunks"][0]["tokens"] == [1, 2, 3, 4, 11, 12, 13, 21, 22, 14, 15]
    assert inputs["target_tokens"] == [2, 3, 4, 11, 12, 13, 21, 22, 14, 15, 23]
    assert inputs["weights"] == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0]
    assert inputs["logprobs"] == [0.0, 0.0, 0.0, -0.1, -0.2, -0.3, 0.0, 0.0, -0.4, -0.5, 0.0]
    assert inputs["advantages"] == [0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 0.0, 0.0, 4.0, 5.0, 0.0]


def test_a_datum_without_a_prompt_must_not_train_its_first_token() -> None:
    with pytest.raises(ValueError, match="nothing predicts"):
        tinker.datum_fields(small(prompt_ids=[]))
    masked = small(prompt_ids=[], response_mask=[0, 0, 0, 0, 0, 1, 1, 0])
    inputs = tinker.datum_fields(masked)["loss_fn_inputs"]
    assert inputs["weights"] == [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0]
    assert {len(values) for values in inputs.values()} == {7}


def test_a_datum_that_would_be_wrong_is_refused() -> None:
    with pytest.raises(ValueError, match="images"):
        tinker.datum_fields(small(multi_modal_data=(Media("image", b"x"),)))
    with pytest.raises(ValueError, match="2 advantages for 8"):
        tinker.datum_fields(small(), advantage=[1.0, 2.0])
    fields = tinker.datum_fields(small(response_logprobs=None))
    with pytest.raises(ValueError, match="needs logprobs"):
        tinker.loss_inputs(fields, "ppo")
    assert set(tinker.loss_inputs(fields, "cross_entropy")) == {"target_tokens", "weights"}


@needs_tinker
@pytest.mark.parametrize("loss_fn", ["cross_entropy", "importance_sampling", "ppo"])
def test_the_real_datum_holds_the_same(loss_fn: str) -> None:
    datum = tinker.datum(small(), loss_fn=loss_fn, advantage=0.5)
    fields = tinker.datum_fields(small(), advantage=0.5)
    assert datum.model_input.to_ints() == small().ids[:-1]
    for name, values in tinker.loss_inputs(fields, loss_fn).items():
        tensor = datum.loss_fn_inputs[name]
        assert tensor.tolist() == pytest.approx(values) and tensor.shape == [11]
        assert tensor.dtype == ("int64" if name == "target_tokens" else "float32")


def test_without_the_sdk_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tinker", None)
    with pytest.raises(MissingExtraError, match=r"uni-agent\[tinker\]"):
        tinker.datum(small(), loss_fn="ppo")


# ---------------------------------------------------------------------------------------------- rows


def test_rows_make_a_table_that_reads_back(tmp_path: Path) -> None:
    odd = small(id="s/2", session_id="\ud800", response_logprobs=None, reward=None, continues="s/1")
    made = [rows.token_row(small()), rows.token_row(odd)]
    assert [list(row) for row in made] == [list(rows.SCHEMA)] * 2
    table: Any = pyarrow.Table.from_pylist(made, schema=rows.arrow_schema())  # pyright: ignore
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")  # pyright: ignore
    back: Any = pyarrow.parquet.read_table(tmp_path / "t.parquet").to_pylist()  # pyright: ignore
    assert back == made and back[1]["session_id"] == "\\ud800"
    assert (made[0]["tokens_sampled"], made[0]["tokens_trained"]) == (5, 5)


def test_a_row_loses_nothing_of_its_trajectory() -> None:
    t = small(dropped={"aborted": 1}, tools=({"type": "function"},), multi_modal_data=(Media("image", b"x"),))
    row = rows.token_row(t)
    data = {**json.loads(row["detail"]), "id": row.pop("trajectory_id"), **row}
    data["accounting"] = {"dropped": data["dropped"]}
    assert Trajectory.from_json(data) == t


def test_a_json_line_is_strict() -> None:
    t = small(response_logprobs=[-math.inf] + [0.0] * 7, reward_info={"x": math.nan})
    line = rows.json_line(t)
    assert "\n" not in line and line.isascii()
    data = json.loads(line, parse_constant=pytest.fail)
    assert data["response_logprobs"][0] is None
    assert json.loads(data["detail"])["reward_info"] == {"x": None}


# ---------------------------------------------------------------------------------------------- messages


def test_only_messages_that_are_trained_here_carry_the_flag() -> None:
    t = small(response_mask=[0, 0, 0, 0, 0, 1, 1, 0], tools=({"type": "function"},))
    example = sft_example(t)
    assert [(m["role"], m["train"]) for m in example["messages"]] == [
        ("system", False),
        ("user", False),
        ("assistant", False),
        ("user", False),
        ("assistant", True),
    ]
    assert example["tools"] == [{"type": "function"}] and example["reward"] == 0.5
    weighted = sft_example(t, flag="weight")["messages"]
    assert [m.get("weight") for m in weighted] == [None, None, 0, None, 1]
    assert "tools" not in sft_example(small())


def test_a_turn_that_is_masked_in_part_does_not_count() -> None:
    t = small(response_mask=[1, 1, 0, 0, 0, 1, 1, 0])
    assert [m["train"] for m in sft_example(t)["messages"]] == [False, False, False, False, True]


def test_images_are_data_urls_in_their_places() -> None:
    image = Media("image", b"\x00\xff", "image/jpeg")
    message = Message("user", "ab", parts=("a", image, "b"))
    content = sft_example(small(messages=(message,), message_turns=(None,)))["messages"][0]["content"]
    url = "data:image/jpeg;base64," + base64.b64encode(b"\x00\xff").decode()
    assert content == [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "b"},
    ]


def test_messages_without_their_turns_are_refused() -> None:
    with pytest.raises(ValueError, match="which turn"):
        sft_example(small(message_turns=()))
