"""What is recorded together stands together."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.store.helpers import CONFIG, chain, record
from uni_agent.errors import StoreError
from uni_agent.store import RunReader, RunStore
from uni_agent.store.changes import ChainSnapshot
from uni_agent.types import RolloutKey, Task


def create(path: Path) -> RunStore:
    return RunStore.create(path, name="x", config=CONFIG, digest="d", clock=lambda: 5.0)


def test_a_step_that_is_refused_leaves_nothing_of_itself(tmp_path: Path) -> None:
    store = create(tmp_path)
    with store.together(at=7.0):
        store.event("good")
        store.event("also good", "12")
    with store.together():
        store.event("spoiled")
        store.rollout_started(RolloutKey("t", 2**70), 0)  # no column holds that
    store.event("alone")
    with pytest.raises(StoreError, match="rejected"):
        store.flush()
    with pytest.raises(StoreError):
        store.close()
    with RunReader(tmp_path) as run:
        events = [(event.kind, event.time) for event in run.events(after=1)]
    assert events == [("good", 7.0), ("also good", 7.0), ("alone", 5.0), ("run_ended", 5.0)]


def test_chains_may_be_handed_over_as_they_were(tmp_path: Path) -> None:
    with create(tmp_path) as store:
        rollout = store.rollout_started(RolloutKey("t", 0), 0)
        store.chains(rollout, [ChainSnapshot.of(chain())])
        store.finished(rollout, record())
        assert store.task_hash("t") is None
        store.task(Task(id="t", prompt="x"))
        assert store.task_hash("t")
    with RunReader(tmp_path) as run:
        assert [found.response_ids for found in run.chains(rollout)] == [[7, 8, 9]]


def test_an_unfinished_rollout_can_be_gone_on_with_after_a_resume(tmp_path: Path) -> None:
    store = create(tmp_path)
    rollout = store.rollout_started(RolloutKey("t", 0), 0)
    store.close("interrupted")
    with RunStore.resume(tmp_path, config=CONFIG, digest="d") as store:
        with pytest.raises(StoreError, match="never started"):
            store.finished(rollout, record())
        store.adopt(rollout, RolloutKey("t", 0))
        store.finished(rollout, record())
    with RunReader(tmp_path) as run:
        assert run.rollout(rollout).state == "done"
