from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

import pytest

from uni_agent.errors import StoreError
from uni_agent.store.writer import Writer


def connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0.05)
    db.execute("CREATE TABLE IF NOT EXISTS t (n INTEGER UNIQUE)")
    return db


def insert(number: int):
    def change(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO t VALUES (?)", (number,))

    return change


def stored(path: Path) -> list[int]:
    db = sqlite3.connect(path)
    try:
        return [number for (number,) in db.execute("SELECT n FROM t ORDER BY rowid")]
    finally:
        db.close()


def test_changes_stand_in_order_after_a_flush(tmp_path: Path) -> None:
    writer = Writer(connect(tmp_path / "db"))
    for number in range(1000):
        writer.submit(insert(number))
    writer.flush(10)
    assert stored(tmp_path / "db") == list(range(1000))
    assert writer.pending == 0
    writer.close(5)


def test_changes_are_committed_soon_without_a_flush(tmp_path: Path) -> None:
    writer = Writer(connect(tmp_path / "db"), interval=0.01)
    writer.submit(insert(1))
    deadline = time.monotonic() + 5
    while writer.pending and time.monotonic() < deadline:
        time.sleep(0.01)
    assert stored(tmp_path / "db") == [1]
    writer.close(5)


def test_a_change_at_fault_is_reported_and_takes_no_other_with_it(tmp_path: Path) -> None:
    def broken(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO t VALUES (77)")
        raise KeyError("bug")

    writer = Writer(connect(tmp_path / "db"))
    for change in (insert(1), broken, insert(1), insert(2)):
        writer.submit(change)
    with pytest.raises(StoreError, match="2 records were rejected, the first with KeyError"):
        writer.flush(5)
    assert isinstance(writer.error, KeyError)
    writer.submit(insert(3))
    with pytest.raises(StoreError, match="rejected"):
        writer.close(5)
    assert stored(tmp_path / "db") == [1, 2, 3]


def test_a_database_held_by_another_is_waited_for(tmp_path: Path) -> None:
    writer = Writer(connect(tmp_path / "db"), interval=0.01)
    other = sqlite3.connect(tmp_path / "db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    writer.submit(insert(1))
    with pytest.raises(StoreError, match="1 records could not be written"):
        writer.flush(5)
    assert writer.error is not None
    assert writer.pending == 1
    other.execute("ROLLBACK")
    other.close()
    writer.flush(5)
    assert writer.error is None
    assert stored(tmp_path / "db") == [1]
    writer.close(5)


def test_submitting_never_waits_for_a_slow_disk(tmp_path: Path) -> None:
    gate = threading.Event()

    def slow(db: sqlite3.Connection) -> None:
        gate.wait(10)

    writer = Writer(connect(tmp_path / "db"))
    writer.submit(slow)
    began = time.monotonic()
    for number in range(5000):
        writer.submit(insert(number))
    assert time.monotonic() - began < 2
    with pytest.raises(StoreError, match="not committed within"):
        writer.flush(0.05)
    gate.set()
    writer.flush(10)
    assert len(stored(tmp_path / "db")) == 5000
    writer.close(5)
