"""The run's own process: what the workers' journals and the trainer's metrics say goes into the store."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uni_agent.errors import DataError, StoreError
from uni_agent.gateway.journal.frames import Entry
from uni_agent.store import training
from uni_agent.store.changes import write_event
from uni_agent.store.records import RolloutRecord
from uni_agent.store.run import RunStore
from uni_agent.store.text import plain
from uni_agent.training.record.codec import chain_from_json, count, record_from_json, task_from_json, turn_from_json
from uni_agent.training.record.journal import SUFFIX
from uni_agent.training.record.steps import StepTail
from uni_agent.training.record.tail import JournalTail
from uni_agent.trajectory.plain import items, mapping, text
from uni_agent.types import ExitReason, RolloutKey

_log = logging.getLogger(__name__)

_BATCH = 5_000
_AT_LEAST = 100
_PENDING = 5_000
_PAUSE = 0.02
_PROBE_EVERY = 3.0
_GRACE = 20.0  # at the end of a training its workers die a little before it does, and that is nobody's fault
_STATES = ("queued", "starting", "running", "grading")
_LEFT = "the run ended before this rollout did"
_DIED = "WorkerLost: its worker process ended without finishing it"


@dataclass(slots=True)
class Collected:
    """What a collector did: `entries` and `steps` applied, and what went wrong.

    `refused` entries made no sense, `settled` rollouts were finished by no worker, `damaged` counts bytes of journals;
    `lost` entries and `lost_rollouts` were left out by workers whose disk was full.
    """

    entries: int = 0
    steps: int = 0
    refused: int = 0
    settled: int = 0
    lost: int = 0
    lost_rollouts: int = 0
    damaged: int = 0


@dataclass(slots=True)
class _Open:
    row: str
    turns: int = 0


class JournalCollector:
    """Applies all `RolloutJournal`s of `folder` to `store`, and the steps of `steps` as events `train_step`.

    A resumed run writes another file of steps: give the former ones, too, before it, so that nothing of them is missed.

    Each entry is applied together with the mark that it was: over a death of this process and `RunStore.resume` nothing
    is counted twice and nothing that stands in a journal is lost. Make one right after `RunStore.create` or `resume`,
    and call it from one thread at a time.

    A task whose id the run knows with other content (a validation task, say) is stored as `ID~HASH`. Rollouts of a
    worker that died end as `unknown_error` after a while, and those that are open at the end as `close` says.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        store: RunStore,
        steps: StepTail | Sequence[StepTail] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.collected = Collected()
        self._folder = Path(folder)
        self._store = store
        self._steps = (steps,) if isinstance(steps, StepTail) else tuple(steps)
        self._clock = clock
        self._lock = threading.Lock()
        self._tails: dict[str, JournalTail] = {}
        self._done: set[str] = set()
        self._open: dict[tuple[str, str], _Open] = {}
        self._losses: dict[str, tuple[int, int]] = {}
        self._probed = clock()
        self._gone: dict[str, float] = {}
        self._closed = False
        progress = training.read_progress(store.path)
        self._marks = progress.marks
        store.apply(training.create_tables)
        store.apply(training.count_again)
        for rollout in progress.open:
            store.adopt(rollout.row, rollout.key)
            self._open[rollout.source, rollout.name] = _Open(rollout.row, rollout.turns)

    # ------------------------------------------------------------------------------------------ the way

    def poll(self) -> int:
        """Apply what is new; how many entries and steps that were. Costs what is new, and a look at each open journal.

        Stops early while the store has much to write: what is left stays in the journals. Faults of a journal are
        logged and reported by `close`, never raised.
        """
        with self._lock:
            if self._closed:
                return 0
            applied = self._poll(final=False)
            if self._clock() - self._probed >= _PROBE_EVERY:
                self._probed = self._clock()
                self._bury()
            return applied

    def rewind(self, step: int) -> None:
        """Training goes on from the checkpoint of `step`: what later steps rolled out and measured no longer counts.

        Call it before the trainer of a resumed run starts: what journals and metrics hold by then is of the former one,
        and is read first. Blocks and raises like `close`.
        """
        with self._lock:
            self._poll_all(final=False, timeout=60.0)
            self._settle(list(self._open), ExitReason.CANCELLED, _LEFT)
            self._store.apply(training.rewind(time.time(), step))

    def close(
        self, reason: ExitReason = ExitReason.CANCELLED, error: str = _LEFT, *, timeout: float = 60.0
    ) -> Collected:
        """Apply the rest, end what no worker ended as `reason` with `error`; call it when the workers are gone.

        Blocks for as long as the store needs; idempotent. Raises StoreError when the store cannot be written, or needs
        longer than `timeout` for a batch: a resume goes on from there.
        """
        with self._lock:
            if self._closed:
                return self.collected
            self._poll_all(final=True, timeout=timeout)
            self._settle(list(self._open), reason, error)
            self._closed = True
            for tail in self._tails.values():
                tail.close()
            faults = self.collected
            if faults.refused or faults.lost or faults.lost_rollouts or faults.damaged:
                _log.error("not all of what the workers reported is in the store: %s", faults)
                self._store.event("train_record_incomplete", **plain(faults))
            return faults

    # ------------------------------------------------------------------------------------------ reading

    def _poll_all(self, *, final: bool, timeout: float) -> None:
        """Poll until there is nothing new, waiting for the store where it has much to write."""
        deadline = self._clock() + timeout
        while True:
            if self._store.pending < _PENDING:
                deadline = self._clock() + timeout
                if not self._poll(final=final):
                    return
            elif self._clock() > deadline:
                raise StoreError(f"{self._store.path}: cannot be written: {self._store.error or 'it takes too long'}")
            else:
                time.sleep(_PAUSE)

    def _poll(self, *, final: bool) -> int:
        self._discover()
        before = self.collected.entries + self.collected.steps
        share = max(_BATCH // max(len(self._tails), 1), _AT_LEAST)
        for name, tail in list(self._tails.items()):
            if self._store.pending >= _PENDING:
                break
            self._tails[name] = self._tails.pop(name)  # to the end: the next poll starts with those not reached
            try:
                self._read(tail, share, final=final)
            except StoreError as error:
                self._give_up(name, error)
                continue
            if tail.closed:
                self._retire(name, ExitReason.CANCELLED, _LEFT)
        self._read_steps(final=final)
        return self.collected.entries + self.collected.steps - before

    def _discover(self) -> None:
        try:
            with os.scandir(self._folder) as found:
                names = sorted(entry.name for entry in found if entry.name.endswith(SUFFIX))
        except FileNotFoundError:
            return
        except OSError as error:
            _log.warning("%s: cannot be listed: %s", self._folder, error)
            return
        for name in names:
            if name not in self._tails and name not in self._done:
                self._tails[name] = JournalTail(self._folder / name, self._clock)

    def _read(self, tail: JournalTail, most: int, *, final: bool) -> None:
        if not tail.open(self._marks) or tail.source is None:
            return
        damaged = tail.damaged
        for number, marked in enumerate(tail.read(final=final), 1):
            self._apply(tail, tail.source, marked.entry, marked.end)
            if number >= most or (number % _AT_LEAST == 0 and self._store.pending >= _PENDING):
                break
        self.collected.damaged += tail.damaged - damaged

    def _bury(self) -> None:
        """Read the journals of processes that died to their end, and settle what they left."""
        for name, tail in list(self._tails.items()):
            if name not in self._gone and tail.writer_is_gone():
                self._gone[name] = self._clock()
            died = self._gone.get(name)
            if died is None or self._clock() - died < _GRACE or self._store.pending >= _PENDING:
                continue
            before = self.collected.entries
            try:
                self._read(tail, _BATCH, final=True)
            except StoreError as error:
                self._give_up(name, error)
                continue
            if self.collected.entries == before:  # else there may be more
                self._retire(name, ExitReason.UNKNOWN_ERROR, _DIED)

    def _retire(self, name: str, reason: ExitReason, error: str) -> None:
        tail = self._tails.pop(name)
        self._gone.pop(name, None)
        self._done.add(name)
        tail.close()
        self._settle([key for key in self._open if key[0] == tail.source], reason, error)

    def _give_up(self, name: str, error: StoreError) -> None:
        _log.error("a journal of rollouts is left out: %s", error)
        self.collected.refused += 1
        self._retire(name, ExitReason.UNKNOWN_ERROR, f"StoreError: {error}")

    def _read_steps(self, *, final: bool) -> None:
        for tail in self._steps:
            if not tail.open(self._marks) and not final:
                continue
            for found in tail.poll(final=final):
                with self._store.together():
                    self._store.event("train_step", step=found.step, metrics=found.metrics)
                    self._store.apply(training.write_mark(tail.source or f"steps:{tail.path.name}", 0, found.end))
                self.collected.steps += 1

    # ------------------------------------------------------------------------------------------ applying

    def _apply(self, tail: JournalTail, source: str, entry: Entry | None, end: int) -> None:
        self.collected.entries += 1
        if entry is None:
            self.collected.refused += 1
            return
        with self._store.together(at=entry.time):
            try:
                self._dispatch(tail, source, entry)
            except (ValueError, StoreError) as error:
                self.collected.refused += 1
                _log.error("%s: entry %d (%s) is left out: %s", tail.path, entry.seq, entry.kind, error)
            self._store.apply(training.write_mark(source, entry.seq + 1, end))

    def _dispatch(self, tail: JournalTail, source: str, entry: Entry) -> None:
        match entry.kind:
            case "process":
                self._event(entry, None, "train_worker", entry.data)
            case "task":
                self._task(entry)
            case "open":
                self._start(source, entry)
            case "lost" | "closed":
                tail.closed = entry.kind == "closed"
                self._lost(source, entry)
            case _:
                rollout = self._open.get((source, entry.session_id))
                if rollout is not None:  # else it is settled, or its start was lost
                    self._go_on(source, entry, rollout)

    def _task(self, entry: Entry) -> None:
        task = task_from_json(entry.data.get("task"))
        try:
            self._store.task(task)
        except DataError:
            self._store.task(task.model_copy(update={"id": _other_id(task.id, text(entry.data, "digest"))}))

    def _start(self, source: str, entry: Entry) -> None:
        raw = entry.data
        task_id, digest = text(raw, "id"), text(raw, "task")
        if self._store.task_hash(task_id) not in (None, digest):
            task_id = _other_id(task_id, digest)
        key = RolloutKey(task_id, count(raw.get("sample"), "sample"))
        row = self._store.rollout_started(key, count(raw.get("attempt"), "attempt"))
        self._open[source, entry.session_id] = _Open(row)
        about = mapping(raw.get("about"), "about")
        self._store.apply(training.place_rollout(entry.time, int(row), source, entry.session_id, about))

    def _go_on(self, source: str, entry: Entry, rollout: _Open) -> None:
        raw = entry.data
        match entry.kind:
            case "state":
                state: Any = raw.get("state")
                if state not in _STATES:
                    raise ValueError(f"state {state!r} is none of {', '.join(_STATES)}")
                self._store.state(rollout.row, state)
            case "turn":
                self._store.turn(rollout.row, turn_from_json(raw))
                rollout.turns += 1
            case "event":
                self._event(entry, rollout.row, text(raw, "kind"), mapping(raw.get("data"), "data"))
            case "finished":
                record = record_from_json(raw.get("record"))
                self._store.chains(rollout.row, [chain_from_json(chain) for chain in items(raw, "chains")])
                self._store.finished(rollout.row, record)
                del self._open[source, entry.session_id]
            case _:
                raise ValueError(f"unknown kind {entry.kind!r}: written by a newer version?")

    def _event(self, entry: Entry, row: str | None, kind: str, data: Any) -> None:
        self._store.apply(write_event(entry.time, kind, None if row is None else int(row), data))

    def _lost(self, source: str, entry: Entry) -> None:
        """The worker counts from its start: what is new since it last told is added."""
        now = (count(entry.data.get("lost"), "lost"), count(entry.data.get("lost_rollouts"), "lost_rollouts"))
        before = self._losses.get(source, (0, 0))
        self._losses[source] = now
        self.collected.lost += now[0] - before[0]
        self.collected.lost_rollouts += now[1] - before[1]
        if now != before:
            self._event(entry, None, "train_record_lost", entry.data)

    def _settle(self, keys: Iterable[tuple[str, str]], reason: ExitReason, error: str) -> None:
        for key in keys:
            rollout = self._open.pop(key)
            self._store.finished(rollout.row, RolloutRecord(reason, error, turns=rollout.turns))
            self.collected.settled += 1


def _other_id(task_id: str, digest: str) -> str:
    return f"{task_id}~{digest[:8]}"
