"""A layer as it was written: mappings, lists and values that know where they stand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel

OriginKind = Literal["default", "file", "layer", "override"]
_RANK: dict[OriginKind, int] = {"default": 0, "file": 1, "layer": 2, "override": 3}

NodePath = tuple[str | int, ...]
"""Keys and list indexes from the top of the tree."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was stated.

    `source` is a file as the user would name it, `-o key`, or a label. `order` is the line (files) or the position on
    the command line. `detail` is what followed `source` there (`=value`). `folder` is what relative paths refer to.
    """

    kind: OriginKind
    source: str
    order: int = 0
    detail: str = ""
    folder: Path | None = None

    @property
    def short(self) -> str:
        """`file:line`, `-o key` or the label."""
        return f"{self.source}:{self.order}" if self.kind == "file" else self.source

    @property
    def sort_key(self) -> tuple[int, str, int]:
        """Files by name and line first, then the command line in its order."""
        return (_RANK[self.kind], self.source if self.kind == "file" else "", self.order)

    def __str__(self) -> str:
        return self.short + self.detail


DEFAULT = Origin("default", "default")


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value that is no mapping and no list. `text` is how it was written, None when it is not from text."""

    origin: Origin
    value: Any
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping; every key is its text. `text` is set when the whole was one `-o` value."""

    origin: Origin
    entries: dict[str, Node]
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Items:
    """A list. `text` is set when the whole was one `-o` value."""

    origin: Origin
    items: list[Node]
    text: str | None = None


Node = Leaf | Table | Items


def lift(value: Any, origin: Origin) -> Node:
    """The node of plain data. Models become what they state: set fields and `type`."""
    if isinstance(value, BaseModel):
        stated = {name: getattr(value, name) for name in type(value).model_fields if name in value.model_fields_set}
        if "type" in type(value).model_fields:
            stated = {"type": getattr(value, "type"), **stated}  # noqa: B009  (not every model has the field)
        return lift(stated, origin)
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        return Table(origin, {str(key): lift(item, origin) for key, item in mapping.items()})
    if isinstance(value, (list, tuple)):
        return Items(origin, [lift(item, origin) for item in cast("Sequence[Any]", value)])
    return Leaf(origin, value)


def lower(node: Node, leaf: Callable[[Leaf], Any] = lambda leaf: leaf.value) -> Any:
    """Plain data of `node`."""
    if isinstance(node, Table):
        return {key: lower(item, leaf) for key, item in node.entries.items()}
    if isinstance(node, Items):
        return [lower(item, leaf) for item in node.items]
    return leaf(node)


def find(node: Node, path: Sequence[str | int]) -> Node | None:
    """The node at `path` below `node`, None when nothing was stated there."""
    for step in path:
        child: Node | None = None
        if isinstance(node, Table):
            child = node.entries.get(str(step))
        elif isinstance(node, Items) and isinstance(step, int) and 0 <= step < len(node.items):
            child = node.items[step]
        if child is None:
            return None
        node = child
    return node


def nearest(node: Node, path: Sequence[str | int]) -> Node:
    """The node at `path`, or its closest ancestor that was stated."""
    for end in range(len(path), 0, -1):
        found = find(node, path[:end])
        if found is not None:
            return found
    return node


def leaves(node: Node, path: NodePath = ()) -> Iterator[tuple[NodePath, Node]]:
    """Every value below `node` with its path; an empty mapping or list counts as a value."""
    if isinstance(node, Table) and node.entries:
        for key, item in node.entries.items():
            yield from leaves(item, (*path, key))
    elif isinstance(node, Items) and node.items:
        for index, item in enumerate(node.items):
            yield from leaves(item, (*path, index))
    else:
        yield path, node


def dotted(path: Sequence[str | int]) -> str:
    """`a.b[0].c`, as messages name a place."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text
