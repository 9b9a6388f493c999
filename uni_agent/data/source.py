"""What a task source is, and how rows become tasks."""

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from uni_agent.data.paths import check_references
from uni_agent.data.report import field_errors, suggestion
from uni_agent.errors import DataError
from uni_agent.types import Task, parse_messages

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

TASK_FIELDS = frozenset(Task.model_fields) - {"base_dir"}


@dataclass(frozen=True, slots=True)
class Row:
    """One raw record. `where` is its place as shown to people (`tasks.jsonl:3`)."""

    where: str
    values: Mapping[str, Any]


class TaskSource(ABC):
    """An ordered, finite collection of tasks. A plug-in's class derives from this."""

    @abstractmethod
    def load(self) -> list[Task]:
        """Every task, ids unique. Raises DataError that names the file, the line or row, and the key."""

    def __iter__(self) -> Iterator[Task]:
        return iter(self.load())


@dataclass(frozen=True, slots=True)
class Selection:
    """Which of a source's tasks are used: ids first, then the shuffle, then the limit."""

    ids: Sequence[str] | None = None
    shuffle_seed: int | None = None
    limit: int | None = None

    def apply(self, tasks: Sequence[Task], origin: str) -> list[Task]:
        """The selected tasks, in source order unless shuffled. Raises DataError for an id that is not there."""
        chosen = list(tasks)
        if self.ids is not None:
            known = {task.id for task in tasks}
            for wanted in self.ids:
                if wanted not in known:
                    raise DataError(f"{origin}: no task with id {wanted!r}{suggestion(wanted, known)}")
            wanted_ids = set(self.ids)
            chosen = [task for task in chosen if task.id in wanted_ids]
        if self.shuffle_seed is not None:
            random.Random(self.shuffle_seed).shuffle(chosen)  # noqa: S311 - a reproducible order, no secret
        return chosen if self.limit is None else chosen[: self.limit]


class SelectedSource(TaskSource):
    """Another source with a selection on top."""

    def __init__(self, inner: TaskSource, selection: Selection, origin: str) -> None:
        self._inner = inner
        self._selection = selection
        self._origin = origin

    def load(self) -> list[Task]:
        """The inner source's tasks that the selection leaves."""
        tasks = self._inner.load()
        unique_ids((task, self._origin) for task in tasks)
        return self._selection.apply(tasks, self._origin)


def unique_ids(tasks: Iterable[tuple[Task, str]]) -> list[Task]:
    """The tasks, after making sure that no id comes twice."""
    seen: dict[str, str] = {}
    kept: list[Task] = []
    for task, where in tasks:
        if task.id in seen:
            raise DataError(f"{where}: id: {task.id!r} was already used at {seen[task.id]}")
        seen[task.id] = where
        kept.append(task)
    return kept


@dataclass(frozen=True, slots=True)
class RowMapping:
    """How the columns of a row become the fields of a task.

    `columns` maps a task field (`id`, or a dotted `metadata.tests`) to a column; without it the row's own keys are task
    fields. `template` renders the prompt from the row's columns and the task's fields.
    """

    base_dir: str
    columns: Mapping[str, str] | None = None
    template: str | None = None

    def task(self, row: Row) -> Task:
        """The row as a task. Raises DataError."""
        raw = dict(row.values) if self.columns is None else self._mapped(row, self.columns)
        if self.columns is None and (unknown := [key for key in raw if key not in TASK_FIELDS]):
            key = unknown[0]
            raise DataError(f"{row.where}: unknown key {key!r}{suggestion(key, TASK_FIELDS)}")
        if self.template is not None:
            raw["prompt"] = render_prompt(self.template, {**raw, **row.values}, row.where)
        for required in ("id", "prompt"):
            if raw.get(required) in (None, "", []):
                raise DataError(f"{row.where}: {required}: missing or empty; every task needs one")
        task = validate_task({**raw, "base_dir": self.base_dir}, row.where)
        check_references(task, row.where)
        return task

    def _mapped(self, row: Row, columns: Mapping[str, str]) -> dict[str, Any]:
        raw: dict[str, Any] = {}
        for target, column in columns.items():
            if column not in row.values:
                raise DataError(
                    f"{row.where}: columns.{target}: there is no column {column!r}{suggestion(column, row.values)}"
                )
            _assign(raw, target, row.values[column], row.where)
        used = set(columns.values())
        rest = {key: value for key, value in row.values.items() if key not in used}
        raw["metadata"] = {**rest, **(raw.get("metadata") or {})}
        return raw


def _assign(raw: dict[str, Any], target: str, value: Any, where: str) -> None:
    head, *inner = target.split(".")
    if head not in TASK_FIELDS:
        raise DataError(f"{where}: columns: {head!r} is no task field{suggestion(head, TASK_FIELDS)}")
    path, node = [head, *inner], raw
    for key in path[:-1]:
        child: Any = node.setdefault(key, {})
        if not isinstance(child, dict):
            raise DataError(f"{where}: columns.{target}: {key!r} is already set to a single value")
        node = cast("dict[str, Any]", child)
    if inner or value is not None:
        # Ids are often numbers in published sets; every other field is validated as it is.
        node[path[-1]] = str(value) if target == "id" and value is not None else value


def render_prompt(template: str, values: Mapping[str, Any], where: str) -> str:
    """`template` rendered over `values`. Raises DataError for a name that `values` lacks."""
    from jinja2 import StrictUndefined, TemplateError, UndefinedError
    from jinja2.sandbox import SandboxedEnvironment

    environment = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    try:
        return environment.from_string(template).render(values)
    except UndefinedError as error:
        raise DataError(f"{where}: prompt_template: {error}; there are {', '.join(sorted(values))}") from error
    except (TemplateError, TypeError, ValueError) as error:
        raise DataError(f"{where}: prompt_template: {type(error).__name__}: {error}") from error


def _check_for_shell(task: Task) -> None:
    """Raise ValueError for what no shell and no file system takes, in any sandbox."""
    for name, value in task.env.items():
        if not _VARIABLE.match(name):
            raise ValueError(f"env: {name!r} cannot be the name of an environment variable")
        if "\0" in value:
            raise ValueError(f"env.{name}: holds a NUL character")
    if any("\0" in command for command in ([task.setup] if isinstance(task.setup, str) else task.setup)):
        raise ValueError("setup: holds a NUL character")
    for path in task.files:
        if "\0" in path or not path.strip("/."):
            raise ValueError(f"files: {path!r} cannot be the name of a file")
    if task.workdir is not None and ("\0" in task.workdir or not task.workdir.startswith("/")):
        raise ValueError(f"workdir: {task.workdir!r} is not an absolute path")


def validate_task(raw: Mapping[str, Any], where: str) -> Task:
    """A task from plain data. Raises DataError that names every faulty key."""
    from pydantic import ValidationError

    try:
        task = Task.model_validate(raw)
    except ValidationError as error:
        raise DataError("\n".join(f"{where}: {line}" for line in field_errors(error))) from error
    try:
        parse_messages(task.prompt)
        task.model_dump_json()
        if not task.id.isprintable():
            raise ValueError("id: holds control characters")
        _check_for_shell(task)
    except (ValueError, AttributeError) as error:
        raise DataError(f"{where}: {error}") from error
    return task
