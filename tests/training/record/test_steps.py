"""The trainer's metrics in the run's store, and how a training run is shown."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import pytest

from tests.store.helpers import record
from uni_agent.cli import show
from uni_agent.store import RunReader, RunStore
from uni_agent.training.record import JournalCollector, RolloutJournal, StepTail
from uni_agent.types import ExitReason, RolloutKey, Task

CONFIG = {"train": {"validation": {"group_by": "kind"}}}


def line(step: object, **metrics: object) -> bytes:
    return json.dumps({"step": step, "data": metrics}).encode() + b"\n"


def create(path: Path) -> RunStore:
    return RunStore.create(path, name="training", config=CONFIG, digest="d")


def resume(path: Path) -> RunStore:
    return RunStore.resume(path, config=CONFIG, digest="d")


def test_lines_are_read_as_they_are_finished(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    tail = StepTail(path)
    assert tail.poll() == [] and tail.source is None
    path.write_bytes(line(1, loss=0.5)[:10])
    assert tail.poll() == []
    path.write_bytes(line(1, loss=0.5) + line(2, loss=math.nan, odd=None) + line(3)[:-1])
    first, second = tail.poll()
    assert (first.step, first.metrics) == (1, {"loss": 0.5})
    assert math.isnan(second.metrics["loss"]) and second.metrics["odd"] is None
    assert tail.poll() == []
    assert [found.step for found in tail.poll(final=True)] == [3]


def test_lines_that_hold_no_step_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_bytes(
        b"\xff\n" + b"[" * 9000 + b"\n[]\n" + line("x") + line(2**80) + b"\n" + line(7.0, a=1) + line(1e400)
    )
    tail = StepTail(path)
    assert [found.step for found in tail.poll()] == [7]
    assert tail.bad == 7


def test_a_file_that_is_written_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_bytes(line(1, a=1) + line(2, a=1))
    tail = StepTail(path)
    assert len(tail.poll()) == 2
    path.write_bytes(line(2, a=2) + line(3, a=2) + line(4, a=2))
    assert [found.step for found in tail.poll()] == [2, 3, 4]


def test_steps_that_are_done_again_count_once_and_stay_readable(tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    first.write_bytes(line(0, val=0.1) + line(1, loss=1.0) + line(2, loss=2.0) + line(2, val=0.2) + line(3, loss=3.0))
    with create(tmp_path) as store:
        JournalCollector(tmp_path, store, StepTail(first)).poll()
    with resume(tmp_path) as store:  # the same file again, after a crash
        JournalCollector(tmp_path, store, StepTail(first)).close()
    with RunReader(tmp_path) as reader:
        assert [(s.step, s.metrics) for s in reader.train_steps()] == [
            (0, {"val": 0.1}),
            (1, {"loss": 1.0}),
            (2, {"loss": 2.0, "val": 0.2}),
            (3, {"loss": 3.0}),
        ]
    first.write_bytes(first.read_bytes() + line(4, unread=1))
    with resume(tmp_path) as store:
        collector = JournalCollector(tmp_path, store, [StepTail(first), StepTail(second)])
        collector.rewind(2)
        second.write_bytes(line(2, val=0.25) + line(3, new=math.inf))
        collector.close()
    with RunReader(tmp_path) as reader:
        assert [(s.step, s.metrics) for s in reader.train_steps()] == [
            (0, {"val": 0.1}),
            (1, {"loss": 1.0}),
            (2, {"loss": 2.0, "val": 0.25}),
            (3, {"new": None}),
        ]
        assert [event.data["step"] for event in reader.events(kind="train_step")] == [0, 1, 2, 2, 3, 4, 2, 3]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    steps = tmp_path / "steps.jsonl"
    steps.write_bytes(line(1, **{"timing_s/step": 2.5, "actor/pg_loss": math.nan}) + line(2, other=1))
    with create(tmp_path) as store, RolloutJournal(tmp_path) as journal:
        endings = (
            (0, "validation", 0.0, ExitReason.FINISHED),
            (0, "validation", 1.0, ExitReason.FINISHED),
            (1, "train", 1.0, ExitReason.FINISHED),
            (1, "train", 0.5, ExitReason.TOKEN_LIMIT),
            (1, "train", None, ExitReason.SANDBOX_ERROR),
            (3, "train", 1.0, ExitReason.FINISHED),
        )
        for sample, (step, phase, score, reason) in enumerate(endings):
            task = Task(id=f"t{sample}", prompt="x", metadata={"kind": f"\x1bk{sample % 2}"})
            about = {"phase": phase, "step": step, "uid": "u", "session": sample}
            log = journal.open_rollout(RolloutKey(task.id, sample), 0, task, **about)
            log.finished(record(reason, score))
        journal.open_rollout(RolloutKey("t3", 99), 0, Task(id="t9", prompt="x"), phase="train", step=3)
        journal.flush()
        JournalCollector(tmp_path, store, StepTail(steps)).poll()
    return tmp_path


def call(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    show.add_arguments(parser)
    return show.execute(parser.parse_args(argv))


def test_show_prints_the_steps_of_a_training_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(str(run)) == 0
    lines = [text.split() for text in capsys.readouterr().out.splitlines()]
    assert [
        "1",
        "3",
        "0.750",
        "100.0%",
        "2.0",
        "2.5",
        "finished",
        "1,",
        "sandbox_error",
        "1,",
        "token_limit",
        "1",
    ] in lines
    assert ["2", "-", "-", "-", "-", "-", "-"] in lines
    assert ["3", "1", "1.000", "100.0%", "2.0", "-", "finished", "1,", "running", "1"] in lines
    assert ["0", "\\u001bk0", "1", "0.000", "0.0%"] in lines
    assert ["0", "\\u001bk1", "1", "1.000", "100.0%"] in lines


def test_show_json_has_all_of_a_training_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(str(run), "--json", "--failed") == 0
    data = json.loads(capsys.readouterr().out)
    training = data["training"]
    assert [row["step"] for row in training["steps"]] == [1, 2]
    assert training["steps"][0]["metrics"] == {"timing_s/step": 2.5, "actor/pg_loss": None}
    assert [(row["step"], row["phase"], row["rollouts"]) for row in training["rollouts"]] == [
        (0, "validation", 2),
        (1, "train", 3),
        (3, "train", 1),
    ]
    assert training["rollouts"][1]["exit_reasons"] == {"finished": 1, "sandbox_error": 1, "token_limit": 1}
    assert [(row["group"], row["reward_mean"]) for row in training["validation"]] == [("\x1bk0", 0.0), ("\x1bk1", 1.0)]
    assert data["failed"][0]["training"] == {"step": 0, "phase": "validation", "uid": "u", "session": 0}


def test_a_run_without_training_is_shown_as_ever(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create(tmp_path).close()
    assert call(str(tmp_path), "--json") == 0
    assert "training" not in json.loads(capsys.readouterr().out)
    assert call(str(tmp_path)) == 0
    assert "step" not in capsys.readouterr().out
    with RunReader(tmp_path) as reader:
        assert reader.trains is False
        assert reader.train_steps() == reader.step_rollouts() == reader.validation_scores("x") == []
        assert reader.places(["1"]) == {} and reader.rollouts(step=1) == []
