"""Rollouts of workers in the run's store: complete, once each, and never running for ever."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.store.helpers import CONFIG, chain, record, turn
from tests.training.record.worker import TURNS, start, work
from uni_agent.errors import StoreError
from uni_agent.store import RunReader, RunStore
from uni_agent.store.records import RolloutRow
from uni_agent.training.record import JournalCollector, RolloutJournal, StepTail
from uni_agent.types import ExitReason, RewardResult, RolloutKey, Task

ROOT = Path(__file__).parents[3]


def create(path: Path) -> RunStore:
    return RunStore.create(path, name="training", config=CONFIG, digest="d")


def resume(path: Path) -> RunStore:
    return RunStore.resume(path, config=CONFIG, digest="d")


def worker(folder: Path, first: int, count: int, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.training.record.worker", str(folder), str(first), str(count), *more]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def read_to(process: subprocess.Popen[str], wanted: str) -> None:
    assert process.stdout is not None
    while (line := process.stdout.readline().strip()) != wanted:
        assert line, "the worker ended early"


def rows(run: Path, **filters: Any) -> list[RolloutRow]:
    with RunReader(run) as reader:
        return list(reader.each_rollout(**filters))


def assert_whole(run: Path) -> list[int]:
    """Every finished rollout has all that belongs to it; their numbers."""
    with RunReader(run) as reader:
        done = list(reader.each_rollout(exit_reason="finished"))
        for row in done:
            assert row.answer == str(row.sample)
            assert [found.index for found in reader.turns(row.id)] == list(range(TURNS))
            assert [len(found.response_ids) for found in reader.chains(row.id)] == [21]
        events = reader.events(limit=10**6)
    for kind in ("rollout_started", "train_rollout", "rollout_finished", "note"):
        of_kind = [event.rollout for event in events if event.kind == kind]
        assert len(of_kind) == len(set(of_kind)), f"an event {kind} was applied twice"
    return sorted(row.sample for row in done)


# ---------------------------------------------------------------------------------------------- the way through


def test_rollouts_arrive_as_they_were_reported(tmp_path: Path) -> None:
    with create(tmp_path) as store, RolloutJournal(tmp_path / "journals", source="w/0") as journal:
        collector = JournalCollector(tmp_path / "journals", store)
        log = start(journal, 3)
        log.turn(turn(0, "first"))
        journal.flush()
        assert collector.poll() == 4  # the process, the task, the start, the turn
        store.flush()
        (row,) = rows(tmp_path)
        assert (row.task_id, row.sample, row.state, row.exit_reason) == ("t3", 3, "starting", None)
        log.state("grading")
        log.event("note", kind_of="x")
        log.finished(record(turns=1, answer="yes"), [chain(), chain([5], [6], "second")])
        log.turn(turn(1, "too late"))
        journal.flush()
        assert collector.poll() == 3
        assert collector.poll() == 0
    (row,) = rows(tmp_path, step=1, phase="train")
    assert (row.state, row.exit_reason, row.score, row.answer, row.turns) == ("done", "finished", 1.0, "yes", 1)
    assert row.tokens == {"sampled": 10, "trained": 6, "masked": 1, "dropped": 3}
    assert [message["content"] for message in row.opening] == ["be good", "do it"]
    with RunReader(tmp_path) as reader:
        assert [found.message["content"] for found in reader.turns(row.id)] == ["first"]
        assert [found.request_id for found in reader.chains(row.id)] == ["r-1", "second"]
        assert reader.chains(row.id)[0].response_logprobs == [-0.5, -0.5, 0.0]
        (event,) = reader.events(kind="train_rollout")
        assert event.rollout == row.id
        assert event.data == {"phase": "train", "step": 1, "uid": "u0", "session": 3}
        place = reader.places([row.id, "99", "odd"])[row.id]
        assert (place.step, place.phase, place.uid, place.session) == (1, "train", "u0", 3)
        assert reader.task("t3")["metadata"] == {"kind": "k1"}
        assert rows(tmp_path, step=2) == rows(tmp_path, phase="validation") == []


def test_the_times_are_those_of_the_worker(tmp_path: Path) -> None:
    times = iter([float(n) for n in range(1000, 1100)])
    with create(tmp_path) as store, RolloutJournal(tmp_path, clock=lambda: next(times)) as journal:
        work(journal, 0)
        journal.flush()
        JournalCollector(tmp_path, store).poll()
    (row,) = rows(tmp_path)
    assert (row.started, row.ended) == (1002.0, 1008.0)


def test_hostile_content_passes(tmp_path: Path) -> None:
    odd = "\ud800 \0 \u2028 \x1b[2J " + "é" * 10
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    reward = RewardResult(math.nan, False, True, {"part": math.inf}, log=odd * 10_000, error=odd, turn_scores=(0.5,))
    task = Task(id="t", prompt="go", metadata={"a\0": math.nan, "b": 2**80, "c": deep[0][0]})
    with create(tmp_path) as store, RolloutJournal(tmp_path, source=f"../{odd}") as journal:
        collector = JournalCollector(tmp_path, store)
        log = journal.open_rollout(RolloutKey(odd, 0), 0, task, phase=odd, step=2**70, uid=odd, session="x", more=deep)
        log.turn(turn(0, odd, odd + "y" * 3_000_000, odd))
        log.event(odd, value=object(), deep=deep, data=b"\xff")
        broken = chain()
        broken.response_mask.append(1)
        log.finished(record(reward=reward, error=odd, answer=odd), [broken, chain()])
        journal.open_rollout(RolloutKey("t", 2**70), 0, task).state("running")
        journal.flush()
        collector.poll()
        assert collector.close().refused == 1  # a sample that no column holds
        store.flush()
    (row,) = rows(tmp_path)
    assert (row.state, row.exit_reason, row.score, row.trusted) == ("done", "finished", None, True)
    assert row.reward_breakdown == {"part": None}
    assert row.error.startswith("\\ud800 \\x00 \u2028")
    with RunReader(tmp_path) as reader:
        (found,) = reader.turns(row.id)
        assert found.message["content"].startswith("\\ud800 \0")
        assert len(found.results[0]["output"]) > 3_000_000
        assert len(reader.chains(row.id)) == 1
        assert len(reader.events(kind="chain_refused")) == 1
        assert json.dumps(reader.step_rollouts()[0].phase, allow_nan=False)


# ---------------------------------------------------------------------------------------------- tasks


def test_a_validation_task_with_the_id_of_another_keeps_its_rollouts(tmp_path: Path) -> None:
    training, validation = Task(id="t", prompt="one"), Task(id="t", prompt="two")
    with create(tmp_path) as store:
        for part in range(2):
            with RolloutJournal(tmp_path) as journal:
                collector = JournalCollector(tmp_path, store)
                for sample, task in enumerate((training, validation, training, validation)):
                    journal.open_rollout(RolloutKey("t", 10 * part + sample), 0, task).finished(record())
                journal.flush()
            collector.poll()
    found = rows(tmp_path)
    names = [row.task_id for row in found]
    assert names[:2] == names[2:4] == names[4:6]
    assert names[0] == "t"
    assert names[1].startswith("t~")
    assert all(row.exit_reason == "finished" for row in found) and len(found) == 8
    with RunReader(tmp_path) as reader:
        assert (reader.task(names[0])["prompt"], reader.task(names[1])["prompt"]) == ("one", "two")
        assert reader.summary().tasks == 2


def test_a_retry_takes_the_place_of_the_attempt_before(tmp_path: Path) -> None:
    with create(tmp_path) as store, RolloutJournal(tmp_path) as journal:
        for attempt, reason in enumerate((ExitReason.SANDBOX_ERROR, ExitReason.FINISHED)):
            log = journal.open_rollout(RolloutKey("t", 0), attempt, Task(id="t", prompt="x"), phase="train", step=1)
            log.finished(record(reason, None if attempt == 0 else 1.0))
        journal.flush()
        JournalCollector(tmp_path, store).poll()
    with RunReader(tmp_path) as reader:
        (step,) = reader.step_rollouts()
        assert step.exit_reasons == {"finished": 1}
        assert len(reader.rollouts(superseded=True)) == 2


# ---------------------------------------------------------------------------------------------- deaths


@pytest.mark.slow
def test_a_worker_that_is_killed_loses_nothing_it_reported_and_leaves_nothing_running(tmp_path: Path) -> None:
    clock = Clock()
    safe = 0
    with create(tmp_path) as store:
        collector = JournalCollector(tmp_path, store, clock=clock)
        for round_ in range(3):
            with worker(tmp_path, round_ * 1_000_000, 0) as process:
                assert process.stdout is not None
                process.stdout.readline()
                deadline = time.monotonic() + 0.4
                while time.monotonic() < deadline:
                    collector.poll()
                    time.sleep(0.01)
                process.kill()
                printed = [int(line) for line in process.stdout.read().splitlines()]
                safe += sum(1 for number in printed if number % 1_000_000 <= printed[-1] % 1_000_000 // 10 * 10 - 1)
        for _ in range(8):
            clock.now += 30
            collector.poll()
        store.flush(60)
        with RunReader(tmp_path) as reader:
            assert reader.summary().running == 0
            assert collector.collected.refused == 0
        assert collector.close().lost == 0
    assert len(assert_whole(tmp_path)) >= safe > 20
    for row in rows(tmp_path, exit_reason="unknown_error"):
        assert "worker process ended" in row.error
    assert all(row.state == "done" for row in rows(tmp_path))


class Clock:
    """Moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_what_a_dead_worker_left_open_ends_as_its_fault(tmp_path: Path) -> None:
    clock = Clock()
    with create(tmp_path) as store, worker(tmp_path, 0, 2) as process:
        read_to(process, "open")
        collector = JournalCollector(tmp_path, store, clock=clock)
        clock.now += 5
        collector.poll()
        store.flush()
        assert [row.state for row in rows(tmp_path)] == ["done", "done", "starting"]
        process.kill()
        process.wait()
        for wait in (5, 25):
            assert rows(tmp_path)[-1].state == "starting"
            clock.now += wait
            collector.poll()
            store.flush()
        last = rows(tmp_path)[-1]
        assert (last.state, last.exit_reason, last.turns) == ("done", "unknown_error", 1)
        assert collector.close().settled == 1


