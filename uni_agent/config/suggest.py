"""Did you mean …?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher, get_close_matches

from pydantic import BaseModel

from uni_agent.config.nodes import Node, dotted, find
from uni_agent.config.shape import NOTHING, Shape, child, fields, select, tags_of

_CLOSE = 0.6
_VERY_CLOSE = 0.85
_MAX_DEPTH = 6


def closest(word: str, known: Iterable[str], cutoff: float = _CLOSE) -> str | None:
    """The one of `known` that `word` most likely stands for, None when none is near."""
    names = list(known)
    for name in names:
        if _bare(name) == _bare(word):
            return name
    by_lower = {name.lower(): name for name in names}
    found = get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[found[0]] if found else None


def unknown_key(shape: Shape, root: Node, path: Sequence[str | int], *, whole: bool) -> str:
    """The message about `path`, whose last known parent the schema closes.

    `whole`: name the suggestion by its full path, as on the command line.
    """
    parents, rest = _known_prefix(shape, root, path)
    parent = path[: len(path) - len(rest)]
    word, *below = rest
    keys = _keys(parents, find(root, parent))
    near = _near(str(word), keys, parents, find(root, parent), below)
    elsewhere = _owners(shape, root, str(rest[-1]), parent)
    if near and (below or not elsewhere or _alike(str(word), str(near[0])) >= _VERY_CLOSE):
        named = dotted((*parent, *near)) if whole else near[0]
        return f"unknown key, did you mean `{named}`?"
    of_type = _other_types(parents, find(root, parent), str(word))
    if of_type:
        return f"unknown key, {of_type}"
    if elsewhere:
        owners = [f"`{dotted(owner)}`" if owner else "the top level" for owner in elsewhere[:3]]
        return f"unknown key, `{rest[-1]}` belongs to {' or '.join(owners)}"
    far = closest(dotted(path), (dotted(known) for known in known_paths(shape, root)), 0.75)
    if far and _alike(str(rest[-1]), far.rpartition(".")[2]) >= _CLOSE:
        return f"unknown key, did you mean `{far}`?"
    return "unknown key, known here: " + ", ".join(keys) if keys else "unknown key"


def known_paths(
    shape: Shape, node: Node | None, path: tuple[str, ...] = (), seen: tuple[type[BaseModel], ...] = ()
) -> Iterator[tuple[str, ...]]:
    """Every path of keys that the schema knows, with the parts that `node` states; lists are not entered."""
    for model in select(shape, node):
        if model in seen or len(path) >= _MAX_DEPTH:
            continue
        for key in fields(model):
            inner = child(Shape(parts=tuple(part for part in shape.parts if part.model is model)), key)
            yield (*path, key)
            below = find(node, [key]) if node is not None else None
            yield from known_paths(inner or NOTHING, below, (*path, key), (*seen, model))


def _known_prefix(shape: Shape, root: Node, path: Sequence[str | int]) -> tuple[Shape, Sequence[str | int]]:
    node: Node | None = root
    for position, step in enumerate(path):
        inner = child(shape, step, node)
        if inner is None:
            return shape, path[position:]
        shape, node = inner, find(node, [step]) if node is not None else None
    return shape, path[-1:]


def _keys(shape: Shape, node: Node | None) -> list[str]:
    return list(dict.fromkeys(key for model in select(shape, node) for key in fields(model)))


def _near(
    word: str, keys: list[str], shape: Shape, node: Node | None, below: Sequence[str | int]
) -> tuple[str | int, ...]:
    """The mended rest of a path, empty when no key here is close or what follows does not fit under it."""
    found = closest(word, keys)
    if found is None:
        return ()
    inner = child(shape, found, node)
    if not below:
        return (found,)
    if inner is None:
        return ()
    head, *rest = below
    if child(inner, head) is not None:
        return (found, head, *rest)
    mended = _near(str(head), _keys(inner, None), inner, None, rest)
    return (found, *mended) if mended else ()


def _owners(shape: Shape, root: Node, word: str, parent: Sequence[str | int]) -> list[tuple[str, ...]]:
    """The parents of every known key spelled `word`, the nearest to the top first."""
    owners = {path[:-1] for path in known_paths(shape, root) if _bare(path[-1]) == _bare(word)}
    return sorted(owners - {tuple(str(step) for step in parent)}, key=lambda path: (len(path), path))


def _other_types(shape: Shape, node: Node | None, word: str) -> str:
    """Says which other types of part have the key `word`, "" when none has."""
    models = select(shape, node)
    if len(models) != 1 or len(shape.parts) < 2:
        return ""
    mine = " or ".join(f"`{tag}`" for tag in tags_of(models[0]))
    others = [f"`{tag}`" for part in shape.parts if word in fields(part.model) for tag in tags_of(part.model)]
    return f"`{word}` belongs to type {', '.join(others)}, not to {mine or 'this one'}" if others else ""


def _bare(word: str) -> str:
    return word.replace("-", "").replace("_", "").lower()


def _alike(word: str, other: str) -> float:
    return 1.0 if _bare(word) == _bare(other) else SequenceMatcher(None, word.lower(), other.lower()).ratio()
