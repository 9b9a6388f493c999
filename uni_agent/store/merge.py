"""Journals of other processes, such as gateways, in a run's file. Each entry stands there once, however often it comes.

The table is made by the first merge; a run without one has no sessions.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from uni_agent.store import blobs
from uni_agent.store.base import JournalEntry
from uni_agent.store.changes import task_key
from uni_agent.store.text import column

Change = Callable[[sqlite3.Connection], None]

_BATCH = 200
_TABLE = """
CREATE TABLE IF NOT EXISTS journal (
    source TEXT NOT NULL,
    seq INTEGER NOT NULL,
    time REAL NOT NULL,
    kind TEXT NOT NULL,
    session TEXT NOT NULL,
    task_key TEXT,
    sample INTEGER,
    data BLOB NOT NULL,
    PRIMARY KEY (source, seq)
) WITHOUT ROWID
"""
_INDEX = "CREATE INDEX IF NOT EXISTS journal_session ON journal (session, source, seq)"


@dataclass(frozen=True, slots=True)
class MergedEntry:
    """An entry as merged, `data` exactly as it was."""

    source: str
    seq: int
    time: float
    kind: str
    session_id: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session: its first entry of kind `session`. `rollout` is the attempt that was running, None without one."""

    source: str
    session_id: str
    time: float
    rollout: str | None
    data: dict[str, Any]


def merge_changes(source: str, entries: Iterable[JournalEntry]) -> Iterator[Change]:
    """The writes that add what is not there yet. Raises ValueError for data that is not JSON."""
    rows = (_row(source, entry) for entry in entries)
    while batch := list(islice(rows, _BATCH)):
        yield _insert(batch)


def merged_entries(db: sqlite3.Connection, session_id: str) -> list[MergedEntry]:
    """All entries of a session, per source in their order."""
    if not _has_table(db):
        return []
    rows = db.execute(
        "SELECT source, seq, time, kind, session, data FROM journal WHERE session = ? ORDER BY source, seq",
        (column(session_id),),
    )
    return [MergedEntry(r[0], r[1], r[2], r[3], r[4], _data(r[5])) for r in rows]


def merged_sessions(db: sqlite3.Connection) -> list[SessionRow]:
    """All sessions, in the order in which they were opened."""
    if not _has_table(db):
        return []
    rows = db.execute(
        "SELECT source, session, time, data, (SELECT max(id) FROM rollouts WHERE rollouts.task_key = journal.task_key"
        " AND rollouts.sample = journal.sample AND started <= journal.time)"
        " FROM journal WHERE kind = 'session' ORDER BY time, source, seq"
    )
    return [SessionRow(r[0], r[1], r[2], None if r[4] is None else str(r[4]), _data(r[3])) for r in rows]


def _row(source: str, entry: JournalEntry) -> tuple[Any, ...]:
    key, sample = _rollout_of(entry) if entry.kind == "session" else (None, None)
    try:
        text = json.dumps(entry.data, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, RecursionError) as error:
        raise ValueError(f"entry {entry.seq} of {source} is not JSON: {error}") from error
    data = blobs.pack(text.encode("utf-8", "surrogatepass"))
    return column(source), entry.seq, entry.time, column(entry.kind), column(entry.session_id), key, sample, data


def _rollout_of(entry: JournalEntry) -> tuple[str | None, int | None]:
    """The task and sample that the session's `metadata` names, if it does; a gateway has it among the `settings`."""
    values = _mapping(entry.data.get("metadata", _mapping(entry.data.get("settings")).get("metadata")))
    task, sample = values.get("task_id"), values.get("sample")
    if not isinstance(task, str) or type(sample) is not int or not 0 <= sample < 2**63:
        return None, None
    return task_key(task), sample


def _mapping(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _insert(rows: list[tuple[Any, ...]]) -> Change:
    def change(db: sqlite3.Connection) -> None:
        db.execute(_TABLE)
        db.execute(_INDEX)
        db.executemany("INSERT OR IGNORE INTO journal VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    return change


def _has_table(db: sqlite3.Connection) -> bool:
    return bool(
        db.execute("SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'journal'").fetchone()[0]
    )


def _data(blob: bytes) -> dict[str, Any]:
    return json.loads(blobs.unpack(blob).decode("utf-8", "surrogatepass"))
