"""What can be named in a configuration, read from its unions."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel

from uni_agent.config.shape import NOTHING, Shape, field_shape, fields, model_shape, shape_of, tags_of

PLUGIN = "package.module:Class"


@dataclass(frozen=True, slots=True)
class Choice:
    """A value of `type` (or of a field with a fixed set of values). `options`: its own keys, required ones first."""

    name: str
    summary: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """A key whose value is chosen from a set; `path` is dotted, `[]` for the items of a list."""

    path: str
    choices: tuple[Choice, ...]


def places(model: type[BaseModel]) -> Iterator[Place]:
    """Every place of `model`'s tree where a part is chosen by `type`, or a value from a fixed set; top first."""
    yield from _places(model_shape(model), "", ())


def _places(shape: Shape, path: str, seen: tuple[type[BaseModel], ...]) -> Iterator[Place]:
    choices = [Choice(str(item), "") for item in shape.choices]
    for part in shape.parts:
        names = [str(tag) for tag in tags_of(part.model)] or ([PLUGIN] if part.tag == "plugin" else [])
        choices += [Choice(name, _summary(part.model), _options(part.model)) for name in names]
    if path and choices:
        yield Place(path, tuple(choices))
    for part in shape.parts:
        if part.model in seen:
            continue
        for key, info in fields(part.model).items():
            if key != "type":
                yield from _places(field_shape(info), f"{path}.{key}" if path else key, (*seen, part.model))
    for item in shape.items:
        yield from _places(shape_of(item) or NOTHING, path + "[]", seen)


def _summary(model: type[BaseModel]) -> str:
    text = inspect.cleandoc(model.__doc__ or "")
    return " ".join(text.split("\n\n")[0].split())


def _options(model: type[BaseModel]) -> tuple[str, ...]:
    known = [(not info.is_required(), key) for key, info in fields(model).items() if key != "type"]
    return tuple(key for _, key in sorted(known, key=lambda pair: pair[0]))
