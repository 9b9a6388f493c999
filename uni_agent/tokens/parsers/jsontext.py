"""JSON as models write it, read without surprises: the only error is ValueError."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, NoReturn, cast

MAX_DEPTH = 100
"""Deepest nesting of arguments; more would break `json.dumps` in a consumer whose stack is already deep."""


def loads(text: str) -> Any:
    """The JSON value `text` holds. Raw control characters inside strings are accepted, since models write them.

    Raises ValueError for anything that strict consumers could not take back: NaN and infinities, nesting over
    `MAX_DEPTH`, integers of thousands of digits and lone surrogates (they cannot be encoded as UTF-8).
    """
    try:
        value = json.loads(text, strict=False, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    check_value(value)
    return value


def levels(value: Any) -> Iterator[list[Any]]:
    """Everything in `value`, keys of objects included: itself, then what stands in it, then what stands in that, ….

    Raises ValueError behind `MAX_DEPTH` levels.
    """
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        yield level
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                fields = cast("dict[Any, Any]", item)
                below.extend(fields.keys())
                below.extend(fields.values())
            elif isinstance(item, list | tuple):
                below.extend(cast("list[Any]", item))
        if not below:
            return
        level = below
    raise ValueError(f"nested too deeply, over {MAX_DEPTH} levels")


def check_value(value: Any) -> None:
    """Raise ValueError when `value` is nested over `MAX_DEPTH` or holds a lone surrogate."""
    for level in levels(value):
        for item in level:
            if isinstance(item, str):
                _check_text(item)


def check_depth(value: Any) -> None:
    """Raise ValueError when `value` is nested over `MAX_DEPTH`."""
    for _ in levels(value):
        pass


def dumps(value: Any) -> str:
    """`value` as JSON text, characters outside ASCII as they are."""
    return json.dumps(value, ensure_ascii=False)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is out of range")
    return number


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("a string holds half of a surrogate pair") from error
