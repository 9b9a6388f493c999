"""The store while it is being killed, watched, and starved of disk."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.store.busy_writer import expected_ids
from tests.store.helpers import CONFIG
from uni_agent.errors import ConfigError
from uni_agent.store import RunReader, RunStore
from uni_agent.types import RolloutKey

ROOT = Path(__file__).parents[2]


@contextmanager
def busy_writer(run_dir: Path) -> Generator[subprocess.Popen[str]]:
    """A process that writes to `run_dir` until it is killed; ready when it has written something."""
    command = [sys.executable, "-m", "tests.store.busy_writer", str(run_dir)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def run_python(code: str, *args: str, timeout: float = 60) -> str:
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=timeout).stdout


def assert_whole(run_dir: Path) -> int:
    """Every rollout that ended has all that belongs to it. Returns how many there are."""
    count = 0
    with RunReader(run_dir) as reader:
        for row in reader.each_rollout(state="done"):
            number = int(row.answer)
            assert row.sample == number
            assert [turn.index for turn in reader.turns(row.id)] == list(range(number % 5 + 1))
            chains = reader.chains(row.id)
            assert [chain.response_ids[:-1] for chain in chains] == [
                expected_ids(number, index) for index in range(number % 3 + 1)
            ]
            assert all(len(chain.response_mask) == len(chain.response_ids) for chain in chains)
            count += 1
        assert count == reader.summary().rollouts
    return count


@pytest.mark.slow
def test_a_run_killed_again_and_again_loses_nothing_committed_and_counts_nothing_twice(tmp_path: Path) -> None:
    rng = random.Random(7)
    run_dir = tmp_path / "run"
    safe = 0
    for _ in range(6):
        with busy_writer(run_dir) as process:
            assert process.stdout is not None
            safe = int(process.stdout.readline())
            time.sleep(rng.uniform(0.0, 0.4))
            process.send_signal(signal.SIGKILL)
            process.wait()
            safe = max([safe, *(int(line) for line in process.stdout.read().splitlines() if line.strip())])
        assert assert_whole(run_dir) >= safe
        with RunReader(run_dir) as reader:
            assert reader.summary().state == "interrupted"
    store = RunStore.resume(run_dir, config=CONFIG, digest="d1")
    completed = store.completed()
    assert completed >= {RolloutKey("t", number) for number in range(safe)}
    store.close()
    with RunReader(run_dir) as reader:
        assert reader.summary().rollouts == len(completed)
        assert reader.summary().unfinished == 0


def test_readers_see_whole_rollouts_while_they_are_written(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with busy_writer(run_dir) as process:
        assert process.stdout is not None
        process.stdout.readline()
        seq, before = 0, 0
        with RunReader(run_dir) as reader:
            for _ in range(15):
                summary = reader.summary()
                assert summary.state == "running"
                assert summary.rollouts == sum(summary.exit_reasons.values()) >= before
                before = summary.rollouts
                for row in reader.rollouts(before="", state="done", limit=5):
                    assert len(reader.chains(row.id)) == int(row.answer) % 3 + 1
                    assert len(reader.turns(row.id)) == row.turns
                events = reader.events(after=seq, limit=10_000)
                assert [event.seq for event in events] == list(range(seq + 1, seq + 1 + len(events)))
                seq += len(events)
                time.sleep(0.02)
        assert before > 0
        with pytest.raises(ConfigError, match=f"being written by process {process.pid}"):
            RunStore.resume(run_dir, config=CONFIG, digest="d1")


def test_a_second_writer_in_the_same_process_is_refused(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, name="x", config={}, digest="d")
    with pytest.raises(ConfigError, match=f"being written by process {os.getpid()}"):
        RunStore.resume(tmp_path, config={}, digest="d")
    with pytest.raises(ConfigError, match="being written"):
        RunStore.create(tmp_path, name="x", config={}, digest="d")
    with RunReader(tmp_path) as reader:
        assert reader.summary().state == "running"
    store.close()
    RunStore.resume(tmp_path, config={}, digest="d").close()


FORK_AND_DIE = """
import os, pathlib, signal, sys, time
from uni_agent.store import RunStore
store = RunStore.create(pathlib.Path(sys.argv[1]), name="x", config={}, digest="d")
store.flush()
child = os.fork()
if child == 0:
    os.close(1)
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_forked_child_that_outlives_the_writer_does_not_hold_the_run(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORK_AND_DIE, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True, timeout=60)
    child = int(done.stdout)
    try:
        with RunReader(tmp_path) as reader:
            assert reader.summary().state == "interrupted"
        RunStore.resume(tmp_path, config={}, digest="d").close()
    finally:
        os.kill(child, signal.SIGKILL)


FULL_DISK = """
import json, pathlib, resource, sys, time
from tests.store.helpers import record, turn
from uni_agent.errors import StoreError
from uni_agent.store import RunStore
from uni_agent.types import RolloutKey

recovers = sys.argv[2] == "recovers"
store = RunStore.create(pathlib.Path(sys.argv[1]), name="x", config={}, digest="d")
store.finished(store.rollout_started(RolloutKey("first", 0), 0), record())
store.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
slowest = 0.0
for number in range(100):
    began = time.perf_counter()
    rollout = store.rollout_started(RolloutKey("t", number), 0)
    store.turn(rollout, turn(0, "y" * 20_000))
    store.finished(rollout, record())
    slowest = max(slowest, time.perf_counter() - began)
out = {"slowest": slowest}
try:
    store.flush(30)
except StoreError as error:
    out["flush"] = str(error)
out["error"] = type(store.error).__name__
out["pending"] = store.pending
if recovers:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    store.flush(30)
    out["error_after"] = store.error
try:
    store.close(timeout=0.5)
except StoreError as error:
    out["close"] = str(error)
print(json.dumps(out))
"""


def test_a_full_disk_stops_no_rollout_and_what_waited_is_written_when_there_is_room(tmp_path: Path) -> None:
    out = json.loads(run_python(FULL_DISK, str(tmp_path), "recovers"))
    assert "records could not be written" in out["flush"]
    assert out["error"] == "OperationalError"
    assert out["pending"] > 0
    assert out["slowest"] < 1.0
    assert out["error_after"] is None
    assert "close" not in out
    with RunReader(tmp_path) as reader:
        assert reader.summary().rollouts == 101
        assert reader.summary().state == "done"


def test_what_a_full_disk_swallowed_is_said_at_close(tmp_path: Path) -> None:
    out = json.loads(run_python(FULL_DISK, str(tmp_path), "stays full"))
    assert "records could not be written (given up at close" in out["close"]
    with RunReader(tmp_path) as reader:
        summary = reader.summary()
        assert summary.state == "interrupted"
        assert 1 <= summary.rollouts < 101
    store = RunStore.resume(tmp_path, config={}, digest="d")
    assert RolloutKey("first", 0) in store.completed()
    store.close()
