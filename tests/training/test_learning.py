"""The benchmark of training, short: one seed, few steps, and the held-out reward has to rise."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("verl_installed")]


def test_the_quickstart_policy_learns_what_it_is_rewarded_for(tmp_path: Path) -> None:
    benchmark: Any = importlib.import_module("benchmarks.train_cpu")
    short = (
        "train.steps=4",
        "train.learning_rate=4.0e-4",
        "train.validation.every=4",
        "train.validation.samples_per_task=1",
    )
    found = benchmark.train(tmp_path / "run", 0, overrides=short)
    assert found["episodes_per_evaluation"] == 64
    assert 0.1 <= found["before"] <= 0.45
    assert found["after"] >= found["before"] + 0.05
    assert found["logprob_gap"] < 1e-3
    assert len(found["kinds"]) == 8
