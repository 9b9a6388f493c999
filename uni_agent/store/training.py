"""What a training run adds to a run's file: which step a rollout belongs to, and how far each source of it was read.

The tables are made by the first training; a run without one has no steps. Metrics of steps are events of kind
`train_step`; an event `train_rewound` takes back the steps after its own.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uni_agent.store.changes import key_of, write_event
from uni_agent.store.connect import ReadConnection
from uni_agent.store.text import column, loads
from uni_agent.types import RolloutKey

Change = Callable[[sqlite3.Connection], None]

_TABLES = (
    "CREATE TABLE IF NOT EXISTS train_sources"
    " (source TEXT PRIMARY KEY, seq INTEGER NOT NULL, position INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS train_rollouts (rollout INTEGER PRIMARY KEY, source TEXT NOT NULL, name TEXT NOT NULL,"
    " step INTEGER, phase TEXT NOT NULL, uid TEXT NOT NULL, session INTEGER, rewound INTEGER NOT NULL DEFAULT 0)",
    "CREATE INDEX IF NOT EXISTS train_rollouts_step ON train_rollouts (step, phase)",
    "CREATE INDEX IF NOT EXISTS events_train ON events (seq) WHERE kind IN ('train_step', 'train_rewound')",
)
_OF_SAME_SAMPLE = "r.task_id = rollouts.task_id AND r.sample = rollouts.sample AND r.task_key = rollouts.task_key"


# ---------------------------------------------------------------------------------------------- writing


def create_tables(db: sqlite3.Connection) -> None:
    """A change that makes what is missing."""
    for statement in _TABLES:
        db.execute(statement)


def write_mark(source: str, seq: int, position: int) -> Change:
    """`source` was read up to entry `seq`, which starts at byte `position`."""

    def change(db: sqlite3.Connection) -> None:
        db.execute("INSERT OR REPLACE INTO train_sources VALUES (?, ?, ?)", (column(source), seq, position))

    return change


def place_rollout(time: float, row: int, source: str, name: str, about: Mapping[str, Any]) -> Change:
    """Rollout `row` is the one that `source` calls `name`, and belongs where `about` says; with its event."""
    step, session = _integer(about.get("step")), _integer(about.get("session"))
    phase, uid = column(str(about.get("phase", "train"))), column(str(about.get("uid", "")))
    values = (row, column(source), column(name), step, phase, uid, session)
    event = write_event(time, "train_rollout", row, dict(about))

    def change(db: sqlite3.Connection) -> None:
        db.execute(
            "INSERT OR REPLACE INTO train_rollouts (rollout, source, name, step, phase, uid, session)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            values,
        )
        event(db)

    return change


def rewind(time: float, step: int) -> Change:
    """Training goes on from the end of `step`: what later steps rolled out and measured so far no longer counts."""
    event = write_event(time, "train_rewound", None, {"step": step})

    def change(db: sqlite3.Connection) -> None:
        db.execute("UPDATE train_rollouts SET rewound = 1 WHERE step > ?", (step,))
        db.execute(
            "UPDATE rollouts SET superseded = 1"
            " WHERE superseded = 0 AND id IN (SELECT rollout FROM train_rollouts WHERE rewound = 1)"
        )
        event(db)

    return change


def count_again(db: sqlite3.Connection) -> None:
    """A change after a resume: training does not redo what ended badly, so that counts unless it was done again."""
    db.execute(
        "UPDATE rollouts SET superseded = 0 WHERE superseded = 1"  # noqa: S608 - our own text
        " AND id IN (SELECT rollout FROM train_rollouts WHERE rewound = 0)"
        f" AND id = (SELECT max(r.id) FROM rollouts r WHERE {_OF_SAME_SAMPLE})"
    )


def _integer(value: Any) -> int | None:
    return value if type(value) is int and abs(value) < 2**63 else None


# ---------------------------------------------------------------------------------------------- going on


@dataclass(frozen=True, slots=True)
class OpenRollout:
    """A rollout that did not end yet. `source` calls it `name`; `turns` of it are stored."""

    row: str
    key: RolloutKey
    source: str
    name: str
    turns: int


@dataclass(frozen=True, slots=True)
class Progress:
    """What of the sources is in the store: the next entry's number and byte of each, and what did not end."""

    marks: dict[str, tuple[int, int]]
    open: list[OpenRollout]


def read_progress(path: Path) -> Progress:
    """The progress that the run's file `path` holds; empty when it holds no training. Raises StoreError."""
    connection = ReadConnection(path)
    with closing(connection):
        db = connection.db
        if not has_training(db):
            return Progress({}, [])
        marks = {source: (seq, position) for source, seq, position in db.execute("SELECT * FROM train_sources")}
        rows = db.execute(
            "SELECT r.id, r.task_key, r.sample, t.source, t.name,"
            " (SELECT count(*) FROM turns WHERE turns.rollout = r.id)"
            " FROM train_rollouts t JOIN rollouts r ON r.id = t.rollout WHERE r.state != 'done' ORDER BY r.id"
        )
        return Progress(marks, [OpenRollout(str(r[0]), key_of(r[1], r[2]), r[3], r[4], r[5]) for r in rows])


def has_training(db: sqlite3.Connection) -> bool:
    """Whether the run holds training."""
    query = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'train_rollouts'"
    return bool(db.execute(query).fetchone()[0])


