"""Finding runs on the disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from uni_agent.errors import ConfigError
from uni_agent.store.schema import DB_NAME

DEFAULT_ROOT = Path("runs")


@dataclass(frozen=True, slots=True)
class RunPath:
    """A run on the disk: its file, and when that was last written (Unix seconds)."""

    db: Path
    modified: float

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.db.parent


def list_runs(root: Path = DEFAULT_ROOT, *, depth: int = 3) -> list[RunPath]:
    """The runs in `root` and in `depth` levels of folders below it, last written first; [] when there are none."""
    found: list[RunPath] = []
    folders = [root]
    for _ in range(depth + 1):
        found.extend(run for folder in folders if (run := _run_in(folder)) is not None)
        folders = [below for folder in folders for below in _folders(folder)]
    return sorted(found, key=lambda run: (-run.modified, str(run.db)))


def find_run(name: str | None = None, root: Path = DEFAULT_ROOT) -> Path:
    """The database file that a user means: a run's folder, its file, a name below `root`, or `latest` (also None).

    Raises ConfigError that says where it looked.
    """
    if name in (None, "", "latest"):
        runs = list_runs(root)
        if not runs:
            raise ConfigError(f"no run in {str(root)!r}: name a run's folder")
        return runs[0].db
    for path in (Path(str(name)), root / str(name)):
        if path.is_file():
            return path
        if (run := _run_in(path)) is not None:
            return run.db
    exists = Path(str(name)).exists() or (root / str(name)).exists()
    what = f"holds no {DB_NAME}" if exists else "no such run"
    raise ConfigError(f"{name}: {what}; give a run's folder, its {DB_NAME}, or `latest` (looked in {str(root)!r}, too)")


def _run_in(folder: Path) -> RunPath | None:
    db = folder / DB_NAME
    log = db.with_name(db.name + "-wal")
    try:
        modified = db.stat().st_mtime
        return RunPath(db, max(modified, log.stat().st_mtime) if log.exists() else modified)
    except OSError:
        return None


def _folders(folder: Path) -> list[Path]:
    try:
        return [entry for entry in folder.iterdir() if entry.is_dir() and not entry.is_symlink()]
    except OSError:
        return []
