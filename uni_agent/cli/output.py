"""How commands print."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any


def print_json(data: Any) -> None:
    """`data` as indented JSON on stdout."""
    print(json.dumps(data, indent=2, ensure_ascii=False, default=str))


def columns(rows: Iterable[Sequence[str]], indent: str = "") -> str:
    """`rows` as lines whose columns are aligned; the last column is not padded."""
    table = [list(row) for row in rows]
    count = max((len(row) for row in table), default=0)
    widths = [max((len(row[at]) for row in table if len(row) > at + 1), default=0) for at in range(count)]
    lines = (
        "  ".join([*(cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)), row[-1]])
        for row in table
    )
    return "\n".join(indent + line.rstrip() for line in lines)
