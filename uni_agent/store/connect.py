"""Opening a run's file to read it: beside a living writer, after a killed one, and where nothing may be written."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from pathlib import Path

from uni_agent.errors import StoreError
from uni_agent.store.schema import SCHEMA_VERSION, has_run


class ReadConnection:
    """A read-only connection, and the temporary copy it may need."""

    def __init__(self, path: Path) -> None:
        """Open `path`. Raises StoreError when it is no run, or one of another schema version."""
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        if not path.is_file():
            raise StoreError(f"{path}: no such file")
        try:
            self.db = self._open(path)
        except sqlite3.Error as error:
            self._drop_copy()
            raise StoreError(f"{path}: cannot be read as a run: {error}") from error
        self.db.execute("PRAGMA query_only = ON")
        try:
            self._check(path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close, and remove the copy. Idempotent."""
        self.db.close()
        self._drop_copy()

    def _open(self, path: Path) -> sqlite3.Connection:
        try:
            return _connect(path, "mode=ro")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                raise
        # The folder cannot be written, so SQLite cannot make the index of the log there. No log: read the bare file.
        log = path.with_name(path.name + "-wal")
        if not log.is_file() or not log.stat().st_size:
            return _connect(path, "mode=ro&immutable=1")
        self._copy = tempfile.TemporaryDirectory(prefix="uni-agent-run-")
        copy = Path(self._copy.name) / path.name
        shutil.copyfile(path, copy)
        shutil.copyfile(log, copy.with_name(copy.name + "-wal"))
        return _connect(copy, "mode=rw")

    def _check(self, path: Path) -> None:
        if not has_run(self.db):
            raise StoreError(f"{path}: holds no run")
        version = self.db.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
        if version is None or version[0] != str(SCHEMA_VERSION):
            found = "none" if version is None else version[0]
            raise StoreError(f"{path}: schema version {found}, but this version of uni-agent reads {SCHEMA_VERSION}")

    def _drop_copy(self) -> None:
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None


def _connect(path: Path, query: str) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?{query}"
    db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=10.0)
    try:
        db.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # opening alone touches nothing
    except BaseException:
        db.close()
        raise
    return db
