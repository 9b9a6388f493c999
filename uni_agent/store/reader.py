"""The reading side of a run's store: any number of readers, none of which can disturb the writer."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from uni_agent.errors import StoreError
from uni_agent.store import blobs, summary, training
from uni_agent.store.changes import task_key
from uni_agent.store.connect import ReadConnection
from uni_agent.store.lock import is_locked
from uni_agent.store.merge import MergedEntry, SessionRow, merged_entries, merged_sessions
from uni_agent.store.records import ChainRow, EventRow, RolloutRow, TurnRow
from uni_agent.store.schema import DB_NAME
from uni_agent.store.summary import PHASES, TOKENS, ReasonRow, Summary, ToolRow
from uni_agent.store.text import loads, utf8
from uni_agent.store.training import GroupScore, Place, StepRollouts, TrainStep

_PAGE = 50  # a page is held in memory, and a grader's log may be megabytes
_ROLLOUT_COLUMNS = (
    "id, task_key, sample, attempt, state, superseded, started, ended, exit_reason, exit_class, score, resolved,"
    " trusted, turns, tokens_sampled, tokens_trained, tokens_masked, tokens_dropped, time_start, time_model,"
    " time_tools, time_reward, time_teardown, dropped_reasons, reward_breakdown, reward_error, error"
)
_TEXT_COLUMNS = ", answer, opening, reward_log"
_NO_TEXTS = ", NULL, NULL, NULL"


class RunReader:
    """Reads a run, also while it is written, after its writer was killed, and from a folder that cannot be written.

    `path` is the run's folder or its file. Safe to share between threads; every call sees what is committed at that
    moment. Raises StoreError when there is no run to read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path / DB_NAME if path.is_dir() else path
        self._connection = ReadConnection(self.path)
        self._lock = threading.Lock()
        self._run_id: str = self.meta()["run_id"]

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------ numbers

    @property
    def alive(self) -> bool:
        """Whether a process of this host writes the run now."""
        return is_locked(self.path.parent)

    @property
    def run_id(self) -> str:
        """Unique name of the run."""
        return self._run_id

    def meta(self) -> dict[str, Any]:
        """Facts about the run: `run_id`, `name`, `state`, `created`, `ended`, `config`, `digest`, `versions`."""
        return {key: loads(value) for key, value in self._all("SELECT key, value FROM meta")}

    def summary(self) -> Summary:
        """The numbers of the run, as of one moment."""
        with self._snapshot() as db:
            return summary.summarise(db, alive=self.alive)

    def exit_reasons(self) -> list[ReasonRow]:
        """Exit reasons with count and mean reward, most frequent first."""
        with self._snapshot() as db:
            return summary.reasons(db)

    def tools(self) -> list[ToolRow]:
        """Tools with calls, failures and mean seconds, most used first. Reads every tool call."""
        with self._snapshot() as db:
            return summary.tools(db)

    def time_quantiles(self) -> dict[str, dict[str, float | None]]:
        """Phase → `p50` and `p95` in seconds per rollout; None without rollouts."""
        with self._snapshot() as db:
            found = {phase: summary.quantiles(db, phase, (0.5, 0.95)) for phase in PHASES}
        return {phase: {"p50": p50, "p95": p95} for phase, (p50, p95) in found.items()}

    # ------------------------------------------------------------------------------------------ training

    @property
    def trains(self) -> bool:
        """Whether the run is a training run that got to its first poll."""
        with self._snapshot() as db:
            return training.has_training(db)

    def train_steps(self) -> list[TrainStep]:
        """The trainer's metrics by step; [] for a run that trains nothing.

        A step that was done again shows what came last; `events(kind="train_step")` has everything.
        """
        with self._snapshot() as db:
            return training.steps(db)

    def step_rollouts(self) -> list[StepRollouts]:
        """The rollouts of each step and phase in numbers; [] for a run that trains nothing."""
        with self._snapshot() as db:
            return training.step_rollouts(db, PHASES, TOKENS)

    def validation_scores(self, group_by: str | None = None) -> list[GroupScore]:
        """Rewards of each validation, by the value of the tasks' metadata key `group_by`; None: all together ("")."""
        with self._snapshot() as db:
            return training.group_scores(db, group_by)

    def places(self, rollouts: Sequence[str]) -> dict[str, Place]:
        """Rollout id → the step, phase and group it belongs to; rollouts outside of training are left out."""
        with self._snapshot() as db:
            return training.places(db, [_row_of(rollout) for rollout in rollouts])

    # ------------------------------------------------------------------------------------------ rows

    def sessions(self) -> list[SessionRow]:
        """Sessions of merged journals, in the order in which they were opened."""
        with self._snapshot() as db:
            return merged_sessions(db)

    def journal(self, session_id: str) -> list[MergedEntry]:
        """All merged entries of a session, per source in their order."""
        with self._snapshot() as db:
            return merged_entries(db, session_id)

    def rollouts(
        self,
        *,
        after: str | None = None,
        before: str | None = None,
        limit: int = 100,
        task: str | None = None,
        state: str | None = None,
        exit_reason: str | None = None,
        exit_class: str | None = None,
        resolved: bool | None = None,
        failed: bool = False,
        superseded: bool = False,
        step: int | None = None,
        phase: str | None = None,
        texts: bool = True,
    ) -> list[RolloutRow]:
        """Up to `limit` rollouts in the order they started; `after` is the id of the last one seen.

        With `before`, those just before that id, newest first (`before=""` starts at the newest). `failed` keeps those
        that ended but did not succeed: not by the agent's own doing, not trusted, or not resolved. Superseded attempts
        are left out unless asked for. `step` and `phase` ("train", "validation") keep those of a training run's step.
        Without `texts`, the long ones (`answer`, `opening`, `reward_log`) come empty,
        which is what a table wants.
        """
        where, values = ["1"], list[Any]()
        equal = {"task_id": task, "state": state, "exit_reason": exit_reason, "exit_class": exit_class}
        equal |= {"resolved": resolved, "superseded": None if superseded else 0}
        for name, value in equal.items():
            if value is not None:
                where.append(f"{name} = ?")
                values.append(value)
        if failed:
            where.append("state = 'done' AND (exit_class != 'finished' OR trusted = 0 OR resolved = 0)")
        order = "id"
        if (step is not None or phase is not None) and not self.trains:
            return []
        for name, value in (("step", step), ("phase", phase)):
            if value is not None:
                where.append(f"id IN (SELECT rollout FROM train_rollouts WHERE {name} = ?)")  # noqa: S608 - our names
                values.append(value)
        if after is not None:
            where.append("id > ?")
            values.append(_row_of(after))
        if before is not None:
            order = "id DESC"
            if before:
                where.append("id < ?")
                values.append(_row_of(before))
        columns = _ROLLOUT_COLUMNS + (_TEXT_COLUMNS if texts else _NO_TEXTS)
        query = f"SELECT {columns} FROM rollouts WHERE {' AND '.join(where)} ORDER BY {order} LIMIT ?"  # noqa: S608
        return [_rollout(row) for row in self._all(query, *values, limit)]

    def each_rollout(self, **filters: Any) -> Iterator[RolloutRow]:
        """Every rollout that `rollouts` would give, a page at a time."""
        after = "0"
        while page := self.rollouts(after=after, limit=_PAGE, **filters):
            yield from page
            after = page[-1].id

    def rollout(self, rollout_id: str) -> RolloutRow:
        """One rollout. Raises StoreError when there is none of that id."""
        query = f"SELECT {_ROLLOUT_COLUMNS}{_TEXT_COLUMNS} FROM rollouts WHERE id = ?"  # noqa: S608
        found = self._all(query, _row_of(rollout_id))
        if not found:
            raise StoreError(f"{self.path}: no rollout {rollout_id!r}")
        return _rollout(found[0])

    def find(self, task_id: str, sample: int) -> RolloutRow:
        """The rollout of a task's sample that counts. Raises StoreError when there is none."""
        query = (
            f"SELECT {_ROLLOUT_COLUMNS}{_TEXT_COLUMNS} FROM rollouts"  # noqa: S608
            " WHERE task_key = ? AND sample = ? AND superseded = 0"
        )
        found = self._all(query, task_key(task_id), sample)
        if not found:
            raise StoreError(f"{self.path}: no rollout {task_id}#{sample}")
        return _rollout(found[0])

    def turns(self, rollout_id: str, *, after: int = -1, limit: int | None = None) -> list[TurnRow]:
        """The turns of a rollout after index `after`, in order."""
        query = (
            "SELECT idx, status, finish_reason, span_start, span_end, model_seconds, tool_seconds, usage, message,"
            " results, observations FROM turns WHERE rollout = ? AND idx > ? ORDER BY idx LIMIT ?"
        )
        rows = self._all(query, _row_of(rollout_id), after, -1 if limit is None else limit)
        return [_turn(row) for row in rows]

    def chains(self, rollout_id: str) -> list[ChainRow]:
        """The token chains of a rollout; [] until it ended."""
        query = (
            "SELECT idx, request_id, prompt_ids, response_ids, mask, logprobs, spans, weight_spans, metrics, extra"
            " FROM chains WHERE rollout = ? ORDER BY idx"
        )
        return [_chain(row) for row in self._all(query, _row_of(rollout_id))]

    def task(self, task_id: str) -> dict[str, Any]:
        """A task: `id, content_hash, prompt, metadata, spec`. Raises StoreError when the run has none of that id."""
        query = "SELECT task_key, content_hash, prompt, metadata, spec FROM tasks WHERE task_key = ?"
        found = self._all(query, task_key(task_id))
        if not found:
            raise StoreError(f"{self.path}: no task {task_id!r}")
        key, content_hash, *rest = found[0]
        prompt, metadata, spec = map(loads, rest)
        return {
            "id": loads(key),
            "content_hash": content_hash,
            "prompt": prompt,
            "metadata": metadata,
            "spec": spec,
        }

    def events(self, *, after: int = 0, limit: int = 1000, kind: str | None = None) -> list[EventRow]:
        """Up to `limit` events with a `seq` above `after`, oldest first."""
        query = (
            "SELECT seq, time, kind, rollout, data FROM events"
            " WHERE seq > ? AND (? IS NULL OR kind = ?) ORDER BY seq LIMIT ?"
        )
        rows = self._all(query, after, kind, kind, limit)
        return [EventRow(s, t, k, None if r is None else str(r), loads(data)) for s, t, k, r, data in rows]

    # ------------------------------------------------------------------------------------------ inside

    def _all(self, query: str, *values: Any) -> list[Any]:
        with self._snapshot() as db:
            return db.execute(query, values).fetchall()

    def _snapshot(self) -> _Snapshot:
        return _Snapshot(self._connection.db, self._lock, self.path)


