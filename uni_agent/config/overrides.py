"""`-o key=value`: one value of the tree, stated on the command line."""

from __future__ import annotations

from collections.abc import Sequence

from uni_agent.config.merge import merge_nodes
from uni_agent.config.nodes import DEFAULT, Items, Leaf, Node, Origin, Table, lift
from uni_agent.config.parse import parse_yaml
from uni_agent.config.problems import ConfigReport, fault
from uni_agent.config.redact import is_secret_key
from uni_agent.config.scalars import plain
from uni_agent.config.shape import Shape, child, default_of, fields, select, tags_of

_SHOWN = 80


def apply_overrides(root: Node, shape: Shape, overrides: Sequence[str]) -> Node:
    """`root` under all of `overrides`. Their order matters only where two state the same key.

    Raises ConfigReport, with every override that is no `key=value` or whose YAML is broken.
    """
    overlay: Node | None = None
    problems: list[ConfigReport] = []
    for order, text in enumerate(overrides):
        try:
            path, single = _parsed(text, order, shape)
        except ConfigReport as report:
            problems.append(report)
            continue
        root = _opened(root, shape, path)
        overlay = single if overlay is None else merge_nodes(overlay, single, indexes=True)
    if problems:
        raise ConfigReport(problem for report in problems for problem in report.problems)
    return root if overlay is None else merge_nodes(root, overlay, indexes=True)


def _parsed(text: str, order: int, shape: Shape) -> tuple[list[str], Table]:
    key, equals, value = text.partition("=")
    written = [step.strip() for step in key.split(".")]
    if not equals or not all(written):
        raise fault(f"-o {_cut(text)}", "expected key=value, with a dotted key such as interaction.max_turns=5")
    if written[0] == "extends":
        raise fault(f"-o {_cut(text)}", "`extends` can only be stated in a file")
    path, target = _normal(written, shape)
    shown = "=…" if is_secret_key(path[-1]) else "=" + value
    origin = Origin("override", f"-o {key.strip()}", order, _cut(shown))
    node: Node = _value(value, origin, target)
    for step in reversed(path):
        node = Table(origin, {step: node})
    assert isinstance(node, Table)  # noqa: S101  (the path is not empty)
    return path, node


def _normal(written: list[str], shape: Shape | None) -> tuple[list[str], Shape | None]:
    """The path with `_` for `-` where the schema has it so, and what may stand there."""
    path: list[str] = []
    for step in written:
        key = step
        if shape is not None:
            snake = step.replace("-", "_")
            known = {name for model in select(shape, None) for name in fields(model)}
            key = snake if step not in known and snake in known else step
            shape = child(shape, key) or (child(shape, 0) if step.isdecimal() else None)
        path.append(key)
    return path, shape


def _value(text: str, origin: Origin, shape: Shape | None) -> Node:
    """A flow collection, a quoted string or a plain scalar; block YAML is not read, so `Hello: you` is a string."""
    stripped = text.strip()
    if not stripped.startswith(("[", "{", '"', "'")):
        value = plain(stripped)
        return Leaf(origin, text if isinstance(value, str) else value, text)
    try:
        node = parse_yaml(stripped, lambda _: origin)
    except ConfigReport as report:
        if shape is not None and shape.words_only and not (shape.parts or shape.items or shape.values):
            return Leaf(origin, text, text)
        raise fault(origin, report.problems[0].message) from report
    if isinstance(node, Table):
        return Table(origin, node.entries, text)
    if isinstance(node, Items):
        return Items(origin, node.items, text)
    return node or Leaf(origin, text, text)


def _opened(node: Node, shape: Shape | None, path: Sequence[str]) -> Node:
    """`node` made ready for an override at `path`: lists that it enters by number, and parts stated by name alone.

    Default lists are written out, and `tools: [search]` becomes `[{type: search}]` before `tools.0.timeout` is set.
    """
    if not path or shape is None:
        return node
    step, *rest = path
    if isinstance(node, Items) and step.isdecimal() and int(step) < len(node.items):
        items = list(node.items)
        items[int(step)] = _opened(items[int(step)], child(shape, int(step)), rest)
        return Items(node.origin, items, node.text)
    if isinstance(node, Leaf) and any(node.value in tags_of(part.model) for part in shape.parts):
        return Table(node.origin, {"type": node})
    if not isinstance(node, Table):
        return node
    item = node.entries.get(step) or _default(shape, node, step, rest)
    if item is None:
        return node
    inner = _opened(item, child(shape, step, node), rest)
    return Table(node.origin, {**node.entries, step: inner}, node.text)


def _default(shape: Shape, node: Node, step: str, rest: Sequence[str]) -> Node | None:
    """The default of a key that is not stated, when `rest` goes into a list that it has."""
    models = [model for model in select(shape, node) if step in fields(model)]
    if len(models) != 1 or not any(inner.isdecimal() for inner in rest):
        return None
    default = default_of(fields(models[0])[step])
    return None if default is None else lift(default, DEFAULT)


def _cut(text: str) -> str:
    line = text.replace("\n", "\\n")
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"
