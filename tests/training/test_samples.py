"""Which sample of the run a row of verl's asks for, and how counts of failures add up over samples."""

from __future__ import annotations

from typing import Any

import pytest

from uni_agent.pipeline import RunConfig
from uni_agent.training.algorithms.context import Row
from uni_agent.training.algorithms.metrics import Sides, batch_metrics
from uni_agent.training.config import TrainConfig
from uni_agent.training.samples import Sample

RUN = RunConfig(samples_per_task=4)
VALIDATION = {"data": {"type": "jsonl", "path": "tasks.jsonl"}, "samples_per_task": 3}


def row(**fields: Any) -> dict[str, Any]:
    return {"uid": "u", "global_steps": 2, "session_id": 1, **fields}


@pytest.mark.parametrize(
    ("info", "phase"),
    [
        ({"split": "train"}, "train"),
        ({}, "train"),
        (None, "train"),
        ({"split": "validation"}, "validation"),
        ({"split": "test"}, "validation"),
    ],
)
def test_the_split_says_the_phase_and_none_at_all_trains(info: Any, phase: str) -> None:
    assert Sample.of(row(extra_info=info), TrainConfig(steps=1), RUN).phase == phase


def test_samples_of_a_task_are_numbered_through_the_run_training_before_validation() -> None:
    train = TrainConfig.model_validate({"steps": 1, "samples_per_task": 5, "validation": VALIDATION})
    first = Sample.of(row(), train, RUN)
    assert first == Sample("train", 2, "u", 1, width=8, training=5)
    assert first.key("t").sample == 2 * 8 + 1
    assert Sample.of(row(), train, RUN, phase="validation").key("t").sample == 2 * 8 + 5 + 1
    assert Sample.of(row(), None, RUN).width == 4
    assert Sample.of(row(), TrainConfig(steps=1), RUN).width == 4


def test_a_sample_that_nobody_numbers_draws_its_number() -> None:
    drawn = [Sample.of({"uid": "u"}, TrainConfig(steps=1), RUN) for _ in range(8)]
    assert len({sample.session for sample in drawn}) == 8
    assert all(sample.step == 0 and sample.session < sample.training < sample.width for sample in drawn)


def test_counts_of_failures_add_up_over_samples() -> None:
    told = [{"failures_dropped": 2.0, "turns": 1.0}, {}, {"failures_dropped": 1.0, "failures_retried": 4.0}]
    rows = [Row.of(f"g_{i}_0", {}, {"trusted": True}) for i in range(3)]
    sides = [{"metrics": metrics, "exit_reason": "finished"} for metrics in told]
    found = batch_metrics(Sides(rows, sides, [0.0, 1.0, 0.0]), group_size=3, version=1, counts={})
    assert {name: value for name, value in found.items() if "failures" in name} == {
        "uni_agent/failures/dropped": 3.0,
        "uni_agent/failures/retried": 4.0,
    }