class _Snapshot:
    """Queries inside see one moment of the run. Storage errors leave as StoreError."""

    def __init__(self, db: sqlite3.Connection, lock: threading.Lock, path: Path) -> None:
        self._db, self._lock, self._path = db, lock, path

    def __enter__(self) -> sqlite3.Connection:
        self._lock.acquire()
        try:
            self._db.execute("BEGIN")
        except sqlite3.Error as error:
            self._lock.release()
            raise StoreError(f"{self._path}: {error}") from error
        return self._db

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        finally:
            self._lock.release()
        if isinstance(error, sqlite3.Error):
            raise StoreError(f"{self._path}: {error}") from error


def _row_of(rollout_id: str) -> int:
    """The row number of a rollout id; -1, which no row has, for what is none."""
    return int(rollout_id) if rollout_id.isascii() and rollout_id.isdigit() and len(rollout_id) < 19 else -1


def _rollout(row: tuple[Any, ...]) -> RolloutRow:
    """A row of `_ROLLOUT_COLUMNS` and the texts."""
    resolved, trusted = (None if flag is None else bool(flag) for flag in row[11:13])
    return RolloutRow(
        id=str(row[0]),
        task_id=utf8(loads(row[1])),
        sample=row[2],
        attempt=row[3],
        state=row[4],
        superseded=bool(row[5]),
        started=row[6],
        ended=row[7],
        exit_reason=row[8],
        exit_class=row[9],
        score=row[10],
        resolved=resolved,
        trusted=trusted,
        turns=row[13],
        tokens=dict(zip(TOKENS, row[14:18], strict=True)),
        time=dict(zip(PHASES, row[18:23], strict=True)),
        dropped_reasons=loads(row[23], {}),
        reward_breakdown=loads(row[24], {}),
        reward_error=row[25] or "",
        error=row[26] or "",
        answer=row[27] or "",
        opening=loads(row[28], []),
        reward_log=row[29] or "",
    )


def _turn(row: tuple[Any, ...]) -> TurnRow:
    return TurnRow(
        index=row[0],
        status=row[1],
        finish_reason=row[2],
        span=(row[3], row[4]),
        model_seconds=row[5],
        tool_seconds=row[6],
        usage=loads(row[7]),
        message=loads(row[8]),
        results=loads(row[9]),
        observations=loads(row[10]),
    )


def _chain(row: tuple[Any, ...]) -> ChainRow:
    return ChainRow(
        index=row[0],
        request_id=row[1],
        prompt_ids=blobs.ids_of(row[2]),
        response_ids=blobs.ids_of(row[3]),
        response_mask=blobs.mask_of(row[4]),
        response_logprobs=blobs.floats_of(row[5]),
        spans=loads(row[6]),
        weight_spans=loads(row[7]),
        metrics=loads(row[8]),
        extra=loads(row[9]),
    )
