"""The writing side of a run's store."""

from __future__ import annotations

import itertools
import json
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from uni_agent.errors import ConfigError, DataError, StoreError, boundary
from uni_agent.store import changes
from uni_agent.store.base import JournalEntry, TokenChain
from uni_agent.store.lock import WriterLock
from uni_agent.store.merge import merge_changes
from uni_agent.store.records import RolloutRecord
from uni_agent.store.sameness import content_hash, redact, refuse_changes, stored_config
from uni_agent.store.schema import DB_NAME, SCHEMA_VERSION, connect_writer, create_tables, fold_log, has_run
from uni_agent.store.text import loads, plain
from uni_agent.store.writer import Writer
from uni_agent.types import RolloutKey, Task, Turn

RunState = Literal["done", "failed", "interrupted"]
RolloutState = Literal["queued", "starting", "running", "grading"]
Clock = Callable[[], float]


class RunStore:
    """Writes one run. All methods but `flush` and `close` only queue, and may be called from any thread.

    A disk that fails does not stop rollouts: `error` says why, `pending` how much waits, and everything is tried again
    until it stands; hold off new rollouts while `pending` keeps growing. `flush` and `close` raise StoreError when
    something did not get to the disk.
    """

    def __init__(self, db: sqlite3.Connection, lock: WriterLock, path: Path, clock: Clock) -> None:
        """Use `create` or `resume`."""
        self.path = path
        self._db = db
        self._lock = lock
        self._clock = clock
        self._meta = {key: loads(value) for key, value in db.execute("SELECT key, value FROM meta")}
        self._task_hashes: dict[str, str] = dict(db.execute("SELECT task_key, content_hash FROM tasks"))
        current = db.execute("SELECT task_key, sample FROM rollouts WHERE superseded = 0")
        self._completed = {changes.key_of(stored, sample) for stored, sample in current}
        self._rows = itertools.count(db.execute("SELECT coalesce(max(id), 0) + 1 FROM rollouts").fetchone()[0])
        self._open: dict[str, RolloutKey] = {}
        self._newest: dict[RolloutKey, str] = {}
        self._chains: dict[str, list[changes.ChainSnapshot]] = {}
        self._closed = False
        self._step = _Step()
        self._writer = Writer(db)

    # ------------------------------------------------------------------------------------------ opening

    @staticmethod
    def exists(run_dir: Path) -> bool:
        """Whether `run_dir` holds a run that can be resumed."""
        path = run_dir / DB_NAME
        if not path.is_file() or not path.stat().st_size:
            return False
        try:
            db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
            try:
                return has_run(db)
            finally:
                db.close()
        except sqlite3.Error:
            return False

    @classmethod
    def create(
        cls,
        run_dir: Path,
        *,
        name: str,
        config: dict[str, Any],
        digest: str,
        versions: dict[str, str] | None = None,
        clock: Clock = time.time,
    ) -> RunStore:
        """Start a run in `run_dir` (made where missing). Secrets in `config` are redacted by their key's name.

        Raises ConfigError when the folder holds a run or is being written, StoreError when it cannot be written.
        """
        now = clock()
        run_id = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{uuid.uuid4().hex[:8]}"
        meta = {
            "schema_version": SCHEMA_VERSION,
            "run_id": run_id,
            "name": name,
            "state": "running",
            "created": now,
            "ended": None,
            "config": stored_config(config),
            "digest": digest,
            "versions": versions or {},
        }

        def prepare(db: sqlite3.Connection) -> None:
            if has_run(db):
                raise ConfigError(f"{run_dir}: holds a run already; resume it or choose another output folder")
            create_tables(db)
            changes.write_meta(meta)(db)
            changes.write_event(now, "run_started", None, {"run_id": run_id, "name": name})(db)

        return cls._open_with(run_dir, prepare, clock)

    @classmethod
    def resume(
        cls,
        run_dir: Path,
        *,
        config: dict[str, Any],
        digest: str,
        ignore: Collection[str] = (),
        clock: Clock = time.time,
    ) -> RunStore:
        """Go on with the run in `run_dir`.

        Rollouts that did not end, or ended in a way that says nothing about the model, no longer count and are to be
        done again; `completed` names the others. `ignore` holds dotted prefixes (`run.concurrency`) that may differ.
        Raises ConfigError for other differences, for a folder without a run and for one that is being written;
        StoreError when it cannot be read or written.
        """
        if not cls.exists(run_dir):
            raise ConfigError(f"{run_dir}: holds no run to resume")
        now = clock()
        new = stored_config(config)

        def prepare(db: sqlite3.Connection) -> None:
            meta = {key: loads(value) for key, value in db.execute("SELECT key, value FROM meta")}
            if meta["schema_version"] != SCHEMA_VERSION:
                raise ConfigError(f"{run_dir}: written by another version (schema {meta['schema_version']})")
            refuse_changes(meta["config"], new, old_digest=meta["digest"], new_digest=digest, ignore=ignore)
            redone = db.execute(
                "UPDATE rollouts SET superseded = 1 WHERE superseded = 0 AND"
                " (state != 'done' OR trusted = 0 OR exit_class IN ('infrastructure', 'operator'))"
            ).rowcount
            changes.write_meta({"state": "running", "ended": None, "config": new, "digest": digest})(db)
            changes.write_event(now, "run_resumed", None, {"redone": redone})(db)

        return cls._open_with(run_dir, prepare, clock)

    @classmethod
    def _open_with(cls, run_dir: Path, prepare: Callable[[sqlite3.Connection], None], clock: Clock) -> RunStore:
        with boundary(StoreError, f"{run_dir}: the run's store cannot be opened"):
            run_dir.mkdir(parents=True, exist_ok=True)
            lock = WriterLock(run_dir)
            lock.acquire()
            try:
                db = connect_writer(str(run_dir / DB_NAME))
                try:
                    db.execute("BEGIN IMMEDIATE")
                    prepare(db)
                    db.execute("COMMIT")
                    return cls(db, lock, run_dir / DB_NAME, clock)
                except BaseException:
                    db.close()
                    raise
            except BaseException:
                lock.release()
                raise

    # ------------------------------------------------------------------------------------------ facts

    @property
    def run_id(self) -> str:
        """Unique name of the run, the same after a resume."""
        return self._meta["run_id"]

    @property
    def error(self) -> BaseException | None:
        """Why nothing can be written at this moment, or what was rejected for good; None when all is well."""
        return self._writer.error

    @property
    def pending(self) -> int:
        """How many records wait in memory to be written."""
        return self._writer.pending

    def completed(self) -> set[RolloutKey]:
        """The samples that need no more work: ended, by now or before the resume, in a way that counts."""
        return set(self._completed)

    @property
    def task_ids(self) -> set[str]:
        """The tasks that the run knows so far, those from before a resume included."""
        return {json.loads(key) for key in self._task_hashes}

    def task_hash(self, task_id: str) -> str | None:
        """The `content_hash` of the task that the run knows under this id, or None."""
        return self._task_hashes.get(changes.task_key(task_id))

    # ------------------------------------------------------------------------------------------ recording

    @contextmanager
    def together(self, at: float | None = None) -> Generator[None]:
        """What this thread records inside gets to the disk in one step, or not at all; as of `at`, in Unix seconds."""
        before = self._step.changes, self._step.at
        step: list[changes.Change] = []
        self._step.changes, self._step.at = step, at
        try:
            yield
        finally:
            self._step.changes, self._step.at = before
            if step:
                self.apply(changes.all_of(step))

    def apply(self, change: changes.Change) -> None:
        """Queue a write of this package's other modules."""
        if self._step.changes is not None:
            self._step.changes.append(change)
        else:
            self._writer.submit(change)

    def meta(self, key: str, value: Any) -> None:
        """Record a fact about the run, such as `planned`: the number of rollouts it will hold."""
        self.apply(changes.write_meta({key: value}))

    def task(self, task: Task) -> None:
        """Record a task before its first rollout; again is fine.

        Raises DataError when another task of the run has its id, or when it changed since the run was started.
        """
        key, digest = changes.task_key(task.id), content_hash(task)
        known = self._task_hashes.get(key)
        if known == digest:
            return
        if known is not None:
            raise DataError(
                f"task {task.id!r} is not the one this run knows under that id: two tasks share the id, or the data "
                "changed since the run was started (then start a new run)"
            )
        self._task_hashes[key] = digest
        spec = task.model_dump(exclude={"id", "prompt", "metadata"})
        self.apply(changes.write_task(task, digest, redact(plain(spec))))

    def rollout_started(self, key: RolloutKey, attempt: int) -> str:
        """Record that a rollout starts; earlier attempts at the same sample no longer count. Returns its id."""
        row = next(self._rows)
        self._open[str(row)] = key
        self._newest[key] = str(row)
        self._completed.discard(key)
        self.apply(changes.start_rollout(row, key, attempt, self._now()))
        return str(row)

    def adopt(self, rollout_id: str, key: RolloutKey) -> None:
        """Go on with an unfinished rollout that this run started before it was resumed."""
        self._open[rollout_id] = key

    def state(self, rollout_id: str, state: RolloutState) -> None:
        """Record what an unfinished rollout is doing; ignored once it is done."""
        self.apply(changes.set_state(int(rollout_id), state, self._now()))

    def turn(self, rollout_id: str, turn: Turn) -> None:
        """Record a turn as soon as it is over."""
        self.apply(changes.write_turn(int(rollout_id), turn, self._now()))

    def chains(self, rollout_id: str, chains: Sequence[TokenChain | changes.ChainSnapshot]) -> None:
        """Hand over the token chains of a rollout; they are written together with its end. The last call counts.

        Raises StoreError when a chain's arrays do not belong together.
        """
        self._require_open(rollout_id)
        self._chains[rollout_id] = [
            chain if isinstance(chain, changes.ChainSnapshot) else changes.ChainSnapshot.of(chain) for chain in chains
        ]

    def finished(self, rollout_id: str, record: RolloutRecord) -> None:
        """Record how a rollout ended, with its chains, in one transaction. Raises StoreError when it is not running."""
        key = self._require_open(rollout_id)
        change = changes.finish_rollout(int(rollout_id), record, self._chains.get(rollout_id, []), self._now())
        self.apply(change)
        del self._open[rollout_id]
        self._chains.pop(rollout_id, None)
        if self._newest.get(key) == rollout_id:  # not one that another attempt has taken the place of
            del self._newest[key]
            if changes.is_settled(record.exit_reason, changes.trust(record)):
                self._completed.add(key)

    def event(self, kind: str, rollout_id: str | None = None, **data: Any) -> None:
        """Append an event of any kind; `data` is made valid JSON whatever it holds."""
        row = None if rollout_id is None else int(rollout_id)
        self.apply(changes.write_event(self._now(), kind, row, data))

    def merge(self, source: str, entries: Iterable[JournalEntry]) -> None:
        """Add the entries of another process's journal; those that are there already are left as they are.

        `source` names the journal for good. A session belongs to the rollout that the `metadata` of its `session` entry
        names: `{task_id, sample}`. Raises ValueError for data that is not JSON, once everything before it is queued.
        """
        for change in merge_changes(source, entries):
            self.apply(change)

    # ------------------------------------------------------------------------------------------ the end

    def flush(self, timeout: float = 10.0) -> None:
        """Wait until all that was recorded so far is on the disk: blocks, so call it from a thread.

        Raises StoreError when it is not there within `timeout` seconds, when the disk refuses it now, or when a record
        was rejected for good.
        """
        self._writer.flush(timeout)

    def close(self, state: RunState = "done", timeout: float = 10.0) -> None:
        """Record the run's final state, write what is left, let go of the run. Idempotent; blocks up to `timeout`.

        Raises StoreError like `flush`; the run is let go all the same, and its state then reads `interrupted`.
        """
        if self._closed:
            return
        self._closed = True
        now = self._clock()
        self._writer.submit(changes.write_event(now, "run_ended", None, {"state": state}))
        self._writer.submit(changes.write_meta({"state": state, "ended": now}))
        try:
            self._writer.close(timeout)
        finally:
            if not self._writer.alive:  # a commit that hangs in the kernel keeps its connection
                fold_log(self._db)
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close: `done`, `failed` after an exception, `interrupted` after Ctrl-C or cancellation."""
        state: RunState = "done"
        if kind is not None:
            state = "failed" if issubclass(kind, Exception) else "interrupted"
        self.close(state)

    def _now(self) -> float:
        return self._clock() if self._step.at is None else self._step.at

    def _require_open(self, rollout_id: str) -> RolloutKey:
        key = self._open.get(rollout_id)
        if key is None:
            raise StoreError(f"rollout {rollout_id!r} was never started, or has been finished already")
        return key


class _Step(threading.local):
    """What a thread is recording `together`."""

    changes: list[changes.Change] | None = None
    at: float | None = None
