"""Tasks as verl's rows: nothing is lost, nothing is doubled, and what is no row of ours is refused by key."""

from __future__ import annotations

import datetime
import importlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uni_agent.data import JsonlDataConfig, read_verl_parquet, task_of, task_row, write_verl_parquet
from uni_agent.errors import DataError
from uni_agent.types import Repo, Task, TaskFile

SUITES = Path(__file__).resolve().parents[2] / "uni_agent" / "data" / "suites"
RICH = Task(
    id="a/b #1 ü",
    prompt=[
        {"role": "system", "content": "Be good."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Look at "}, {"type": "text", "text": "<image>\u2028\0"}],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "ok", "tool_call_id": "1"},
    ],
    image="python:3.12",
    workdir="/work",
    files={"plain.txt": "text\n", "data/x.bin": TaskFile(path="../x.bin", mode=0o755), "b": TaskFile(base64="AAE=")},
    repo=Repo(path="repo", commit="abc"),
    setup=["true", "echo 'x'"],
    setup_timeout=12.5,
    env={"A": "1"},
    overrides={"reward": {"type": "command", "command": "false", "files": {"h": {"path": "hidden/h.py"}}}},
    metadata={"kind": "copy", "nested": {"a": [1, None, {"b": 2.5}], "": True}, "big": 2**70, "none": None},
    base_dir="some/folder",
)
PLAIN = Task(id="t", prompt="Do it.")


def row_of(task: Task, index: int = 0) -> dict[str, Any]:
    return task_row(task, index, split="train", data_source="demo")


def written(tasks: Iterable[Task], path: Path, **options: Any) -> list[dict[str, Any]]:
    count = write_verl_parquet(tasks, path, **{"split": "train", "data_source": "demo", **options})
    table: Any = importlib.import_module("pyarrow.parquet").read_table(path)
    rows: list[dict[str, Any]] = table.to_pylist()
    assert len(rows) == count
    return rows


def test_a_row_has_what_verl_reads() -> None:
    row = row_of(RICH, 7)
    assert {key: row[key] for key in ("data_source", "agent_name", "reward_model")} == {
        "data_source": "demo",
        "agent_name": "uni_agent",
        "reward_model": {"style": "rule", "ground_truth": ""},
    }
    assert row["prompt"] == [
        {"role": "system", "content": "Be good."},
        {"role": "user", "content": "Look at <image>\u2028\0"},
        {"role": "assistant", "content": ""},
        {"role": "tool", "content": "ok"},
    ]
    assert (row["extra_info"]["index"], row["extra_info"]["split"]) == (7, "train")
    assert row_of(PLAIN)["prompt"] == [{"role": "user", "content": "Do it."}]


@pytest.mark.parametrize("task", [RICH, PLAIN], ids=["rich", "plain"])
def test_the_task_comes_back_as_it_was(task: Task) -> None:
    assert task_of(row_of(task)) == task


def test_rows_of_different_shapes_share_a_file_without_mixing_their_keys(tmp_path: Path) -> None:
    other = Task(id="other", prompt="x", metadata={"kind": {"not": "text"}, "more": 1}, overrides={"tools": ["finish"]})
    rows = written([RICH, PLAIN, other], tmp_path / "t.parquet")
    assert [task_of(row) for row in rows] == [RICH, PLAIN, other]
    assert list(read_verl_parquet(tmp_path / "t.parquet")) == [RICH, PLAIN, other]


@pytest.mark.parametrize("suite", ["shell_basics", "shell_basics_heldout", "mini_swe"])
def test_the_packaged_suites_round_trip(suite: str, tmp_path: Path) -> None:
    tasks = JsonlDataConfig(type="jsonl", path=SUITES / f"{suite}.jsonl").build().load()
    rows = written(tasks, tmp_path / "t.parquet")
    assert [task_of(row) for row in rows] == tasks
    assert [row["extra_info"]["index"] for row in rows] == list(range(len(tasks)))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(metadata=st.dictionaries(st.text(), JSON, max_size=4), overrides=st.dictionaries(st.text(), JSON, max_size=3))
def test_any_json_comes_back(metadata: dict[str, Any], overrides: dict[str, Any]) -> None:
    task = Task(id="t", prompt="x", metadata=metadata, overrides=overrides, base_dir="b")
    assert task_of(row_of(task)) == task


@pytest.mark.parametrize(
    "metadata",
    [{"day": datetime.date(2026, 1, 2)}, {"pair": (1, 2)}, {"by_number": {1: "x"}}, {"x": float("nan")}, {"x": b"a"}],
    ids=["date", "tuple", "key", "nan", "bytes"],
)
def test_what_json_does_not_keep_is_refused_and_not_changed(metadata: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"task 't': .*JSON"):
        written([Task(id="t", prompt="x", metadata=metadata)], tmp_path / "t.parquet")
    assert list(tmp_path.iterdir()) == []


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(DataError, match="task 't'"):
        row_of(Task(id="t", prompt="\ud800"))


def test_a_value_set_on_a_default_is_kept() -> None:
    task = Task(id="t", prompt="x")
    task.metadata["later"] = 1
    assert task_of(row_of(task)).metadata == {"later": 1}


def test_rows_are_written_as_they_come_and_the_source_is_read_once(tmp_path: Path) -> None:
    taken: list[int] = []

    def tasks() -> Iterator[Task]:
        for number in range(600):
            taken.append(number)
            yield Task(id=f"t{number}", prompt=f"Do {number}.")

    rows = written(tasks(), tmp_path / "t.parquet")
    assert taken == list(range(600))
    assert [task_of(row).id for row in rows] == [f"t{number}" for number in range(600)]
    metadata: Any = importlib.import_module("pyarrow.parquet").read_metadata(tmp_path / "t.parquet")
    assert metadata.num_row_groups > 1


def test_ids_that_come_twice_are_refused_and_the_file_before_stays(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    written([PLAIN], path)
    before = path.read_bytes()
    with pytest.raises(DataError, match="task 't': comes twice"):
        written([PLAIN, RICH, PLAIN], path)
    with pytest.raises(DataError, match="no tasks"):
        written([], path)
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["t.parquet"]
    with pytest.raises(DataError, match="cannot be written"):
        written([PLAIN], tmp_path / "no" / "t.parquet")


def test_grouping_appends_the_value_to_the_data_source(tmp_path: Path) -> None:
    tasks = [Task(id=f"t{kind}", prompt="x", metadata={"kind": kind}) for kind in ("copy", 3)]
    rows = written(tasks, tmp_path / "t.parquet", group_by="kind", agent_name="mine", split="test")
    assert [(row["data_source"], row["agent_name"], row["extra_info"]["split"]) for row in rows] == [
        ("demo/copy", "mine", "test"),
        ("demo/3", "mine", "test"),
    ]
    assert [task_of(row) for row in rows] == tasks
    for metadata, problem in (({}, "is missing"), ({"kind": ["x"]}, "is no text"), ({"kind": ""}, "is no text")):
        with pytest.raises(DataError, match=rf"task 't': metadata\.kind: {problem}"):
            written([Task(id="t", prompt="x", metadata=metadata)], tmp_path / "u.parquet", group_by="kind")


def test_pandas_and_wrapped_values_are_read(tmp_path: Path) -> None:
    np: Any = importlib.import_module("numpy")
    pd: Any = importlib.import_module("pandas")
    written([RICH], tmp_path / "t.parquet")
    assert task_of(pd.read_parquet(tmp_path / "t.parquet").iloc[0].to_dict()) == RICH
    boxed = np.empty((), dtype=object)
    boxed[()] = row_of(RICH)["extra_info"]
    assert task_of({"extra_info": boxed}) == RICH
    assert task_of({"extra_info": np.array([row_of(RICH)["extra_info"]], dtype=object)}) == RICH


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, r"row: extra_info: holds neither `task` nor `tools_kwargs`.*`uni-agent data to-verl`"),
        ({"extra_info": {"index": 3}, "data_source": "gsm8k"}, r"row 3 of 'gsm8k': extra_info: holds neither"),
        ({"extra_info": {"index": 3, "tools_kwargs": {}}}, r"row 3: extra_info: holds neither"),
        ({"extra_info": {"task": "{"}}, r"row: extra_info\.task: expected JSON text"),
        ({"extra_info": {"task": {"id": "x"}}}, r"row: extra_info\.task: expected JSON text"),
        ({"extra_info": {"task": "[1]"}}, r"row: extra_info\.task: expected a JSON object, got list"),
        ({"extra_info": {"task": '{"id": "x"}'}}, r"row: prompt: "),
        ({"extra_info": {"task": '{"id": "x", "prompt": "y", "promt": 1}'}}, r"row: promt: unknown key.*'prompt'"),
    ],
)
def test_rows_of_others_are_refused_with_place_key_and_cure(row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        task_of(row)


def test_a_faulty_file_is_named_with_its_row(tmp_path: Path) -> None:
    pa: Any = importlib.import_module("pyarrow")
    pq: Any = importlib.import_module("pyarrow.parquet")
    rows = [row_of(PLAIN), {**row_of(RICH), "extra_info": {"index": 1, "split": "train", "task": "{"}}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"t\.parquet row 1: extra_info\.task: expected JSON text"):
        list(read_verl_parquet(tmp_path / "t.parquet"))
    (tmp_path / "no.parquet").write_text("nothing")
    with pytest.raises(DataError, match=r"no\.parquet: cannot be read as parquet"):
        list(read_verl_parquet(tmp_path / "no.parquet"))


# ---------------------------------------------------------------------------------------------- earlier rows


def earlier(tools: dict[str, Any], **more: Any) -> dict[str, Any]:
    info = {"index": 4, "tools_kwargs": tools, **more.pop("info", {})}
    prompt = [{"role": "user", "content": "Fix it."}]
    return {"prompt": prompt, "agent_name": "swe_agent", "data_source": "old", "extra_info": info, **more}


def test_an_earlier_row_becomes_a_task() -> None:
    tools = {
        "env": {
            "deployment": {"image": "swebench/x:latest", "type": None},
            "post_setup_cmd": "git config x y",
            "env_variables": {"A": "1"},
        },
        "reward": {"name": "my_rewards:Swe", "metadata": {"instance_id": "x-1", "FAIL_TO_PASS": "[]", "gone": None}},
        "tools": None,
        "interaction": None,
    }
    task = task_of(earlier(tools))
    assert task == Task(
        id="x-1",
        prompt=[{"role": "user", "content": "Fix it."}],
        image="swebench/x:latest",
        setup="git config x y",
        env={"A": "1"},
        overrides={"reward": {"type": "my_rewards:Swe"}},
        metadata={"instance_id": "x-1", "FAIL_TO_PASS": "[]"},
    )
    assert task_of(row_of(task)) == task


def test_earlier_rows_are_read_from_a_file_where_they_share_their_keys(tmp_path: Path) -> None:
    pa: Any = importlib.import_module("pyarrow")
    pq: Any = importlib.import_module("pyarrow.parquet")
    one = {"reward": {"name": "dummy", "ground_truth": {"target": ["Paris"]}}}
    two = {"env": {"deployment": {"image": "i"}}, "reward": {"metadata": {"task_id": "m"}}}
    pq.write_table(pa.Table.from_pylist([earlier(one), earlier(two)]), tmp_path / "t.parquet")
    first, second = read_verl_parquet(tmp_path / "t.parquet")
    assert (first.id, first.overrides) == ("old-4", {"reward": {"type": "dummy"}})
    assert first.metadata == {"ground_truth": {"target": ["Paris"]}}
    assert (second.id, second.image, second.overrides, second.metadata) == ("m", "i", {}, {"task_id": "m"})
    info = {"index": 0, "task_id": "named"}
    assert task_of(earlier(two, info=info)).id == "named"


@pytest.mark.parametrize(
    ("tools", "key", "cure"),
    [
        ({"model": {"x": 1}}, "model", "the trainer's policy"),
        ({"tools": [{"name": "search"}]}, "tools", "set `tools:`"),
        ({"interaction": {"max_turns": 3}}, "interaction", "set `interaction:`"),
        ({"task": {"name": "swe_bench"}}, "task", "agent framework"),
        ({"env": {"deployment": {"type": "modal"}}}, "env.deployment.type", "set `deployment:`"),
        ({"env": {"tool_install_dir": "/x"}}, "env.tool_install_dir", "deployment"),
        ({"env": {"strange": 1}}, "env.strange", "remove it"),
        ({"reward": {"name": "dummy", "eval_timeout": 9}}, "reward.eval_timeout", "remove it"),
        ({"reward": {"name": "swe_bench"}}, "reward.name", "set `reward:`"),
        ({"reward": "swe_bench"}, "reward", "expected keys and values"),
        ({"env": {"deployment": "modal"}}, "env.deployment", "expected keys and values"),
    ],
)
def test_keys_of_earlier_rows_that_do_not_map_are_refused_by_name(tools: dict[str, Any], key: str, cure: str) -> None:
    with pytest.raises(DataError) as caught:
        task_of(earlier(tools))
    assert str(caught.value).startswith(f"row 4 of 'old': extra_info.tools_kwargs.{key}: ")
    assert cure in str(caught.value)


def test_an_earlier_row_without_any_name_is_refused() -> None:
    with pytest.raises(DataError, match=r"no id: .*extra_info\.task_id"):
        task_of(earlier({"reward": {"name": "dummy"}}, data_source=""))
    assert json.loads(row_of(PLAIN)["extra_info"]["task"]) == {"id": "t", "prompt": "Do it."}
