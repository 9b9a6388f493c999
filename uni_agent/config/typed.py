"""From nodes to plain data with the types that the schema asks for, and defaults as the lowest layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from uni_agent.config.base import SourcedStr
from uni_agent.config.merge import merge_nodes
from uni_agent.config.nodes import DEFAULT, Items, Leaf, Node, NodePath, Table, lift
from uni_agent.config.shape import NOTHING, Shape, child, default_of, fields, select


def complete(node: Node, shape: Shape) -> Node:
    """`node` over the defaults of the parts it states in part, so that a part without a `type` has its default's."""
    if isinstance(node, Table):
        models = select(shape, node)
        known = fields(models[0]) if len(models) == 1 else {}
        entries: dict[str, Node] = {}
        for key, item in node.entries.items():
            default = default_of(known[key]) if key in known and isinstance(item, Table) else None
            if isinstance(default, BaseModel):
                item = merge_nodes(lift(default, DEFAULT), item)  # noqa: PLW2901
            entries[key] = complete(item, child(shape, key, node) or NOTHING)
        return Table(node.origin, entries, node.text)
    if isinstance(node, Items):
        inner = child(shape, 0) or NOTHING
        return Items(node.origin, [complete(item, inner) for item in node.items], node.text)
    return node


class Typing:
    """Lowers nodes to plain data. `mistaken` gathers what pydantic would accept although it is not what was meant."""

    def __init__(self) -> None:
        self.mistaken: list[tuple[NodePath, Node, str]] = []
        self._here = Path.cwd()

    def lower(self, node: Node, shape: Shape, path: NodePath = ()) -> Any:
        """The data of `node`. Text stays as typed where the schema wants a string (`007`, `1e3`, `[x`)."""
        if isinstance(node, Leaf):
            return self._leaf(node, shape, path)
        structured = shape.parts or shape.items or shape.values or shape.anything
        if node.text is not None and shape.words and not structured:
            return self._word(node.text, node)
        if isinstance(node, Table):
            return {
                key: self.lower(item, child(shape, key, node) or NOTHING, (*path, key))
                for key, item in node.entries.items()
            }
        inner = child(shape, 0) or NOTHING
        return [self.lower(item, inner, (*path, index)) for index, item in enumerate(node.items)]

    def _leaf(self, leaf: Leaf, shape: Shape, path: NodePath) -> Any:
        value = leaf.value
        if isinstance(value, str):
            return self._word(value, leaf)
        if shape.words_only and leaf.text is not None and (value is not None or self._is_blank(leaf)):
            return self._word(leaf.text, leaf)
        if isinstance(value, bool) and shape.numbers and not shape.truths and not shape.anything:
            # pydantic would read `max_turns: true` as 1
            self.mistaken.append((path, leaf, "expected a number"))
        return value

    def _word(self, text: str, node: Node) -> str:
        folder = node.origin.folder
        if folder is None and node.origin.kind in {"override", "layer"}:
            folder = self._here
        return text if folder is None else SourcedStr.at(text, folder)

    @staticmethod
    def _is_blank(leaf: Leaf) -> bool:
        """Whether this is `-o key=`: an empty string, where a file's `key:` would be null."""
        return leaf.origin.kind == "override" and leaf.text == ""
