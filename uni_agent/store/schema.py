"""The tables of a run's file. Documented for other readers in docs/store.md; change both, and the version, together."""

from __future__ import annotations

import sqlite3

SCHEMA_VERSION = 1
DB_NAME = "run.db"

_TABLES = """
CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL                  -- JSON
) WITHOUT ROWID;

CREATE TABLE tasks (
    task_key TEXT PRIMARY KEY,           -- the id as ASCII JSON: exact, whatever it holds
    id TEXT NOT NULL,                    -- the id as readable text
    content_hash TEXT NOT NULL,
    prompt TEXT NOT NULL,                -- JSON: text, or OpenAI-style messages
    metadata TEXT NOT NULL,              -- JSON
    spec TEXT NOT NULL                   -- JSON: the task's other fields, secrets redacted
);

CREATE TABLE rollouts (
    id INTEGER PRIMARY KEY,
    task_key TEXT NOT NULL,
    task_id TEXT NOT NULL,
    sample INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    state TEXT NOT NULL,                 -- queued, starting, running, grading, done
    superseded INTEGER NOT NULL DEFAULT 0,
    started REAL NOT NULL,               -- Unix seconds
    ended REAL,
    exit_reason TEXT,
    exit_class TEXT,
    score REAL,
    resolved INTEGER,
    trusted INTEGER,                     -- the ending and the grader both say something about the model
    turns INTEGER NOT NULL DEFAULT 0,
    tokens_sampled INTEGER NOT NULL DEFAULT 0,
    tokens_trained INTEGER NOT NULL DEFAULT 0,
    tokens_masked INTEGER NOT NULL DEFAULT 0,
    tokens_dropped INTEGER NOT NULL DEFAULT 0,
    time_start REAL NOT NULL DEFAULT 0,
    time_model REAL NOT NULL DEFAULT 0,
    time_tools REAL NOT NULL DEFAULT 0,
    time_reward REAL NOT NULL DEFAULT 0,
    time_teardown REAL NOT NULL DEFAULT 0,
    dropped_reasons TEXT,                -- JSON: reason -> tokens
    reward_breakdown TEXT,               -- JSON: part -> number
    reward_error TEXT,
    error TEXT,
    answer TEXT,
    opening TEXT,                        -- JSON: the messages before the first turn
    reward_log TEXT
);
-- Each (task, sample) counts once.
CREATE UNIQUE INDEX rollouts_current ON rollouts (task_key, sample) WHERE superseded = 0;
CREATE INDEX rollouts_task ON rollouts (task_id, sample);
CREATE INDEX rollouts_reason ON rollouts (superseded, exit_reason, id);
-- Holds every column that the summary adds up, so that it never reads the wide rows.
CREATE INDEX rollouts_summary ON rollouts (
    superseded, state, exit_reason, score, resolved, trusted, turns,
    tokens_sampled, tokens_trained, tokens_masked, tokens_dropped,
    time_start, time_model, time_tools, time_reward, time_teardown
);
CREATE INDEX rollouts_dropped ON rollouts (superseded, dropped_reasons) WHERE tokens_dropped > 0;

CREATE TABLE turns (
    rollout INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    status TEXT NOT NULL,
    finish_reason TEXT NOT NULL,
    span_start INTEGER NOT NULL,
    span_end INTEGER NOT NULL,
    model_seconds REAL NOT NULL,
    tool_seconds REAL NOT NULL,
    usage TEXT NOT NULL,                 -- JSON
    message TEXT NOT NULL,               -- JSON
    results TEXT NOT NULL,               -- JSON
    observations TEXT NOT NULL,          -- JSON
    PRIMARY KEY (rollout, idx)
) WITHOUT ROWID;

CREATE TABLE tool_calls (
    rollout INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    name TEXT NOT NULL,
    status TEXT NOT NULL,
    exit_code INTEGER,
    seconds REAL NOT NULL,
    PRIMARY KEY (rollout, turn, idx)
) WITHOUT ROWID;

CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    time REAL NOT NULL,
    kind TEXT NOT NULL,
    rollout INTEGER,
    data TEXT NOT NULL                   -- JSON
);

CREATE TABLE chains (
    rollout INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    request_id TEXT NOT NULL,
    prompt_ids BLOB NOT NULL,
    response_ids BLOB NOT NULL,
    mask BLOB NOT NULL,
    logprobs BLOB,
    spans TEXT NOT NULL,                 -- JSON: [kind, turn, start, end] each
    weight_spans TEXT NOT NULL,          -- JSON: [version, start, end] each
    metrics TEXT NOT NULL,               -- JSON
    extra TEXT NOT NULL,                 -- JSON
    PRIMARY KEY (rollout, idx)
);
"""


def connect_writer(path: str) -> sqlite3.Connection:
    """A connection that may write; it outlives the thread that made it. Transactions are begun by hand."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
    connection.execute("PRAGMA journal_mode = WAL")
    # Safe against a killed process; a power cut may cost the last commits, never the file.
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def fold_log(db: sqlite3.Connection) -> None:
    """Close `db`, its log folded into the one file, which can be copied and read anywhere; readers prevent that."""
    try:
        db.execute("PRAGMA busy_timeout = 0")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error:
        return  # everything committed stands in file and log; only their folding has to wait
    finally:
        db.close()


def has_run(connection: sqlite3.Connection) -> bool:
    """Whether the file holds a run. A process that died while creating one leaves none."""
    query = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'meta'"
    return bool(connection.execute(query).fetchone()[0])


def create_tables(connection: sqlite3.Connection) -> None:
    """Make every table. Call inside a transaction: half a schema must never be seen."""
    statement = ""
    for line in _TABLES.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""
