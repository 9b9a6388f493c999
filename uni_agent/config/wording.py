"""The words for what pydantic found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from uni_agent.config.nodes import Items, Leaf, NodePath, Table
from uni_agent.config.redact import is_secret_key
from uni_agent.config.shape import Shape, tags_of
from uni_agent.config.suggest import closest

_EXPECTED = {
    "an integer": ("int_type", "int_parsing", "int_from_float", "int_parsing_size"),
    "a number": ("float_type", "float_parsing", "decimal_type", "decimal_parsing"),
    "a finite number": ("finite_number",),
    "true or false": ("bool_type", "bool_parsing"),
    "a string": ("string_type", "bytes_type", "string_sub_type"),
    "a path": ("path_type",),
    "null": ("none_required",),
    "a list": ("list_type", "tuple_type", "set_type", "frozen_set_type", "iterable_type", "sequence_type"),
    "a mapping": ("dict_type", "model_type", "model_attributes_type", "mapping_type", "dataclass_type"),
}
_BY_KIND = {kind: words for words, kinds in _EXPECTED.items() for kind in kinds}

_BOUNDS: dict[str, Callable[[dict[str, Any]], str]] = {
    "greater_than": lambda ctx: f"must be more than {ctx['gt']}",
    "greater_than_equal": lambda ctx: f"must be at least {ctx['ge']}",
    "less_than": lambda ctx: f"must be less than {ctx['lt']}",
    "less_than_equal": lambda ctx: f"must be at most {ctx['le']}",
    "multiple_of": lambda ctx: f"must be a multiple of {ctx['multiple_of']}",
    "string_too_short": lambda ctx: f"must have at least {ctx['min_length']} characters",
    "string_too_long": lambda ctx: f"must have at most {ctx['max_length']} characters",
    "too_short": lambda ctx: f"must have at least {ctx['min_length']} items",
    "too_long": lambda ctx: f"must have at most {ctx['max_length']} items",
    "string_pattern_mismatch": lambda ctx: f"must match {ctx['pattern']}",
}
_SHOWN = 60


def expected(error: Any, shape: Shape) -> str | None:
    """What should stand there, None where the error is not about the kind of value."""
    kind = error["type"]
    if kind in {"literal_error", "enum"}:
        choices = shape.choices or (error["ctx"]["expected"],)
        return ("one of " if len(choices) > 1 else "") + ", ".join(_choice(item) for item in choices)
    if kind in {"union_tag_invalid", "union_tag_not_found"}:
        return f"a mapping with a `type` ({type_names([shape])})"
    return _BY_KIND.get(kind)


def message(error: Any, shape: Shape, path: NodePath) -> str:
    """What is wrong, as a phrase that follows `path: `."""
    kind, value = error["type"], error["input"]
    wanted = expected(error, shape)
    if wanted:
        text = f"expected {wanted}, {got(path, value)}"
        near = closest(value, (str(item) for item in shape.choices)) if isinstance(value, str) else None
        return f"{text}, did you mean {near!r}?" if near and shape.choices else text
    if kind == "missing":
        return "missing"
    if kind in _BOUNDS:
        return f"{_BOUNDS[kind](error['ctx'])}, {got(path, value)}"
    if kind in {"value_error", "assertion_error"}:
        return str(error["ctx"]["error"]) or "not a valid value"
    text = str(error["msg"])
    return text[:1].lower() + text[1:]


def tag_message(error: Any, shape: Shape) -> str:
    """What is wrong with the `type` of a part, or with what stands in its place."""
    value = error["input"]
    names = type_names([shape])
    if not isinstance(value, dict):
        tags = [str(tag) for part in shape.parts for tag in tags_of(part.model)]
        cure = f"; write {{type: {value}}}" if isinstance(value, str) and value in tags else ""
        return f"expected a mapping with a `type` ({names}), {got((), value)}{cure}"
    key = shape.discriminator if isinstance(shape.discriminator, str) else "type"
    stated = cast("dict[str, Any]", value).get(key)
    if stated is None or stated == "":
        return f"missing, one of: {names}"
    near = closest(str(stated), (str(tag) for part in shape.parts for tag in tags_of(part.model, key)))
    hint = f", did you mean `{near}`?" if near else ""
    return f"unknown type {_cut(repr(stated))}{hint} (one of: {names})"


def type_names(shapes: Sequence[Shape]) -> str:
    """The types that may be chosen, for a sentence."""
    names: list[str] = []
    for shape in shapes:
        key = shape.discriminator if isinstance(shape.discriminator, str) else "type"
        names += [str(choice) for choice in shape.choices]
        names += [str(tag) for part in shape.parts for tag in tags_of(part.model, key)]
    plugin = any(part.tag == "plugin" for shape in shapes for part in shape.parts)
    return ", ".join(names) + (", or package.module:Class" if plugin else "")


def got(path: NodePath, value: Any) -> str:
    """`got …`, short, and without what may be a secret."""
    if path and is_secret_key(str(path[-1])):
        return "got something else"
    if isinstance(value, Leaf):
        value = value.value
    if value is None:
        return "got null"
    if isinstance(value, bool):
        return f"got {str(value).lower()}"
    if isinstance(value, (dict, Table)):
        return "got a mapping"
    if isinstance(value, (list, tuple, Items)):
        return "got a list"
    return f"got {_cut(repr(str(value) if isinstance(value, str) else value))}"


def _choice(value: Any) -> str:
    return repr(value) if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
