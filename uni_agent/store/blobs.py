"""Token arrays as compact blobs: one tag byte (0 raw, 1 zlib), then little-endian numbers."""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Sequence
from typing import TypeVar

_RAW, _ZLIB = b"\x00", b"\x01"
_Number = TypeVar("_Number", int, float)


def ids_bytes(ids: Sequence[int]) -> bytes:
    """Token ids [T] as uint32. Raises ValueError for a number that is no token id."""
    try:
        return _little(array("I", ids))
    except (OverflowError, TypeError) as error:
        raise ValueError(f"not a token id: {error}") from error


def mask_bytes(mask: Sequence[int]) -> bytes:
    """A mask [T] as one byte per token. Raises ValueError for a value outside 0…255."""
    return bytes(mask)


def floats_bytes(values: Sequence[float]) -> bytes:
    """Numbers [T] as float32; NaN and infinities stay what they are."""
    return _little(array("f", values))


def pack(raw: bytes) -> bytes:
    """A blob of `raw`, compressed where that makes it smaller."""
    small = zlib.compress(raw, 1)
    return _ZLIB + small if len(small) < len(raw) else _RAW + raw


def unpack(blob: bytes) -> bytes:
    """What `pack` was given. Raises ValueError for a blob that it did not make."""
    tag, body = blob[:1], blob[1:]
    if tag == _RAW:
        return body
    if tag != _ZLIB:
        raise ValueError(f"unknown blob tag {tag!r}")
    try:
        return zlib.decompress(body)
    except zlib.error as error:
        raise ValueError(f"damaged blob: {error}") from error


def ids_of(blob: bytes) -> list[int]:
    """Token ids [T]."""
    values = array("I")
    values.frombytes(unpack(blob))
    return _native(values).tolist()


def mask_of(blob: bytes) -> list[int]:
    """The mask [T]."""
    return list(unpack(blob))


def floats_of(blob: bytes | None) -> list[float] | None:
    """Numbers [T], or None where none were stored."""
    if blob is None:
        return None
    values = array("f")
    values.frombytes(unpack(blob))
    return _native(values).tolist()


def _little(values: array[int] | array[float]) -> bytes:
    return _native(values).tobytes()


def _native(values: array[_Number]) -> array[_Number]:
    """Little-endian to the machine's order, or back."""
    if sys.byteorder == "big":
        values.byteswap()
    return values
