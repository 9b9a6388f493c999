"""Wording of what is wrong with a record."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from uni_agent.config.suggest import closest
from uni_agent.types import Repo, Task, TaskFile

# Where pydantic puts the name of a union's branch in a location; it means nothing to the writer of a file.
_TAG_INDEX = {"files": 2, "prompt": 1, "setup": 1}


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the nearest of `known`, or the first few names when none is near."""
    names = sorted({str(name) for name in known})
    if near := closest(word, names):
        return f"; did you mean {near!r}?"
    if not names:
        return ""
    shown = ", ".join(names[:12])
    return f"; there are {shown}{' …' if len(names) > 12 else ''}"


def field_errors(error: ValidationError) -> list[str]:
    """One line `key: message` for each faulty key of a task, without union tags."""
    lines: list[str] = []
    for item in error.errors(include_url=False, include_context=False):
        lines.append(_line(item["loc"], item["type"], item["msg"]))
    # Each branch of a union reports; the lines that only say "not the other branch" are dropped where another remains.
    specific = [line for line in lines if "valid string" not in line]
    return list(dict.fromkeys(specific or lines))


def _line(loc: tuple[int | str, ...], kind: str, message: str) -> str:
    tag = _TAG_INDEX.get(str(loc[0])) if loc else None
    path = [part for index, part in enumerate(loc) if index != tag]
    key = ".".join(str(part) for part in path)
    if kind == "extra_forbidden" and path:
        return f"{key}: unknown key{suggestion(str(path[-1]), _fields_at(path))}"
    return f"{key}: {message.removeprefix('Value error, ')}" if key else message


def _fields_at(path: list[Any]) -> Iterable[str]:
    if len(path) == 1:
        return set(Task.model_fields) - {"base_dir"}
    return Repo.model_fields if path[0] == "repo" else TaskFile.model_fields
