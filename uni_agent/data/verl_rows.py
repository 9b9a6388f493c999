"""Tasks as the rows that verl's RLHFDataset reads, and back. Checked against verl 0.9.1."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

from uni_agent.data.atomic import atomic_file
from uni_agent.data.earlier_rows import earlier_task
from uni_agent.data.readers import plain, read_parquet
from uni_agent.data.source import validate_task
from uni_agent.errors import DataError
from uni_agent.optional import load
from uni_agent.types import Task, parse_messages

AGENT_NAME = "uni_agent"
"""`agent_name` of a row: the entry of verl's agent loops (or the runner of its agent framework) that takes it."""

_ROW_GROUP = 256


def task_row(task: Task, index: int, *, split: str, data_source: str, agent_name: str = AGENT_NAME) -> dict[str, Any]:
    """The row of one task, with the columns of `arrow_schema`; `task_of` gives the task back, equal to this one.

    `prompt` holds roles and texts, for verl's own length filter and logs. All of the task is JSON text in
    `extra_info.task`: in a table of structs every row would get the keys of all others.

    Raises DataError for a task that JSON does not hold as it is (a date or a tuple in its metadata, NaN).
    """
    where = f"task {task.id!r}"
    messages = parse_messages(task.prompt)
    return {
        "data_source": data_source,
        "agent_name": agent_name,
        "prompt": [{"role": message.role, "content": message.content} for message in messages],
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": index, "split": split, "task": _text_of(task, where)},
    }


def task_of(row: Mapping[str, Any], where: str = "") -> Task:
    """The task of a row, be it from `task_row` or from a dataset of an earlier Uni-Agent (`extra_info.tools_kwargs`).

    A row may come from a parquet file, pandas, `datasets` or verl's batches. `where` names its place in messages
    (default: its index). Raises DataError for rows of others and for keys that no task can hold.
    """
    info = _unwrapped(row.get("extra_info"))
    where = where or _place(row, info)
    if isinstance(info, Mapping):
        known = cast("Mapping[str, Any]", info)
        if (text := _unwrapped(known.get("task"))) is not None:
            return validate_task(_object(text, f"{where}: extra_info.task"), where)
        if tools := _unwrapped(known.get("tools_kwargs")):
            messages: Any = row.get("raw_prompt")
            messages = row.get("prompt") if messages is None else messages
            source = _unwrapped(row.get("data_source"))
            return earlier_task(plain(tools), plain(messages), plain(known), str(source or ""), where)
    raise DataError(
        f"{where}: extra_info: holds neither `task` nor `tools_kwargs`, so this is no row of Uni-Agent; "
        "make one from any task source with `uni-agent data to-verl`"
    )


def read_verl_parquet(path: Path) -> Iterator[Task]:
    """The tasks of a parquet file of such rows, or of a folder of them. Raises DataError with file and row."""
    for row in read_parquet(path):
        yield task_of(row.values, row.where)


def write_verl_parquet(
    tasks: Iterable[Task],
    path: Path,
    *,
    split: str,
    data_source: str,
    group_by: str | None = None,
    agent_name: str = AGENT_NAME,
) -> int:
    """Write one row per task, in their order, and say how many they are. The file appears whole or not at all.

    `group_by` names a metadata key whose value is appended to `data_source` (`shell/copy`): verl reports validation
    by data source. A task's own `metadata.agent_name` goes before `agent_name`.

    Raises DataError for an id that comes twice, a task without that key, no task at all, and a path that cannot be
    written; MissingExtraError without pyarrow.
    """
    rows = verl_rows(tasks, split=split, data_source=data_source, group_by=group_by, agent_name=agent_name)
    with atomic_file(Path(path)) as file:
        return write_rows(rows, file)


def write_rows(rows: Iterator[Mapping[str, Any]], file: BinaryIO) -> int:
    """Write rows of `verl_rows` to an open file as parquet; how many they are. Raises DataError for none."""
    pa, pq = (load(name, extra="datasets", needed_for="a parquet file") for name in ("pyarrow", "pyarrow.parquet"))
    schema, count = arrow_schema(), 0
    with pq.ParquetWriter(pa.PythonFile(file, mode="w"), schema, compression="zstd") as writer:
        while group := list(islice(rows, _ROW_GROUP)):
            writer.write_table(pa.Table.from_pylist(group, schema=schema))
            count += len(group)
        if not count:
            raise DataError("there are no tasks to write")
    return count


def verl_rows(
    tasks: Iterable[Task],
    *,
    split: str,
    data_source: str,
    group_by: str | None = None,
    agent_name: str = AGENT_NAME,
) -> Iterator[dict[str, Any]]:
    """The rows that `write_verl_parquet` writes, one at a time; raises as it does."""
    seen: set[str] = set()
    for index, task in enumerate(tasks):
        if task.id in seen:
            raise DataError(f"task {task.id!r}: comes twice; verl would train on it twice as often")
        seen.add(task.id)
        source = data_source if group_by is None else f"{data_source}/{_group(task, group_by)}"
        name = str(task.metadata.get("agent_name", agent_name))
        yield task_row(task, index, split=split, data_source=source, agent_name=name)


def arrow_schema() -> Any:
    """The columns of such a table, always all of them, so that verl can concatenate any two files."""
    pa = load("pyarrow", extra="datasets", needed_for="a parquet file")
    text = pa.string()
    return pa.schema(
        [
            ("data_source", text),
            ("agent_name", text),
            ("prompt", pa.list_(pa.struct([("role", text), ("content", text)]))),
            ("reward_model", pa.struct([("style", text), ("ground_truth", text)])),
            ("extra_info", pa.struct([("index", pa.int64()), ("split", text), ("task", text)])),
        ]
    )


def _group(task: Task, key: str) -> str:
    value = task.metadata.get(key)
    if isinstance(value, str | int) and value != "":
        return str(value)
    state = "is no text or number" if key in task.metadata else "is missing"
    raise DataError(f"task {task.id!r}: metadata.{key}: {state}; group by a key that every task has")


def _text_of(task: Task, where: str) -> str:
    try:
        text = json.dumps(task.model_dump(mode="json", exclude_defaults=True), allow_nan=False, ensure_ascii=False)
        text.encode()
    except ValueError as error:
        raise DataError(f"{where}: cannot be kept as JSON: {error}") from error
    if validate_task(json.loads(text), where) != task:
        raise DataError(f"{where}: holds data that JSON does not keep (a tuple, a date, a key that is no text)")
    return text


def _object(text: Any, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: expected JSON text: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected a JSON object, got {type(value).__name__}")
    return cast("dict[str, Any]", value)


def _unwrapped(value: Any) -> Any:
    """What numpy's object arrays and tensordict's NonTensorData hold, when it is one thing."""
    convert = getattr(value, "tolist", None)
    inner: Any = convert() if callable(convert) else value
    if inner is not value and isinstance(inner, list) and len(several := cast("list[Any]", inner)) == 1:
        return several[0]
    return cast("Any", inner)


def _place(row: Mapping[str, Any], info: Any) -> str:
    index: Any = cast("Mapping[str, Any]", info).get("index") if isinstance(info, Mapping) else None
    source = _unwrapped(row.get("data_source"))
    return "row" + ("" if index is None else f" {index}") + (f" of {source!r}" if source else "")
