"""The files of a configuration: the one that was named, over those that it extends."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from uni_agent.config.base import ConfigPath, SourcedStr
from uni_agent.config.nodes import Items, Leaf, Node, Origin, Table
from uni_agent.config.parse import parse_yaml
from uni_agent.config.problems import ConfigReport, Problem, fault

_MAX_BYTES = 16 * 2**20
_PATH: TypeAdapter[Path] = TypeAdapter(ConfigPath)


def read_layers(path: str | Path) -> list[Table]:
    """The layers of a file, lowest first; a file that is reached twice lies where it was first reached.

    Raises ConfigReport: a file that cannot be read or is no mapping, and a circle of `extends`.
    """
    target = _target(path, None, str(path))
    layers: dict[Path, Table] = {}
    _collect(target, str(path), None, (), layers)
    return list(layers.values())


def _collect(
    target: Path, shown: str, stated_at: Origin | None, open_files: tuple[Path, ...], layers: dict[Path, Table]
) -> None:
    real = Path(os.path.realpath(target))  # unlike Path.resolve, it does not fail on a loop of links
    if real in open_files:
        chain = " → ".join(_display(item) for item in (*open_files[open_files.index(real) :], real))
        raise fault(stated_at or shown, f"files extend each other in a circle: {chain}", "extends")
    if real in layers:
        return
    root = _read(target, shown, stated_at)
    stated = root.entries.pop("extends", None)
    problems: list[Problem] = []
    for item in _extended(stated):
        if not isinstance(item, Leaf) or not isinstance(item.value, str):
            problems.append(Problem(str(item.origin), "extends", "expected a file name or a list of them"))
            continue
        try:
            below = _target(item.value, target.parent.absolute(), str(item.origin))
            _collect(below, _display(below), item.origin, (*open_files, real), layers)
        except ConfigReport as report:
            problems += report.problems
    if problems:
        raise ConfigReport(problems)
    layers[real] = root


def _extended(stated: Node | None) -> list[Node]:
    if stated is None or (isinstance(stated, Leaf) and stated.value is None):
        return []
    return stated.items if isinstance(stated, Items) else [stated]


def _target(path: str | Path, folder: Path | None, where: str) -> Path:
    text = str(path)
    if isinstance(path, Path) and text.startswith("pkg:/"):  # a Path keeps one slash of two
        text = text.replace("pkg:/", "pkg://", 1)
    try:
        return _PATH.validate_python(text if folder is None else SourcedStr.at(text, folder))
    except ValidationError as error:
        reason = error.errors()[0]["ctx"]["error"]  # pyright: ignore[reportTypedDictNotRequiredAccess]
        raise fault(where, f"no such configuration: {reason}") from error


def _read(target: Path, shown: str, stated_at: Origin | None) -> Table:
    where = stated_at or shown
    path = "extends" if stated_at else ""
    named = f" {shown}" if stated_at else ""
    try:
        raw = target.read_bytes()
    except IsADirectoryError as error:
        raise fault(where, f"the configuration{named} is a folder; name a YAML file in it", path) from error
    except FileNotFoundError as error:
        raise fault(where, f"no such configuration file{named}{_near_files(target)}", path) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise fault(where, f"the configuration{named} cannot be read: {reason}", path) from error
    if len(raw) > _MAX_BYTES:
        raise fault(shown, f"not a configuration: larger than {_MAX_BYTES // 2**20} MiB")
    folder = target.parent.absolute()
    root = parse_yaml(_decoded(raw, shown), lambda line: Origin("file", shown, line, folder=folder))
    if root is None or (isinstance(root, Leaf) and root.value is None):
        return Table(Origin("file", shown, 1, folder=folder), {})
    if not isinstance(root, Table):
        found = "a list" if isinstance(root, Items) else "a single value"
        raise fault(root.origin, f"expected a mapping of keys, found {found}")
    return root


def _decoded(raw: bytes, shown: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise fault(f"{shown}:{line}", f"not UTF-8 text: the byte 0x{raw[error.start]:02x}") from error


def _near_files(target: Path) -> str:
    from uni_agent.config.suggest import closest

    try:
        names = {item.stem: item.name for item in target.parent.iterdir() if item.suffix in {".yaml", ".yml"}}
    except OSError:
        return ""
    near = closest(target.stem, names)
    return f", did you mean {_display(target.parent / names[near])}?" if near else ""


def _display(path: Path) -> str:
    """`path` as a user in the current folder would name it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
