"""Task sources: what is read, how it is mapped, and what the errors say."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from uni_agent.config.base import SourcedStr
from uni_agent.data import DataConfig, TaskSource, task_hash
from uni_agent.errors import ConfigError, DataError
from uni_agent.types import Repo, Task, TaskFile

ADAPTER: TypeAdapter[Any] = TypeAdapter(DataConfig)


def source(**raw: Any) -> TaskSource:
    return ADAPTER.validate_python(raw).build()


def jsonl(tmp_path: Path, *lines: Any, **options: Any) -> TaskSource:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (tmp_path / "t.jsonl").write_text(text, encoding="utf-8", errors="surrogatepass")
    return source(type="jsonl", path=str(tmp_path / "t.jsonl"), **options)


def row(number: int, **more: Any) -> dict[str, Any]:
    return {"id": f"t{number}", "prompt": f"Do {number}.", **more}


def test_jsonl_gives_tasks_in_order_with_their_folder(tmp_path: Path) -> None:
    tasks = jsonl(tmp_path, row(1), "", row(2, env={"A": "1"}), "  ").load()
    assert [task.id for task in tasks] == ["t1", "t2"]
    assert tasks[1].env == {"A": "1"}
    assert {task.base_dir for task in tasks} == {str(tmp_path)}


def test_byte_order_mark_and_unusual_line_separators_are_read(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(
        b'\xef\xbb\xbf{"id": "a", "prompt": "x\xe2\x80\xa8y"}\r\n{"id": "b", "prompt": "z"}'
    )
    assert [task.prompt for task in source(type="jsonl", path=str(tmp_path / "t.jsonl"))] == ["x\u2028y", "z"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "x", "prompt": "y"', r"t\.jsonl:2: not JSON: .* column"),
        ("[1]", r"t\.jsonl:2: expected an object, got list"),
        ('{"id": "x", "prompt": "y", "id": "z"}', r"t\.jsonl:2: key 'id' comes twice"),
        ('{"id": "x", "prompt": "y", "metadata": {"a": NaN}}', r"t\.jsonl:2: NaN is not JSON"),
        ('{"id": "x", "promt": "y"}', r"t\.jsonl:2: unknown key 'promt'; did you mean 'prompt'\?"),
        ('{"id": "x", "prompt": "y", "base_dir": "/"}', r"t\.jsonl:2: unknown key 'base_dir'"),
        ('{"id": "x"}', r"t\.jsonl:2: prompt: missing or empty"),
        ('{"id": "x", "prompt": ""}', r"t\.jsonl:2: prompt: missing or empty"),
        ('{"prompt": "y"}', r"t\.jsonl:2: id: missing or empty"),
        ('{"id": "t1", "prompt": "y"}', r"t\.jsonl:2: id: 't1' was already used at .*t\.jsonl:1"),
        ('{"id": 7, "prompt": "y"}', r"t\.jsonl:2: id: Input should be a valid string"),
        ('{"id": "a\\nb", "prompt": "y"}', r"t\.jsonl:2: id: holds control characters"),
        ('{"id": "x", "prompt": [{"role": "usr", "content": "y"}]}', r"t\.jsonl:2: prompt\[0\]\.role: 'usr'"),
        (
            '{"id": "x", "prompt": "y", "repo": {"pth": "r"}}',
            r"t\.jsonl:2: repo\.pth: unknown key; did you mean 'path'",
        ),
        (
            '{"id": "x", "prompt": [{"role": "assistant", "tool_calls": 5}]}',
            r"prompt\[0\]\.tool_calls: expected a list",
        ),
        ('{"id": "x", "prompt": [{"role": "assistant", "tool_calls": [1]}]}', r"prompt\[0\]\.tool_calls: a call needs"),
        ('{"id": "x", "prompt": [{"role": "user", "content": "y", "name": 5}]}', r"prompt\[0\]\.name: expected text"),
        ('{"id": "x", "prompt": "y", "env": {"A=B": "1"}}', r"t\.jsonl:2: env: 'A=B' cannot be the name"),
        ('{"id": "x", "prompt": "y", "env": {"A": "a\\u0000"}}', r"t\.jsonl:2: env\.A: holds a NUL"),
        ('{"id": "x", "prompt": "y", "setup": "a\\u0000"}', r"t\.jsonl:2: setup: holds a NUL"),
        ('{"id": "x", "prompt": "y", "files": {"a\\u0000": ""}}', r"t\.jsonl:2: files: .* cannot be the name"),
        ('{"id": "x", "prompt": "y", "files": {"": ""}}', r"t\.jsonl:2: files: '' cannot be the name"),
        ('{"id": "x", "prompt": "y", "workdir": "a/b"}', r"t\.jsonl:2: workdir: 'a/b' is not an absolute path"),
        ('{"id": "x", "prompt": "y", "repo": {}}', r"t\.jsonl:2: repo: give exactly one of `path` and `url`"),
        ('{"id": "x", "prompt": "y", "files": {"a": {"txt": ""}}}', r"files\.a\.txt: unknown key; did you mean 'text'"),
        ('{"id": "x", "prompt": "y", "files": {"a": {}}}', r"files\.a: give exactly one of"),
        ('{"id": "x", "prompt": "y", "files": {"a": {"path": "nope"}}}', r"files\.a\.path: .*nope does not exist"),
        ('{"id": "x", "prompt": "y", "files": {"a": {"path": "."}}}', r"files\.a\.path: .* is no file"),
        ('{"id": "x", "prompt": "y", "repo": {"path": "nope"}}', r"repo\.path: .*nope does not exist"),
        ('{"id": "x", "prompt": "y", "repo": {"path": ".", "commit": "abc"}}', r"repo\.commit: .* neither a git"),
        ('{"id": "x", "prompt": "y", "setup": {"a": 1}}', r"t\.jsonl:2: setup"),
        ('{"id": "x", "prompt": "\\ud800"}', r"t\.jsonl:2: "),
        (
            '{"id": "x", "prompt": "y", "overrides": {"reward": {"files": {"h.py": {"path": "gone.py"}}}}}',
            r"overrides\.reward\.files\.h\.py\.path: .*gone\.py does not exist",
        ),
    ],
)
def test_a_faulty_line_is_named_with_file_line_and_key(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        jsonl(tmp_path, row(1), line).load()


def test_bytes_that_are_no_utf8_and_missing_and_empty_files_are_errors(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(b'{"id": "\xff"}')
    with pytest.raises(DataError, match=r":1: not UTF-8 at byte 9"):
        source(type="jsonl", path=str(tmp_path / "t.jsonl")).load()
    with pytest.raises(DataError, match=r"gone\.jsonl: cannot be read: No such file"):
        source(type="jsonl", path=str(tmp_path / "gone.jsonl")).load()
    with pytest.raises(DataError, match="holds no tasks"):
        jsonl(tmp_path, "", "\n").load()


def test_ids_then_shuffle_then_limit(tmp_path: Path) -> None:
    rows = [row(i) for i in range(20)]
    assert [t.id for t in jsonl(tmp_path, *rows, limit=2)] == ["t0", "t1"]
    assert [t.id for t in jsonl(tmp_path, *rows, ids=["t7", "t3"])] == ["t3", "t7"]
    shuffled = [t.id for t in jsonl(tmp_path, *rows, shuffle_seed=1)]
    assert shuffled == [t.id for t in jsonl(tmp_path, *rows, shuffle_seed=1)]
    assert sorted(shuffled) == sorted(t["id"] for t in rows) and shuffled != [t["id"] for t in rows]
    assert [t.id for t in jsonl(tmp_path, *rows, shuffle_seed=1, limit=3)] == shuffled[:3]
    with pytest.raises(DataError, match=r"no task with id 't33'; did you mean 't3'\?"):
        jsonl(tmp_path, *rows, ids=["t33"]).load()


def test_columns_fill_fields_and_the_rest_becomes_metadata(tmp_path: Path) -> None:
    raw = {"instance_id": 7, "problem": "Fix it.", "repo": "org/name", "tests": ["a"], "hint": None}
    columns = {"id": "instance_id", "prompt": "problem", "metadata.F2P": "tests"}
    (task,) = jsonl(tmp_path, raw, columns=columns).load()
    assert (task.id, task.prompt, task.repo) == ("7", "Fix it.", None)
    assert task.metadata == {"F2P": ["a"], "repo": "org/name", "hint": None}
    with pytest.raises(DataError, match=r":1: columns\.prompt: there is no column 'problm'; did you mean 'problem'\?"):
        jsonl(tmp_path, raw, columns={"id": "instance_id", "prompt": "problm"}).load()
    with pytest.raises(ValidationError, match=r"'promt' is no task field; did you mean 'prompt'\?"):
        jsonl(tmp_path, raw, columns={"promt": "problem"})


def test_prompt_template_sees_columns_and_fields_and_is_strict(tmp_path: Path) -> None:
    raw = {"instance_id": "x", "problem": "Fix {{ it }}.", "base": "abc"}
    columns = {"id": "instance_id", "prompt": "problem"}
    template = "{{ prompt }}\n{{ base }} {{ id }}\n"
    (task,) = jsonl(tmp_path, raw, columns=columns, prompt_template=template).load()
    assert task.prompt == "Fix {{ it }}.\nabc x\n"
    with pytest.raises(DataError, match=r":1: prompt_template: 'bse' is undefined; there are .*base"):
        jsonl(tmp_path, raw, columns=columns, prompt_template="{{ bse }}").load()
    with pytest.raises(DataError, match=r":1: prompt_template: SecurityError"):
        jsonl(tmp_path, raw, columns=columns, prompt_template="{{ prompt.__class__.__mro__ }}").load()
    with pytest.raises(ValidationError, match=r"prompt_template[\s\S]*line 1"):
        jsonl(tmp_path, raw, prompt_template="{{ x ")


def test_parquet_rows_may_hold_json_text_and_absent_columns(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    rows = [
        {
            "id": "a",
            "prompt": "p",
            "overrides": json.dumps({"reward": {"type": "dummy"}}),
            "files": None,
            "setup": None,
        },
        {"id": "b", "prompt": "q", "overrides": None, "files": '{"x": {"text": "1"}}', "setup": ["true"]},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "d.parquet")
    first, second = source(type="parquet", path=str(tmp_path / "d.parquet")).load()
    assert first.overrides == {"reward": {"type": "dummy"}} and first.files == {} and first.base_dir == str(tmp_path)
    assert second.files == {"x": TaskFile(text="1")} and second.setup == ["true"]
    assert [t.id for t in source(type="parquet", path=str(tmp_path))] == ["a", "b"]
    pq.write_table(pa.Table.from_pylist([{"id": "a", "prompt": "p", "oops": 1}]), tmp_path / "d.parquet")
    with pytest.raises(DataError, match=r"d\.parquet row 0: unknown key 'oops'"):
        source(type="parquet", path=str(tmp_path / "d.parquet")).load()
    (tmp_path / "bad.parquet").write_text("no")
    with pytest.raises(DataError, match=r"bad\.parquet: cannot be read as parquet"):
        source(type="parquet", path=str(tmp_path / "bad.parquet")).load()


def test_parquet_struct_messages_are_prompts(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    pq.write_table(pa.Table.from_pylist([{"id": "a", "prompt": messages}]), tmp_path / "d.parquet")
    (task,) = source(type="parquet", path=str(tmp_path / "d.parquet")).load()
    assert task.prompt == messages


def test_huggingface_reads_local_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets: Any = pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    rows = [{"key": i, "text": f"Do {i}.", "image": b"\x00\xff"} for i in range(3)]
    data = datasets.Dataset.from_list(rows)
    datasets.DatasetDict({"train": data, "test": data.select([0])}).save_to_disk(str(tmp_path / "saved"))
    columns = {"id": "key", "prompt": "text"}
    raw = {"type": "huggingface", "path": SourcedStr.at("saved", tmp_path), "columns": columns}
    tasks = source(**raw, split="train", limit=2).load()
    assert [(t.id, t.prompt) for t in tasks] == [("0", "Do 0."), ("1", "Do 1.")]
    assert tasks[0].metadata == {"image": "AP8="} and tasks[0].base_dir == str(tmp_path / "saved")
    with pytest.raises(DataError, match=r"no split 'trian'; did you mean 'train'\?"):
        source(**raw, split="trian").load()
    with pytest.raises(DataError, match=r"set data\.split to one of test, train"):
        source(**raw).load()


def test_an_extra_that_is_missing_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = sys.modules['datasets'] = None\n"
        "from uni_agent.data import ParquetDataConfig, HuggingFaceDataConfig\n"
        "parquet = ParquetDataConfig(type='parquet', path='x')\n"
        "for config in (parquet, HuggingFaceDataConfig(type='huggingface', path='x')):\n"
        "    try: config.build().load()\n"
        "    except Exception as error: print(type(error).__name__, error)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.count("MissingExtraError") == 2 and out.count("pip install 'uni-agent[datasets]'") == 2


def test_importing_the_package_loads_no_table_library() -> None:
    heavy = ("pyarrow", "datasets", "jinja2", "pandas")
    code = f"import sys, uni_agent.data; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


class OwnSource(TaskSource):
    """A plug-in."""

    def __init__(self, count: int) -> None:
        self.count = count

    def load(self) -> list[Task]:
        return [Task(id=f"p{i}", prompt="x") for i in range(self.count)]


def test_a_plugin_is_built_and_selected_from(monkeypatch: pytest.MonkeyPatch) -> None:
    import types

    module = types.ModuleType("own_sources")
    module.OwnSource = OwnSource  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_sources", module)
    tasks = source(type="own_sources:OwnSource", options={"count": 5}, limit=2).load()
    assert [task.id for task in tasks] == ["p0", "p1"]
    with pytest.raises(ConfigError, match="not a subclass"):
        source(type="pathlib:Path")
    with pytest.raises(ValidationError):
        source(type="jsonll", path="x")


def test_task_hash_follows_content_and_not_the_place(tmp_path: Path) -> None:
    def make(folder: str, text: str = "1") -> Task:
        (tmp_path / folder / "r").mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "r" / "a.py").write_text(text)
        (tmp_path / folder / "f").write_text("f")
        files: dict[str, str | TaskFile] = {"x": TaskFile(path="f")}
        return Task(id="a", prompt="p", repo=Repo(path="r"), files=files, base_dir=str(tmp_path / folder))

    same = task_hash(make("one"))
    assert same == task_hash(make("two")) and len(same) == 64
    assert same != task_hash(make("two", "2"))
    task = make("one")
    assert same != task_hash(task.model_copy(update={"prompt": "q"}))
    (tmp_path / "one/r/a.py").chmod(0o755)
    assert same != task_hash(task)
    (tmp_path / "one/r/a.py").chmod(0o644)
    assert same == task_hash(task)
    (tmp_path / "one/f").write_text("g")
    assert same != task_hash(task)
    (tmp_path / "one/f").write_text("f")
    (tmp_path / "one/h").write_text("h")
    graded = {"reward": {"files": {"h": {"path": "h"}}}}
    before = task_hash(task.model_copy(update={"overrides": graded}))
    (tmp_path / "one/h").write_text("H")
    assert before != task_hash(task.model_copy(update={"overrides": graded}))
