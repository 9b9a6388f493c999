"""Batches that verl had to fill up, and what is written down of the others."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)


def spread_padding(padding: Sequence[bool], ranks: int, minis: int) -> list[int]:
    """An order of the rows in which each mini-batch has its share of padding; `padding` tells which rows are.

    The rows are dealt to `ranks` in consecutive parts of equal size, and those to `minis` mini-batches each. Within its
    part, the order of real rows is kept. verl puts padding at the end: a mini-batch of one real row and padding would
    give that row a whole optimiser step. Raises ValueError when the rows cannot be dealt so.
    """
    if len(padding) % (ranks * minis):
        raise ValueError(f"{len(padding)} rows cannot be dealt to {ranks} ranks and {minis} mini-batches")
    part = len(padding) // ranks
    order: list[int] = []
    for first in range(0, len(padding), part):
        rows = range(first, first + part)
        real = iter([row for row in rows if not padding[row]])
        filler = [row for row in rows if padding[row]]
        size = part // minis
        for mini in range(minis):
            share = filler[mini * len(filler) // minis : (mini + 1) * len(filler) // minis]
            order += [next(real) for _ in range(size - len(share))] + share
    return order


class GroupLog:
    """One line of JSON for each batch that was trained: its groups, rewards and advantages.

    `rows` have `key`, `uid`, `session`, `chain`, `task_id`, `exit_reason`, `trusted`, `score`, `advantage` (that of the
    first trained token, 0.0 without one) and `trained_tokens`. A log that cannot be written is given up: it must not
    end a training.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._broken = False

    def write(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append the batch of `step`."""
        if self._broken:
            return
        text = json.dumps({"step": step, "rows": [_finite(row) for row in rows]}, allow_nan=False)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text + "\n")
        except OSError as error:
            self._broken = True
            logger.warning("%s: groups are written down no more: %s", self._path, error)


def _finite(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}
