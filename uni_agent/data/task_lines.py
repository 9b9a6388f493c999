"""Tasks as lines of a task file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

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
    reward: Any = record.get("overrides", {}).get("reward")
    graded: Any = reward.get("files") if isinstance(reward, dict) else None  # pyright: ignore - JSON of the user's making
    holders = [record.get("repo"), *record.get("files", {}).values(), *(graded.values() if graded else ())]
    for holder in holders:
        if isinstance(holder, dict) and isinstance(name := holder.get("path"), str) and not name.startswith("pkg://"):  # pyright: ignore
            holder["path"] = str(resolve(task.base_dir, name))
    return record