# ---------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True)
class TrainStep:
    """The metrics of one step, None where a metric was NaN or infinite. `time` is when they came, in Unix seconds."""

    step: int
    time: float
    metrics: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StepRollouts:
    """The rollouts of one step and phase, without those that were retried, redone or taken back.

    `rollouts` ended, `running` did not yet. `reward_mean` and `resolved_rate` are over the `trusted` rewards, None
    without any; `turns_mean` is None without rollouts. `tokens` are sums by fate, `time` seconds by phase of a rollout,
    summed over rollouts.
    """

    step: int | None
    phase: str
    rollouts: int
    running: int
    trusted: int
    reward_mean: float | None
    resolved_rate: float | None
    turns_mean: float | None
    exit_reasons: dict[str, int]
    tokens: dict[str, int]
    time: dict[str, float]


@dataclass(frozen=True, slots=True)
class GroupScore:
    """The rewards of one group of tasks in one step's validation: means over the `trusted`, None without any."""

    step: int | None
    group: str
    rollouts: int
    trusted: int
    reward_mean: float | None
    resolved_rate: float | None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rollout belongs; `session` says which of its group `uid` it is."""

    step: int | None
    phase: str
    uid: str
    session: int | None


def steps(db: sqlite3.Connection) -> list[TrainStep]:
    """Steps in order. What was written of a step is joined, the newest value of a metric wins."""
    found: dict[int, TrainStep] = {}
    query = "SELECT time, kind, data FROM events WHERE kind IN ('train_step', 'train_rewound') ORDER BY seq"
    for time, kind, text in db.execute(query):
        data = loads(text)
        if kind == "train_rewound":
            found = {step: row for step, row in found.items() if step <= data["step"]}
            continue
        before = found.get(data["step"])
        metrics = {**before.metrics, **data["metrics"]} if before else data["metrics"]
        found[data["step"]] = TrainStep(data["step"], time, metrics)
    return [found[step] for step in sorted(found)]


def step_rollouts(db: sqlite3.Connection, phases: tuple[str, ...], tokens: tuple[str, ...]) -> list[StepRollouts]:
    """By step, training before validation; `phases` and `tokens` name the columns to add up."""
    if not has_training(db):
        return []
    sums = ", ".join(
        [*(f"coalesce(sum(r.tokens_{name}), 0)" for name in tokens), *(f"total(r.time_{name})" for name in phases)]
    )
    reasons: dict[tuple[int | None, str], dict[str, int]] = {}
    where = "FROM train_rollouts t JOIN rollouts r ON r.id = t.rollout WHERE r.superseded = 0"
    query = f"SELECT t.step, t.phase, r.exit_reason, count(*) AS n {where} AND r.state = 'done'"
    for step, phase, reason, count in db.execute(f"{query} GROUP BY 1, 2, 3 ORDER BY n DESC, 3"):
        reasons.setdefault((step, phase), {})[reason] = count
    rows = db.execute(
        "SELECT t.step, t.phase, count(*) FILTER (WHERE r.state = 'done'), count(*) FILTER (WHERE r.state != 'done'),"
        " count(*) FILTER (WHERE r.trusted), avg(r.score) FILTER (WHERE r.trusted),"
        " avg(r.resolved) FILTER (WHERE r.trusted), avg(r.turns) FILTER (WHERE r.state = 'done'),"
        f" {sums} {where} GROUP BY 1, 2 ORDER BY 1, 2"
    )
    count = len(tokens)
    return [
        StepRollouts(
            *row[:8],
            exit_reasons=reasons.get((row[0], row[1]), {}),
            tokens=dict(zip(tokens, row[8 : 8 + count], strict=True)),
            time=dict(zip(phases, row[8 + count :], strict=True)),
        )
        for row in rows
    ]


def group_scores(db: sqlite3.Connection, group_by: str | None) -> list[GroupScore]:
    """Validation by step and the value of the tasks' metadata key `group_by`; "" for tasks without it."""
    if not has_training(db):
        return []
    rows = db.execute(
        "SELECT t.step, coalesce((SELECT e.value FROM tasks, json_each(tasks.metadata) e"
        " WHERE tasks.task_key = r.task_key AND e.key = ?), '') AS label, count(*), count(*) FILTER (WHERE r.trusted),"
        " avg(r.score) FILTER (WHERE r.trusted), avg(r.resolved) FILTER (WHERE r.trusted)"
        " FROM train_rollouts t JOIN rollouts r ON r.id = t.rollout"
        " WHERE t.phase = 'validation' AND r.superseded = 0 AND r.state = 'done' GROUP BY 1, 2 ORDER BY 1, 2",
        (group_by,),
    )
    return [GroupScore(row[0], str(row[1]), *row[2:]) for row in rows]


def places(db: sqlite3.Connection, rollouts: list[int]) -> dict[str, Place]:
    """Where each of `rollouts` belongs; those that are not of a training are left out."""
    if not has_training(db):
        return {}
    rows = db.execute(
        "SELECT rollout, step, phase, uid, session FROM train_rollouts"
        " WHERE rollout IN (SELECT value FROM json_each(?))",
        (json.dumps(rollouts),),
    )
    return {str(row[0]): Place(*row[1:]) for row in rows}
