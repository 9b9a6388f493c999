"""Tasks as lines of a task file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from uni_agent.data.atomic import atomic_file
from uni_agent.data.paths import resolve
from uni_agent.types import Task


def write_task_lines(tasks: Iterable[Task], path: Path) -> int:
    """Write one JSON object per task, which `data.type: jsonl` reads; how many they are. Raises DataError."""
    folder, count = Path(path).absolute().parent, 0
    with atomic_file(Path(path)) as file:
        for task in tasks:
            file.write(json.dumps(task_record(task, folder), allow_nan=False).encode() + b"\n")
            count += 1
    return count


def task_record(task: Task, folder: Path) -> dict[str, Any]:
    """The task as plain data for a file in `folder`, whose relative paths refer there: others become absolute."""
    record = task.model_dump(mode="json", exclude_defaults=True, exclude={"base_dir"})
    if Path(task.base_dir).absolute() == folder.absolute():
        return record
    reward = _mapping(_mapping(record.get("overrides")).get("reward"))
    files = [*_mapping(record.get("files")).values(), *_mapping(reward.get("files")).values()]
    for holder in map(_mapping, (record.get("repo"), *files)):
        name: Any = holder.get("path")
        if isinstance(name, str) and not name.startswith("pkg://"):
            holder["path"] = str(resolve(task.base_dir, name))
    return record


def _mapping(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