def test_what_is_open_when_a_worker_or_the_run_closes_is_cancelled(tmp_path: Path) -> None:
    with create(tmp_path) as store, worker(tmp_path, 0, 1, "close") as process:
        read_to(process, "open")
        collector = JournalCollector(tmp_path, store)
        collector.poll()
        with RolloutJournal(tmp_path) as journal:
            start(journal, 50)
            journal.flush()
            collector.poll()
            collector.close(ExitReason.UNKNOWN_ERROR, "the trainer failed")
        process.kill()
    found = {row.sample: (row.exit_reason, row.error) for row in rows(tmp_path)}
    assert found == {
        0: ("finished", ""),
        1: ("cancelled", "the run ended before this rollout did"),
        50: ("unknown_error", "the trainer failed"),
    }


PARENT = """
import os, signal, sys, time
from pathlib import Path
from tests.store.helpers import CONFIG
from uni_agent.store import RunStore
from uni_agent.training.record import JournalCollector, StepTail
run, patience = Path(sys.argv[1]), float(sys.argv[2])
make = RunStore.resume if RunStore.exists(run) else RunStore.create
kwargs = {} if RunStore.exists(run) else {"name": "x"}
store = make(run, config=CONFIG, digest="d", **kwargs)
collector = JournalCollector(run / "j", store, StepTail(run / "steps.jsonl"))
print("ready", flush=True)
deadline = time.monotonic() + patience
while time.monotonic() < deadline:
    collector.poll()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_parent_that_dies_again_and_again_counts_nothing_twice_and_loses_nothing(tmp_path: Path) -> None:
    run = tmp_path
    journal = RolloutJournal(run / "j")
    written = 0
    with (run / "steps.jsonl").open("w") as steps:
        for round_ in range(4):
            with subprocess.Popen(
                [sys.executable, "-c", PARENT, str(run), str(0.1 + 0.3 * round_)], cwd=ROOT, stdout=subprocess.PIPE
            ) as parent:
                assert parent.stdout is not None
                parent.stdout.readline()
                while parent.poll() is None:
                    work(journal, written)
                    steps.write(json.dumps({"step": written, "data": {"x": written}}) + "\n")
                    written += 1
                    time.sleep(0.002)
                    if written % 40 == 0:
                        steps.flush()
                        journal.flush()
            assert parent.wait() == -9
    open_log = start(journal, written)
    journal.flush()
    with resume(run) as store:
        collector = JournalCollector(run / "j", store, StepTail(run / "steps.jsonl"))
        collector.poll()
        store.flush()
        open_log.finished(record(turns=0, answer="no"))
        journal.close()
        assert collector.close().settled == 0
    assert assert_whole_but(run, written) == list(range(written))
    with RunReader(run) as reader:
        seen = [event.data["step"] for event in reader.events(kind="train_step", limit=10**6)]
        assert seen == list(range(written))
        assert reader.summary().superseded == 0
        assert reader.summary().exit_reasons == {"finished": written + 1}


def assert_whole_but(run: Path, last: int) -> list[int]:
    """`assert_whole` without the rollout that had no turns."""
    with RunReader(run) as reader:
        assert reader.find(f"t{last % 7}", last).answer == "no"
        done = [row for row in reader.each_rollout(exit_reason="finished") if row.sample != last]
        for row in done:
            assert [found.index for found in reader.turns(row.id)] == list(range(TURNS))
            assert len(reader.chains(row.id)) == 1
        events = [event.rollout for event in reader.events(limit=10**6) if event.kind == "rollout_finished"]
    assert len(events) == len(set(events))
    return sorted(row.sample for row in done)


def test_a_rollout_that_was_open_when_the_parent_died_goes_on_in_its_place(tmp_path: Path) -> None:
    journal = RolloutJournal(tmp_path)
    broken = journal.open_rollout(RolloutKey("t", 1), 0, Task(id="t", prompt="x"), phase="train", step=1)
    broken.finished(record(ExitReason.SANDBOX_ERROR, None))
    log = start(journal, 0)
    log.turn(turn(0))
    journal.flush()
    store = create(tmp_path)
    JournalCollector(tmp_path, store).poll()
    store.close("interrupted")
    log.turn(turn(1))
    log.finished(record(answer="after all"))
    journal.close()
    with resume(tmp_path) as store:
        JournalCollector(tmp_path, store).close()
    infra, found = rows(tmp_path)
    assert (found.answer, found.superseded, found.exit_reason) == ("after all", False, "finished")
    assert (infra.exit_reason, infra.superseded) == ("sandbox_error", False)  # training does not redo it
    with RunReader(tmp_path) as reader:
        assert [found.index for found in reader.turns(found.id)] == [0, 1]


def test_what_a_checkpoint_took_back_no_longer_counts(tmp_path: Path) -> None:
    def train(journal: RolloutJournal, step: int, sample: int, score: float) -> None:
        log = journal.open_rollout(RolloutKey("t", sample), 0, Task(id="t", prompt="x"), phase="train", step=step)
        log.finished(record(score=score))

    with create(tmp_path) as store, RolloutJournal(tmp_path) as journal:
        collector = JournalCollector(tmp_path, store)
        for step in (1, 2, 3):
            train(journal, step, step, 0.0)
        journal.open_rollout(RolloutKey("t", 4), 0, Task(id="t", prompt="x"), phase="train", step=4)
        journal.flush()
        collector.poll()
    with resume(tmp_path) as store:
        collector = JournalCollector(tmp_path, store)
        collector.rewind(2)
        with RolloutJournal(tmp_path) as journal:
            train(journal, 3, 33, 1.0)
        collector.close()
    with RunReader(tmp_path) as reader:
        assert [(s.step, s.rollouts, s.running, s.reward_mean) for s in reader.step_rollouts()] == [
            (1, 1, 0, 0.0),
            (2, 1, 0, 0.0),
            (3, 1, 0, 1.0),
        ]
        assert reader.summary().rollouts == 3
    with resume(tmp_path) as store:  # what was taken back stays so
        JournalCollector(tmp_path, store).close()
    with RunReader(tmp_path) as reader:
        assert reader.summary().rollouts == 3


# ---------------------------------------------------------------------------------------------- damage


def one_journal(folder: Path, count: int) -> Path:
    with RolloutJournal(folder) as journal:
        for number in range(count):
            work(journal, number)
    return journal.path


def test_any_cut_of_a_journal_is_waited_for(tmp_path: Path) -> None:
    whole = one_journal(tmp_path / "whole", 2).read_bytes()
    target = tmp_path / "j" / "x.rollouts"
    target.parent.mkdir()
    with create(tmp_path) as store:
        collector = JournalCollector(tmp_path / "j", store)
        total = 0
        for cut in range(0, len(whole) + 97, 97):
            target.write_bytes(whole[:cut])
            total += collector.poll()
        assert total == whole.count(b"\n") - 1
        assert collector.close().damaged == 0
    assert assert_whole(tmp_path) == [0, 1]


@pytest.mark.parametrize("how", ["later", "at the end"])
def test_damage_in_the_middle_costs_what_is_damaged(tmp_path: Path, how: str) -> None:
    path = one_journal(tmp_path / "j", 3)
    data = path.read_bytes().splitlines(keepends=True)
    at = next(n for n, line in enumerate(data) if b'"kind":"turn"' in line)
    data[at] = data[at][:50] + b"\0" * 20 + data[at][70:]
    path.write_bytes(b"".join(data))
    clock = Clock()
    with create(tmp_path) as store:
        collector = JournalCollector(tmp_path / "j", store, clock=clock)
        collector.poll()
        store.flush()
        assert len(rows(tmp_path)) == 1  # it may still be in the making
        if how == "later":
            clock.now += 60
            collector.poll()
            assert collector.collected.damaged
        assert collector.close().damaged == len(data[at])
    assert [row.exit_reason for row in rows(tmp_path)] == ["finished"] * 3
    with RunReader(tmp_path) as reader:
        assert [found.index for found in reader.turns(rows(tmp_path)[0].id)] == [1, 2]
        assert len(reader.events(kind="train_record_incomplete")) == 1


def test_a_file_that_is_no_journal_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = one_journal(tmp_path / "j", 1).read_bytes()
    header = whole.splitlines(keepends=True)[0]
    (tmp_path / "j" / "empty.rollouts").touch()
    (tmp_path / "j" / "text.rollouts").write_text("hello\nworld\n")
    (tmp_path / "j" / "new.rollouts").write_bytes(whole.replace(header, b""))
    with create(tmp_path) as store:
        collector = JournalCollector(tmp_path / "j", store)
        collector.poll()
        collector.close()
    assert assert_whole(tmp_path) == [0]
    assert "not the header of a journal" in caplog.text


# ---------------------------------------------------------------------------------------------- a full disk

FULL = """
import json, resource, sys, time
from tests.training.record.worker import start, work
from tests.store.helpers import record
from uni_agent.training.record import RolloutJournal
journal = RolloutJournal(sys.argv[1], memory=60_000)
work(journal, 0)
assert journal.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (journal.path.stat().st_size + 5_000, resource.RLIM_INFINITY))
slowest = 0.0
for number in range(1, 100):
    began = time.perf_counter()
    work(journal, number, size=5_000)
    slowest = max(slowest, time.perf_counter() - began)
