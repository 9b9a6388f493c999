"""Journals of gateways in a run that has ended, or that was killed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

from uni_agent.errors import ConfigError, StoreError, boundary
from uni_agent.store.base import JournalEntry
from uni_agent.store.lock import WriterLock
from uni_agent.store.merge import merge_changes
from uni_agent.store.schema import DB_NAME, SCHEMA_VERSION, connect_writer, fold_log, has_run
from uni_agent.store.text import loads


def merge_into(run: Path, journals: Iterable[tuple[str, Iterable[JournalEntry]]]) -> int:
    """Add the entries of `journals`, (source, entries) each, to a run that nobody writes; how many were not there yet.

    `run` is the run's folder or its file. Nothing else of the run changes: it is not resumed, its state and events
    stay. What was added stays when a later entry raises, and merging again goes on from there. A program that writes
    the run itself calls `RunStore.merge`.

    Raises ConfigError when there is no run, or it is being written; StoreError when it cannot be written; what reading
    the journals raises.
    """
    path = run / DB_NAME if run.is_dir() else run
    if not path.is_file():
        raise ConfigError(f"{path}: there is no run to merge into")
    with boundary(StoreError, f"{path}: the journals cannot be merged"):
        lock = WriterLock(path.parent)
        lock.acquire()
        try:
            return _merged(path, journals)
        finally:
            lock.release()


def _merged(path: Path, journals: Iterable[tuple[str, Iterable[JournalEntry]]]) -> int:
    _check(path)
    db = connect_writer(str(path))
    try:
        return sum(_merge(db, source, entries) for source, entries in journals)
    finally:
        fold_log(db)


def _check(path: Path) -> None:
    """Before anything of the file is changed, be it its way of logging."""
    db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    try:
        if not has_run(db):
            raise ConfigError(f"{path}: holds no run")
        (version,) = db.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    finally:
        db.close()
    if loads(version) != SCHEMA_VERSION:
        raise ConfigError(f"{path}: written by another version (schema {version})")


def _merge(db: sqlite3.Connection, source: str, entries: Iterable[JournalEntry]) -> int:
    before = db.total_changes
    for change in merge_changes(source, entries):
        db.execute("BEGIN IMMEDIATE")
        try:
            change(db)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
    return db.total_changes - before
