"""Any value as strict UTF-8 JSON, any text as storable text. Nothing here raises on what a model or a tool wrote."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, cast

from pydantic import BaseModel

_MAX_DEPTH = 60
_MAX_INT_BITS = 4096  # Python refuses to print integers of more than 4300 digits
_LINE_BREAKS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def utf8(text: str) -> str:
    r"""`text` with lone surrogates written as `\udc80`; everything else, NUL included, unchanged."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def column(text: str) -> str:
    r"""`text` for a TEXT column: `utf8`, and NUL written as `\x00`, at which C programs would stop reading."""
    return utf8(text).replace("\x00", "\\x00")


def plain(value: Any) -> Any:
    """`value` as data that JSON can hold.

    NaN and infinities become None, bytes and lone surrogates readable escapes, dataclasses, models, mappings, sets and
    arrays plain containers, anything else its `repr`. What nests deeper than 60 levels, or contains itself, becomes a
    short note.
    """
    return _plain(value, set())


def dumps(value: Any) -> str:
    """Strict JSON of any value on one line, also for readers that split at U+2028 and the like."""
    return strict(plain(value))


def strict(value: Any) -> str:
    """Like `dumps`, faster, for what is plain already. Raises ValueError for NaN and infinities."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text if text.isascii() else text.translate(_LINE_BREAKS)


def loads(text: str | None, default: Any = None) -> Any:
    """What a JSON column holds; `default` when it is NULL."""
    return default if text is None else json.loads(text)


def _plain(value: Any, path: set[int]) -> Any:
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, str | int | float):
        return _scalar(value)
    if len(path) >= _MAX_DEPTH or id(value) in path:
        return f"<{type(value).__name__}: nested too deep>"
    path.add(id(value))
    try:
        return _container(value, path)
    finally:
        path.discard(id(value))


def _scalar(value: str | float | None) -> str | float | None:
    if isinstance(value, str):
        return utf8(str(value))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _MAX_INT_BITS else hex(value)
    return float(value) if math.isfinite(value) else None


def _container(value: Any, path: set[int]) -> Any:
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value)
        return {_key(key): _plain(item, path) for key, item in items.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, path) for item in cast("Iterable[Any]", value)]
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, BaseModel):
        return _plain(value.model_dump(), path)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name), path) for f in dataclasses.fields(value)}
    return _foreign(value, path)


def _foreign(value: Any, path: set[int]) -> Any:
    """Arrays and tensors as lists, the rest as text; both run foreign code, which may raise anything."""
    try:
        if callable(getattr(value, "tolist", None)):
            return _plain(value.tolist(), path)
        return utf8(str(value) if hasattr(value, "__fspath__") else repr(value))
    except Exception as error:
        return f"<{type(value).__name__}: {type(error).__name__}>"


def _key(key: Any) -> str:
    if isinstance(key, Enum):
        key = key.value
    return utf8(key) if isinstance(key, str) else str(_plain(key, set()))
