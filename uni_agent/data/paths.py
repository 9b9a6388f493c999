"""The local files and folders that a task refers to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from uni_agent.errors import DataError
from uni_agent.types import Task, TaskFile


@dataclass(frozen=True, slots=True)
class Reference:
    """A local path that a task names: the `key` it stands at, and the absolute `path`."""

    key: str
    path: Path
    kind: Literal["file", "repo"]


def resolve(base_dir: str, path: str | Path) -> Path:
    """`path` as an absolute path; relative ones refer to `base_dir`, or to the current folder without one."""
    return (Path(base_dir) / Path(path).expanduser()).absolute()


def references(task: Task) -> Iterator[Reference]:
    """Every local path of the task: `files`, `repo`, and the files of a reward that its overrides name."""
    for name, source in task.files.items():
        if isinstance(source, TaskFile) and source.path is not None:
            yield Reference(f"files.{name}.path", resolve(task.base_dir, source.path), "file")
    if task.repo is not None and task.repo.path is not None:
        yield Reference("repo.path", resolve(task.base_dir, task.repo.path), "repo")
    for name, source in _reward_files(task.overrides).items():
        path: Any = cast("dict[str, Any]", source).get("path") if isinstance(source, dict) else None
        if isinstance(path, str) and not path.startswith("pkg://"):
            yield Reference(f"overrides.reward.files.{name}.path", resolve(task.base_dir, path), "file")


def _reward_files(overrides: dict[str, Any]) -> dict[str, Any]:
    reward: Any = overrides.get("reward")
    files: Any = cast("dict[str, Any]", reward).get("files") if isinstance(reward, dict) else None
    return cast("dict[str, Any]", files) if isinstance(files, dict) else {}


def check_references(task: Task, where: str) -> None:
    """Raise DataError when the task names a local path that is missing or of the wrong kind."""
    for reference in references(task):
        if not reference.path.exists():
            raise DataError(f"{where}: {reference.key}: {reference.path} does not exist")
        if reference.kind == "file" and not reference.path.is_file():
            raise DataError(f"{where}: {reference.key}: {reference.path} is no file")
    if task.repo is not None and task.repo.path is not None and task.repo.commit is not None:
        from uni_agent.data.git import is_git_source

        if not is_git_source(path := resolve(task.base_dir, task.repo.path)):
            raise DataError(f"{where}: repo.commit: {path} is neither a git repository nor a bundle")
