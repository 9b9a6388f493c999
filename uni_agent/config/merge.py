"""How one layer lies over another.

Mappings merge key by key, everything else (lists, null) replaces what is below. When the upper layer states another
`type` at a node, the lower layer's other keys there are dropped: they belong to another kind of part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uni_agent.config.nodes import DEFAULT, Items, Leaf, Node, Table, dotted, lift, lower
from uni_agent.config.problems import fault


def merge(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """`overlay` over `base`, as a new dict; neither is changed. For per-task overrides and the like."""
    return lower(merge_nodes(lift(base, DEFAULT), lift(overlay, DEFAULT)))


def merge_nodes(base: Node, overlay: Node, *, path: tuple[str | int, ...] = (), indexes: bool = False) -> Node:
    """`overlay` over `base`. With `indexes`, a mapping over a list changes the list's items by number.

    Raises ConfigReport when such a number is no index of the list.
    """
    if indexes and isinstance(base, Items) and isinstance(overlay, Table) and _is_patch(overlay):
        return _patched(base, overlay, path)
    if not isinstance(base, Table) or not isinstance(overlay, Table) or _changes_type(base, overlay):
        return overlay
    entries = dict(base.entries)
    for key, item in overlay.entries.items():
        below = entries.get(key)
        entries[key] = item if below is None else merge_nodes(below, item, path=(*path, key), indexes=indexes)
    # What is missing in a mapping is best told at the line of a file, not at an override that touched one key of it.
    keep = overlay.origin.kind in {"override", "layer"} and base.origin.kind == "file"
    return Table(base.origin if keep else overlay.origin, entries)


def _changes_type(base: Table, overlay: Table) -> bool:
    old, new = base.entries.get("type"), overlay.entries.get("type")
    return isinstance(old, Leaf) and isinstance(new, Leaf) and _said(old) != _said(new)


def _said(leaf: Leaf) -> Any:
    """A type as the schema will read it, so that `type=1` and `type="1"` are one."""
    return leaf.text if leaf.text is not None and leaf.value is not None else leaf.value


def _is_patch(overlay: Table) -> bool:
    return overlay.text is None and bool(overlay.entries) and all(key.isdecimal() for key in overlay.entries)


def _patched(base: Items, overlay: Table, path: tuple[str | int, ...]) -> Items:
    items = list(base.items)
    for key, item in overlay.entries.items():
        index = int(key)
        if index >= len(items):
            count = f"{len(items)} item" + ("" if len(items) == 1 else "s")
            raise fault(item.origin, f"the list has {count}; to add one, state the whole list", dotted((*path, index)))
        items[index] = merge_nodes(items[index], item, path=(*path, index), indexes=True)
    return Items(base.origin, items)
