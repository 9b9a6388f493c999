"""How a plain scalar reads: the core schema of YAML 1.2, minus its one trap for ids.

`no`, `on`, `2024-01-02` and `1:30` are strings, `1e3` is a number. Unlike YAML 1.2, `007` is a string: a number that
would lose its zeros is an id.
"""

from __future__ import annotations

import re

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,99})")
_BASED = re.compile(r"0o[0-7]{1,99}|0x[0-9a-fA-F]{1,99}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


def plain(text: str) -> str | int | float | bool | None:
    """The value that the unquoted `text` stands for."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text) or _BASED.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    return float(text.replace(".", "")) if _SPECIAL.fullmatch(text) else text


def tagged(kind: str, text: str) -> str | int | float | bool | None:
    """The value of `!!kind text`. Raises ValueError when the text is not of that kind."""
    value = plain(text)
    if kind == "str":
        return text
    if kind == "null" and value is None:
        return None
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind == "int" and isinstance(value, int) and not isinstance(value, bool):
        return value
    if kind == "float" and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise ValueError(f"{text!r} is no !!{kind}")
