"""Pydantic's errors as problems: one form, the user's own path and line, what was meant instead."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ValidationError

from uni_agent.config.nodes import DEFAULT, Node, NodePath, Origin, Table, dotted, find, leaves, nearest
from uni_agent.config.problems import ConfigReport, Problem
from uni_agent.config.shape import NOTHING, Shape, child, model_shape, tags_of
from uni_agent.config.suggest import unknown_key
from uni_agent.config.wording import expected, got, message, tag_message, type_names

Mistaken = tuple[NodePath, Node, str]
_TAG_ERRORS = frozenset({"union_tag_invalid", "union_tag_not_found"})


@dataclass(frozen=True, slots=True)
class _Fault:
    """One pydantic error at the path that the user knows. `union` and `label`: the plain union it came out of."""

    path: NodePath
    shape: Shape
    error: Any
    union: NodePath | None
    label: str


def report(
    error: ValidationError | None, model: type[BaseModel], root: Node, mistaken: Iterable[Mistaken] = ()
) -> ConfigReport:
    """Everything that is wrong with `root` as a `model`, in the order in which it was written."""
    found = [
        (node.origin, Problem(str(node.origin), dotted(path), f"{text}, {got(path, node)}"))
        for path, node, text in mistaken
    ]
    if error is not None:
        shape = model_shape(model)
        faults = [_located(shape, root, item) for item in error.errors(include_url=False)]
        found += [pair for fault in _settled(faults) for pair in _told(fault, shape, root)]
    found.sort(key=lambda pair: (pair[0].sort_key, pair[1].path))
    return ConfigReport(dict.fromkeys(problem for _, problem in found))


def problems(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """`path: what is wrong`, one each, for data whose origin is not known."""
    return [str(replace(problem, where="")) for problem in report(error, model, Table(DEFAULT, {})).problems]


def _located(shape: Shape, root: Node, error: Any) -> _Fault:
    """Walks pydantic's location: names of union members and tags, which the user did not type, are left out."""
    path: NodePath = ()
    union: NodePath | None = None
    label = ""
    for step in error["loc"]:
        if shape.labelled and isinstance(step, str):
            union, label = path, step
            shape = _branch(shape, step)
        elif shape.discriminator and isinstance(step, str) and (narrowed := _tagged(shape, step)):
            shape = narrowed
        elif step != "[key]":
            shape = child(shape, step, find(root, path)) or NOTHING
            path = (*path, step)
    if error["type"] in _TAG_ERRORS and isinstance(error["input"], dict):
        path = (*path, shape.discriminator if isinstance(shape.discriminator, str) else "type")
    return _Fault(path, shape, error, union, label)


def _branch(shape: Shape, label: str) -> Shape:
    named = tuple(part for part in shape.parts if part.model.__name__ == label)
    if named:
        return replace(shape, parts=named, labelled=False, discriminator=None)
    keep = shape.discriminator if label.startswith("tagged-union") else None
    return replace(shape, labelled=False, discriminator=keep)


def _tagged(shape: Shape, tag: str) -> Shape | None:
    key = shape.discriminator if isinstance(shape.discriminator, str) else "type"
    parts = tuple(part for part in shape.parts if part.tag == tag or (not part.tag and tag in tags_of(part.model, key)))
    return replace(shape, parts=parts, discriminator=None) if parts else None


def _settled(faults: Sequence[_Fault]) -> Iterator[_Fault | tuple[_Fault, ...]]:
    """Of a plain union's members, the one that the value comes nearest to; all of them where none is nearer."""
    unions: dict[NodePath, dict[str, list[_Fault]]] = defaultdict(lambda: defaultdict(list))
    for fault in faults:
        if fault.union is None:
            yield fault
        else:
            unions[fault.union][fault.label].append(fault)
    for path, members in unions.items():
        entered = [found for found in members.values() if any(len(fault.path) > len(path) for fault in found)]
        if entered:
            yield from min(entered, key=len)
        else:
            yield tuple(fault for found in members.values() for fault in found)


def _told(fault: _Fault | tuple[_Fault, ...], shape: Shape, root: Node) -> Iterator[tuple[Origin, Problem]]:
    if isinstance(fault, tuple):
        first = fault[0]
        wanted = list(dict.fromkeys(filter(None, (expected(item.error, item.shape) for item in fault))))
        texts = dict.fromkeys(message(item.error, item.shape, item.path) for item in fault)
        whole = len(wanted) > 0 and all(expected(item.error, item.shape) for item in fault)
        node = find(root, first.path) or first.error["input"]
        text = f"expected {' or '.join(wanted)}, {got(first.path, node)}" if whole else "; or ".join(texts)
        yield _placed(root, first.path, text)
        return
    kind = fault.error["type"]
    if kind == "extra_forbidden":
        yield from _unknown(fault.path, shape, root)
    elif kind in _TAG_ERRORS:
        yield _placed(root, fault.path, tag_message(fault.error, fault.shape))
    elif kind == "missing" and fault.shape.choices:
        yield _placed(root, fault.path, f"missing, one of: {type_names([fault.shape])}")
    else:
        yield _placed(root, fault.path, message(fault.error, fault.shape, fault.path))


def _unknown(path: NodePath, shape: Shape, root: Node) -> Iterator[tuple[Origin, Problem]]:
    node = find(root, path)
    if node is None or node.origin.kind != "override":
        yield _placed(root, path, unknown_key(shape, root, path, whole=False))
        return
    for below, leaf in leaves(node, path):
        text = unknown_key(shape, root, below, whole=True)
        yield leaf.origin, Problem(str(leaf.origin), dotted(below), text)


def _placed(root: Node, path: NodePath, text: str) -> tuple[Origin, Problem]:
    origin = nearest(root, path).origin
    if origin.kind == "default":
        origin = root.origin
    return origin, Problem(str(origin), dotted(path), text)
