"""Journals of gateways in the run's file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.store.helpers import CONFIG
from uni_agent.gateway.journal import Journal, read_journal
from uni_agent.store import RunReader, RunStore
from uni_agent.types import RolloutKey, Task


@dataclass(frozen=True)
class Entry:
    seq: int
    session_id: str = "s"
    kind: str = "turn"
    time: float = 50.0
    data: dict[str, Any] = field(default_factory=dict[str, Any])


def create(path: Path) -> RunStore:
    return RunStore.create(path, name="demo", config=CONFIG, digest="d", clock=lambda: 10.0)


def test_a_journal_is_merged_exactly_and_only_once(tmp_path: Path) -> None:
    odd = {"text": "\ud83d" + "\ude00\x00", "numbers": [float("nan"), -0.0, 2**80, 1e-320]}
    with Journal(tmp_path / "j") as journal:
        for n in range(450):
            journal.append("turn", f"s{n % 2}", {"n": n, **odd})
        with create(tmp_path / "run") as store:
            store.merge(journal.source, read_journal(tmp_path / "j"))
            journal.append("phase", "s0", {"phase": "finalized"})
            store.merge(journal.source, read_journal(tmp_path / "j"))
            store.merge("another", [Entry(0, "s0")])
        with RunReader(tmp_path / "run") as run:
            mine = [e for e in run.journal("s0") if e.source == journal.source]
            assert [e.seq for e in mine] == [*range(0, 450, 2), 450]
            assert repr(mine[0].data) == repr({"n": 0, **odd}) and mine[-1].kind == "phase"
            assert len(run.journal("s0")) == 227 and len(run.journal("s1")) == 225
            assert run.journal("nobody") == []


def test_merging_goes_on_after_a_resume(tmp_path: Path) -> None:
    with create(tmp_path) as store:
        store.merge("a", [Entry(0), Entry(1)])
    with RunStore.resume(tmp_path, config=CONFIG, digest="d") as store:
        store.merge("a", [Entry(1, data={"changed": True}), Entry(2)])
    with RunReader(tmp_path) as run:
        assert [(e.seq, e.data) for e in run.journal("s")] == [(0, {}), (1, {}), (2, {})]


def test_a_session_belongs_to_the_attempt_that_was_running(tmp_path: Path) -> None:
    times = iter([0.0, 10.0, 100.0, *[200.0] * 9])
    store = RunStore.create(tmp_path, name="demo", config=CONFIG, digest="d", clock=lambda: next(times))
    store.task(Task(id="t", prompt="go"))
    first = store.rollout_started(RolloutKey("t", 0), 0)
    second = store.rollout_started(RolloutKey("t", 0), 1)
    of_run = {"metadata": {"task_id": "t", "sample": 0}}
    odd: list[Any] = [None, 3, {}, {"task_id": "t"}, {"task_id": 1, "sample": 0}, {"task_id": "t", "sample": 2**64}]
    store.merge("a", [Entry(0, "early", "session", 50.0, of_run), Entry(1, "late", "session", 150.0, of_run)])
    store.merge("b", [Entry(n, f"free{n}", "session", 300.0, {"metadata": odd[n]}) for n in range(len(odd))])
    store.close()
    with RunReader(tmp_path) as run:
        found = [(s.session_id, s.rollout) for s in run.sessions()]
    assert found == [("early", first), ("late", second), *((f"free{n}", None) for n in range(len(odd)))]


def test_a_run_without_journals_has_no_sessions(tmp_path: Path) -> None:
    create(tmp_path).close()
    with RunReader(tmp_path) as run:
        assert run.sessions() == [] and run.journal("s") == []


def test_data_that_is_not_json_is_refused(tmp_path: Path) -> None:
    with create(tmp_path) as store, pytest.raises(ValueError, match="entry 1 of a is not JSON"):
        store.merge("a", [Entry(1, data={"x": {1}})])
