"""YAML text to nodes that know their lines. Safe: no tags that build objects, no alias bombs, no duplicate keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import yaml

from uni_agent.config.nodes import Items, Leaf, Node, Origin, Table
from uni_agent.config.problems import ConfigReport, Problem, fault
from uni_agent.config.scalars import plain, tagged

_PREFIX = "tag:yaml.org,2002:"
_PLAIN = "plain"
_MAX_NODES = 100_000
_MAX_DEPTH = 100

At = Callable[[int], Origin]
"""The origin of a line, counted from 1."""


class _Composer(yaml.SafeLoader):
    """Composes nodes only. Leaves it to `scalars` what an unquoted scalar means."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        if kind is yaml.ScalarNode:
            return _PLAIN if implicit[0] else _PREFIX + "str"
        return _PREFIX + ("seq" if kind is yaml.SequenceNode else "map")


def parse_yaml(text: str, at: At) -> Node | None:
    """The root node of one YAML document, None when it is empty.

    Raises ConfigReport, with the line and column where YAML itself is broken.
    """
    try:
        composer = _Composer(text)
        try:
            root: yaml.Node | None = composer.get_single_node()
        finally:
            composer.dispose()
    except yaml.MarkedYAMLError as error:
        raise fault(*_broken(error, at)) from error
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        where = f"{at(before.count(chr(10)) + 1)}:{error.position - before.rfind(chr(10))}"
        raise fault(where, f"not valid YAML: the character {chr(error.character)!r} is not allowed") from error
    except RecursionError as error:
        raise fault(at(1), "not a configuration: nested too deeply") from error
    if root is None:
        return None
    builder = _Builder(at)
    node = builder.build(root)
    if builder.problems:
        raise ConfigReport(builder.problems)
    return node


def _broken(error: yaml.MarkedYAMLError, at: At) -> tuple[str, str]:
    mark = error.problem_mark or error.context_mark
    where = f"{at(mark.line + 1)}:{mark.column + 1}" if mark else str(at(1))
    message = f"not valid YAML: {(error.problem or error.context or 'it cannot be read').removeprefix('but ')}"
    if error.problem and error.context:
        message += f" ({error.context}"
        started = error.context_mark
        message += f" that starts at line {started.line + 1})" if started else ")"
    if "'\\t'" in message:
        message += "; indent with spaces"
    return where, message


class _Builder:
    """Turns composed nodes into ours; gathers faults so that all are shown."""

    def __init__(self, at: At) -> None:
        self.problems: list[Problem] = []
        self._at = at
        self._count = 0
        self._open: set[int] = set()

    def build(self, node: yaml.Node, origin: Origin | None = None) -> Node:
        origin = origin or self._origin(node)
        self._count += 1
        if self._count > _MAX_NODES:
            raise fault(origin, f"more than {_MAX_NODES:,} values once the aliases are expanded")
        if id(node) in self._open:
            raise fault(origin, "an alias stands inside of what it names")
        if len(self._open) >= _MAX_DEPTH:
            raise fault(origin, f"nested more than {_MAX_DEPTH} levels deep")
        self._open.add(id(node))
        try:
            return self._build(node, origin)
        finally:
            self._open.discard(id(node))

    def _build(self, node: yaml.Node, origin: Origin) -> Node:
        if isinstance(node, yaml.MappingNode) and node.tag == _PREFIX + "map":
            return Table(origin, self._entries(node))
        if isinstance(node, yaml.SequenceNode) and node.tag == _PREFIX + "seq":
            return Items(origin, [self.build(item) for item in node.value])
        if isinstance(node, yaml.ScalarNode):
            text = str(node.value)
            if node.tag == _PLAIN:
                return Leaf(origin, plain(text), text)
            try:
                return Leaf(origin, tagged(node.tag.removeprefix(_PREFIX), text), text)
            except ValueError as error:
                if node.tag.removeprefix(_PREFIX) in {"int", "float", "bool", "null"}:
                    self.problems.append(Problem(str(origin), "", str(error)))
                    return Leaf(origin, None)
        self.problems.append(Problem(str(self._origin(node)), "", f"the YAML tag {_shown(node.tag)} is not allowed"))
        return Leaf(origin, None)

    def _entries(self, node: yaml.MappingNode) -> dict[str, Node]:
        own: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        for key_node, value_node in node.value:
            origin = self._origin(key_node)
            if not isinstance(key_node, yaml.ScalarNode) or not key_node.value:
                self.problems.append(Problem(str(origin), "", "a key must be a word"))
                continue
            key = str(key_node.value)
            if key == "<<" and key_node.tag == _PLAIN:
                merged = {**self._merged(value_node), **merged}
                continue
            if key in own:
                message = f"{key!r} is stated twice in one mapping, first at line {own[key].origin.order}"
                self.problems.append(Problem(str(origin), "", message))
                continue
            own[key] = self.build(value_node, origin)
        return {**merged, **own}

    def _merged(self, node: yaml.Node) -> dict[str, Node]:
        """What `<<:` brings in; of several mappings the first wins."""
        built = self.build(node)
        entries: dict[str, Node] = {}
        for item in built.items if isinstance(built, Items) else [built]:
            if isinstance(item, Table):
                entries = {**item.entries, **entries}
            else:
                self.problems.append(Problem(str(item.origin), "", "`<<` takes a mapping or a list of mappings"))
        return entries

    def _origin(self, node: yaml.Node) -> Origin:
        return self._at(node.start_mark.line + 1)


def _shown(tag: str) -> str:
    return "!!" + tag.removeprefix(_PREFIX) if tag.startswith(_PREFIX) else tag
