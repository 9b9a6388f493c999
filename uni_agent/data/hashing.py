"""A task's content as one number, so that a changed task is not mistaken for a finished one."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from uni_agent.data.git import is_git_source, resolve_commit
from uni_agent.data.paths import references
from uni_agent.data.tree import entries
from uni_agent.types import Task


def task_hash(task: Task) -> str:
    """64 hex digits over the task's canonical JSON and the content of the local files and folders that it names.

    Where the task file lies does not matter. Of a git source, the commit counts; of a `url`, only its text. Raises
    DataError when something the task names cannot be read.
    """
    record = task.model_dump(mode="json", exclude={"base_dir"})
    content: dict[str, str] = {}
    for reference in references(task):
        is_git = reference.kind == "repo" and is_git_source(reference.path)
        commit = task.repo.commit if task.repo else None
        content[reference.key] = resolve_commit(reference.path, commit) if is_git else _digest(reference.path)
    text = json.dumps({"task": record, "content": content}, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _digest(path: Path) -> str:
    total = hashlib.sha256()
    if not path.is_dir():
        total.update(_entry(path))
        return total.hexdigest()
    for relative, local in entries(path):
        total.update(os.fsencode(str(relative)) + b"\0" + _entry(local) + b"\0")
    return total.hexdigest()


def _entry(path: Path) -> bytes:
    if path.is_symlink():
        return b"link " + os.fsencode(path.readlink())
    if path.is_dir():
        return b"folder"
    kind = b"program " if path.stat().st_mode & 0o111 else b"file "
    return kind + hashlib.sha256(path.read_bytes()).digest()