print(json.dumps({"error": type(journal.error).__name__, "slowest": slowest, "lost": journal.lost,
                  "rollouts": journal.lost_rollouts, "flushed": journal.flush(1)}))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
deadline = time.monotonic() + 20
while not journal.flush(5) and time.monotonic() < deadline:
    pass
work(journal, 500)
journal.close()
"""


@pytest.mark.slow
def test_a_full_disk_costs_details_first_then_rollouts_and_all_of_it_is_told(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], cwd=ROOT, check=True, capture_output=True, timeout=60
    )
    out = json.loads(done.stdout)
    assert out["error"] == "OSError"
    assert out["flushed"] is False
    assert out["slowest"] < 1.0
    assert out["lost"] > 0 and out["rollouts"] > 0
    with create(tmp_path) as store:
        collected = JournalCollector(tmp_path, store).close()
    assert (collected.lost, collected.lost_rollouts) == (out["lost"], out["rollouts"])
    assert (collected.refused, collected.settled, collected.damaged) == (0, 0, 0)
    found = rows(tmp_path)
    assert len(found) == 101 - out["rollouts"]
    assert all(row.exit_reason == "finished" and row.score == 1.0 for row in found)
    assert found[-1].sample == 500
    with RunReader(tmp_path) as reader:
        assert len(reader.turns(found[-1].id)) == TURNS
        assert [event.data["lost"] for event in reader.events(kind="train_record_lost")] == [out["lost"]]


def test_a_folder_that_cannot_be_made_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="the journal of rollouts cannot be made"):
        RolloutJournal(tmp_path / "file" / "below")


def test_nothing_is_written_after_the_end(tmp_path: Path) -> None:
    journal = RolloutJournal(tmp_path)
    log = start(journal, 0)
    journal.close()
    journal.close()
    size = journal.path.stat().st_size
    log.turn(turn(0))
    log.finished(record())
    work(journal, 1)
    assert journal.path.stat().st_size == size
    assert journal.lost == 3 and journal.lost_rollouts == 1


# ---------------------------------------------------------------------------------------------- size


def seconds(what: Callable[[], object]) -> float:
    began = time.process_time()
    what()
    return time.process_time() - began


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_poll_costs_what_is_new_and_not_what_was_there(tmp_path: Path) -> None:
    def add(count: int) -> None:
        nonlocal number
        for _ in range(count):
            work(journal, number)
            number += 1
        assert journal.flush(60)

    number = 0
    with create(tmp_path) as store, RolloutJournal(tmp_path) as journal:
        collector = JournalCollector(tmp_path, store)

        def poll() -> None:
            while collector.poll():
                pass

        def timed() -> float:
            add(50)
            store.flush(60)
            return seconds(poll)

        add(100)
        poll()
        early = min(timed() for _ in range(5))
        for _ in range(20):
            for _ in range(480):
                start(journal, number).finished(record())
                number += 1
            poll()
            store.flush(60)
        late = min(timed() for _ in range(5))
        assert late < 3 * early + 0.01
        assert min(seconds(collector.poll) for _ in range(5)) < 0.01
        assert number == 10_200
    with RunReader(tmp_path) as reader:
        assert reader.summary().rollouts == number
        began = time.perf_counter()
        assert len(reader.step_rollouts()) == math.ceil(number / 8)
        assert reader.train_steps() == []
        assert time.perf_counter() - began < 5
    with resume(tmp_path) as store:
        began = time.perf_counter()
        JournalCollector(tmp_path, store).poll()
        store.flush(60)
        assert time.perf_counter() - began < 5


def test_many_processes_are_read_side_by_side(tmp_path: Path) -> None:
    workers = [worker(tmp_path, first, 5) for first in (0, 100)]
    with create(tmp_path) as store:
        collector = JournalCollector(tmp_path, store)
        for process in workers:
            read_to(process, "open")
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        collector.close()
    assert assert_whole(tmp_path) == [*range(5), *range(100, 105)]
    assert len({path.name for path in tmp_path.glob("*.rollouts")}) == 2
