"""`uni-agent export --format verl`: a run's tasks to train on, and its token chains in verl's fields."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.store.helpers import chain, record, turn
from uni_agent.cli import main
from uni_agent.data import read_verl_parquet
from uni_agent.store import RunStore
from uni_agent.types import ExitReason, RolloutKey, Task, TaskFile

TASKS = [
    Task(id="b/2", prompt="Do b.", files={"x": TaskFile(text="y", mode=0o755)}, metadata={"kind": [1, None]}),
    Task(
        id="a#1",
        prompt=[{"role": "user", "content": "Do a."}],
        env={"A": "1"},
        setup="true",
        overrides={"reward": {"type": "dummy"}},
        base_dir="somewhere",
    ),
]


def run_of(folder: Path, tasks: list[Task]) -> Path:
    with RunStore.create(folder, name="demo", config={}, digest="d") as store:
        for number, task in enumerate(tasks):
            store.task(task)
            for sample, ending in enumerate(
                [record(score=float(number)), record(ExitReason.SANDBOX_ERROR, None), record(score=1.0, trusted=False)]
            ):
                rollout = store.rollout_started(RolloutKey(task.id, sample), 0)
                store.turn(rollout, turn())
                store.chains(rollout, [chain(), chain([5], [], "r-2"), chain([5], [6, 4], "r-3")])
                store.finished(rollout, ending)
    return folder


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return run_of(tmp_path / "run", TASKS)


def export(run: Path, form: str, target: Path, *more: str) -> list[dict[str, Any]]:
    assert main(["export", str(run), *more, "--format", form, "-o", str(target)]) == 0
    return importlib.import_module("pyarrow.parquet").read_table(target).to_pylist()


def test_the_tasks_of_a_run_are_rows_to_train_on(run_dir: Path, tmp_path: Path) -> None:
    rows = export(run_dir, "verl", tmp_path / "t.parquet")
    assert list(read_verl_parquet(tmp_path / "t.parquet")) == TASKS
    assert {row["data_source"] for row in rows} == {"demo"}
    assert len(export(run_dir, "verl", tmp_path / "t.parquet", "--resolved")) == 2
    assert main(["export", str(run_dir), "--to", "verl", "-o", str(tmp_path / "same.parquet")]) == 0
    assert list(read_verl_parquet(tmp_path / "same.parquet")) == TASKS


def test_token_chains_have_verls_fields_and_only_what_is_trusted(run_dir: Path, tmp_path: Path) -> None:
    rows = export(run_dir, "verl-tokens", tmp_path / "t.parquet")
    assert [(row["uid"], row["session"], row["index"]) for row in rows] == [
        (task.id, 0, index) for task in TASKS for index in (0, 1, 2)
    ]
    row = rows[3]
    assert (row["prompts"], row["responses"], row["response_mask"]) == ([1, 2, 3], [7, 8, 9], [1, 1, 0])
    assert row["rollout_log_probs"] == [-0.5, -0.5, 0.0]
    assert row["rm_scores"] == [0.0, 0.0, 1.0]
    assert all(sum(row["rm_scores"]) == (0.0 if row["uid"] == "b/2" else 1.0) for row in rows)
    for row in rows:
        sizes = {len(row[key]) for key in ("responses", "response_mask", "rollout_log_probs", "rm_scores")}
        assert len(sizes) == 1
    extra = json.loads(row["extra_fields"])
    assert extra["uni_agent"]["trusted"] is True
    assert extra["uni_agent"]["turns"] == [[0, 0, 2]]
    assert extra["uni_agent"]["weight_spans"] == [["step-1", 0, 2]]
    assert (extra["uni_agent"]["chain"], extra["uni_agent"]["chains"]) == (2, 3)
    assert extra["reward_extra_info"] == {"tests": 1.0}


def test_masked_secrets_are_not_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path / "run", [Task(id="t", prompt="x", env={"API_KEY": "sk-1"})])
    target = tmp_path / "t.parquet"
    assert main(["export", str(run), "--format", "verl", "-o", str(target)]) == 2
    told = capsys.readouterr().err
    assert "task 't': env.API_KEY: holds a secret, which a run does not keep" in told
    assert "uni-agent data to-verl" in told
    assert not target.exists()


def test_sessions_are_refused_with_the_format_to_use(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(run_dir), "--merged", "--format", "verl"]) == 2
    assert "--format verl is for a run's rollouts; of sessions, use parquet" in capsys.readouterr().err


def test_an_empty_run_has_no_tasks_to_train_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(tmp_path / "run", [])
    assert main(["export", str(run), "--format", "verl", "-o", str(tmp_path / "t.parquet")]) == 2
    assert "there are no tasks to write" in capsys.readouterr().err
