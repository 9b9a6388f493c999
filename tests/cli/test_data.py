"""`uni-agent data`: from any source to verl's parquet and back, and what its errors say."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import write_jsonl, write_yaml
from uni_agent.cli import main
from uni_agent.data import JsonlDataConfig, read_verl_parquet
from uni_agent.types import Task

TASKS: list[dict[str, Any]] = [
    {"id": "one", "prompt": "Do one.", "metadata": {"kind": "a"}, "files": {"x": {"path": "in/x.txt"}}},
    {"id": "two", "prompt": "Do two.", "metadata": {"kind": "b"}, "env": {"A": "\x1b[2J"}},
    {
        "id": "three",
        "prompt": [{"role": "user", "content": "Do three."}],
        "metadata": {"kind": "b"},
        "repo": {"path": "in"},
        "overrides": {"reward": {"type": "command", "command": "true", "files": {"h": {"path": "in/x.txt"}}}},
    },
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.txt").write_text("x")
    write_jsonl(tmp_path / "tasks.jsonl", TASKS)
    (tmp_path / "other").mkdir()
    return tmp_path


def tasks_in(path: Path) -> list[Task]:
    return JsonlDataConfig(type="jsonl", path=path).build().load()


def rows_in(path: Path) -> list[dict[str, Any]]:
    return importlib.import_module("pyarrow.parquet").read_table(path).to_pylist()


def test_a_task_file_becomes_rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "to-verl", "tasks.jsonl", "-o", "t.parquet", "--split", "test", "--group-by", "kind"]) == 0
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "t.parquet: 3 rows\n")
    rows = rows_in(folder / "t.parquet")
    assert [row["data_source"] for row in rows] == ["tasks/a", "tasks/b", "tasks/b"]
    assert {row["extra_info"]["split"] for row in rows} == {"test"}
    assert list(read_verl_parquet(folder / "t.parquet")) == tasks_in(folder / "tasks.jsonl")


def test_the_data_block_of_a_yaml_is_enough_and_is_obeyed(folder: Path) -> None:
    data = {"type": "jsonl", "path": "tasks.jsonl", "ids": ["three", "one"], "shuffle_seed": 3}
    write_yaml(folder / "p.yaml", {"name": "mine", "data": data, "model": {"type": "not there"}, "whatever": 1})
    assert main(["data", "to-verl", "p.yaml", "-o", "t.parquet", "--agent-name", "swe"]) == 0
    rows = rows_in(folder / "t.parquet")
    assert sorted(json.loads(row["extra_info"]["task"])["id"] for row in rows) == ["one", "three"]
    assert {(row["data_source"], row["agent_name"]) for row in rows} == {("mine", "swe")}
    assert main(["data", "to-verl", "p.yaml", "-o", "t.parquet", "--limit", "1", "--data-source", "x"]) == 0
    assert [row["data_source"] for row in rows_in(folder / "t.parquet")] == ["x"]
    assert main(["data", "to-verl", "pkg://uni_agent/configs/quickstart.yaml", "-o", "t.parquet"]) == 0
    assert len(rows_in(folder / "t.parquet")) == 60


@pytest.mark.parametrize("target", ["back.jsonl", "other/back.jsonl"])
def test_the_way_back_keeps_tasks_and_what_they_refer_to(folder: Path, target: str) -> None:
    assert main(["data", "to-verl", "tasks.jsonl", "-o", "other/t.parquet"]) == 0
    assert main(["data", "from-verl", "other/t.parquet", "-o", target]) == 0
    before, after = tasks_in(folder / "tasks.jsonl"), tasks_in(folder / target)
    if target == "back.jsonl":
        assert after == before
        return
    assert [task.id for task in after] == ["one", "two", "three"]
    assert after[1].model_copy(update={"base_dir": ""}) == before[1].model_copy(update={"base_dir": ""})
    records = [task.model_dump(mode="json", exclude_defaults=True) for task in after]
    assert records[0]["files"]["x"]["path"] == str(folder / "in" / "x.txt")
    assert records[2]["repo"]["path"] == str(folder / "in")
    assert records[2]["overrides"]["reward"]["files"]["h"]["path"] == str(folder / "in" / "x.txt")


def test_rows_of_an_earlier_dataset_are_converted(folder: Path) -> None:
    pa: Any = importlib.import_module("pyarrow")
    pq: Any = importlib.import_module("pyarrow.parquet")
    info = {"index": 0, "tools_kwargs": {"env": {"deployment": {"image": "i"}}, "reward": {"name": "dummy"}}}
    row = {"prompt": [{"role": "user", "content": "Go."}], "data_source": "old", "extra_info": info}
    pq.write_table(pa.Table.from_pylist([row]), folder / "old.parquet")
    assert main(["data", "to-verl", "old.parquet", "-o", "new.parquet"]) == 0
    (task,) = read_verl_parquet(folder / "new.parquet")
    assert (task.id, task.image, task.overrides) == ("old-0", "i", {"reward": {"type": "dummy"}})


def test_show_counts_and_prints_nothing_a_terminal_would_obey(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "show", "tasks.jsonl"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("3 tasks\n")
    assert "\x1b" not in out
    assert "metadata   in 3" in out
    assert main(["data", "to-verl", "tasks.jsonl", "-o", "t.parquet", "--group-by", "kind"]) == 0
    capsys.readouterr()
    assert main(["data", "show", "t.parquet", "-n", "1"]) == 0
    out = capsys.readouterr().out
    assert "tasks/a  1\n  tasks/b  2\n" in out
    assert "extra_info    struct<index: int64, split: string, task: string>" in out
    assert out.count("Do one.") == 1
    assert "Do two." not in out
    assert main(["data", "show", "t.parquet", "-n", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["tasks"], told["sources"]) == (3, {"tasks/a": 1, "tasks/b": 2})
    assert [task["id"] for task in told["first"]] == ["one", "two"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["to-verl", "tasks.txt", "-o", "t.parquet"], "tasks.txt: no source of tasks: name a pipeline's YAML"),
        (["to-verl", "none.jsonl", "-o", "t.parquet"], "none.jsonl: cannot be read: No such file"),
        (["to-verl", "none.yaml", "-o", "t.parquet"], "none.yaml"),
        (["to-verl", "empty.yaml", "-o", "t.parquet"], "data: missing"),
        (["to-verl", "bad.jsonl", "-o", "t.parquet"], "bad.jsonl:2: unknown key 'promt'; did you mean 'prompt'?"),
        (["to-verl", "bad.parquet", "-o", "t.parquet"], "bad.parquet: cannot be read as parquet"),
        (["to-verl", "tasks.jsonl", "-o", "tasks.jsonl"], "tasks.jsonl: is the source and would be replaced"),
        (["to-verl", "tasks.jsonl", "-o", "no/t.parquet"], "no/t.parquet: cannot be written: "),
        (["to-verl", "tasks.jsonl", "-o", "t.parquet", "--group-by", "x"], "task 'one': metadata.x: is missing"),
        (["to-verl", "tasks.jsonl", "-o", "t.parquet", "--limit", "0"], "'0' is no count"),
        (["to-verl", "tasks.jsonl"], "required: -o/--output"),
        (["from-verl", "tasks.jsonl", "-o", "t.jsonl"], "tasks.jsonl: cannot be read as parquet"),
        (["from-verl", "foreign.parquet", "-o", "t.jsonl"], "foreign.parquet row 0: extra_info: holds neither"),
        (["from-verl", "old.parquet", "-o", "t.jsonl"], "old.parquet row 0: extra_info.tools_kwargs.tools: "),
        (["from-verl", "twice", "-o", "t.jsonl"], "twice: task 3: id: 'one' was already used at twice: task 0"),
        (["show", "foreign.parquet"], "foreign.parquet row 0: extra_info"),
        ([], "required: ACTION"),
    ],
)
def test_mistakes_name_file_key_and_cure_and_exit_2(
    folder: Path, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pa: Any = importlib.import_module("pyarrow")
    pq: Any = importlib.import_module("pyarrow.parquet")
    write_yaml(folder / "empty.yaml", {"name": "x"})
    write_jsonl(folder / "bad.jsonl", [TASKS[1], {"id": "x", "promt": "y"}])
    (folder / "bad.parquet").write_text("nothing")
    pq.write_table(pa.Table.from_pylist([{"prompt": "x", "extra_info": {"index": 0}}]), folder / "foreign.parquet")
    old: dict[str, Any] = {
        "prompt": [],
        "extra_info": {"index": 0, "tools_kwargs": {"tools": ["x"], "reward": {"name": "dummy"}}},
    }
    pq.write_table(pa.Table.from_pylist([{**old, "data_source": "old"}]), folder / "old.parquet")
    (folder / "twice").mkdir()
    for name in ("a", "b"):
        assert main(["data", "to-verl", "tasks.jsonl", "-o", f"twice/{name}.parquet"]) == 0
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(["data", *argv]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert message in told.err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
