"""Following the metrics that verl's trainer writes: its `file` logger, one JSON object a line."""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """What one line says: `metrics` of `step`, name → number; `end` is the byte behind the line.

    NaN and infinities are as they were written; a metric that verl wrote as null is None.
    """

    step: int
    metrics: dict[str, Any]
    end: int


class StepTail:
    """Reads what is new of the file `path`, which need not exist yet; a line without its end is left until it has one.

    A file that is written anew from its start is read from its start again. `bad` counts lines that hold no step.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.bad = 0
        self._position = 0
        self._source: str | None = None

    @property
    def source(self) -> str | None:
        """Names the file by its name and first line; None while there is none."""
        return self._source

    def open(self, marks: dict[str, tuple[int, int]] | None = None) -> bool:
        """Look at the first line, and go to where `marks` (source → number, byte) says.

        Returns whether there is one.
        """
        try:
            with self.path.open("rb") as file:
                line = file.readline()
                size = os.fstat(file.fileno()).st_size
        except OSError:
            return False
        if not line.endswith(b"\n"):
            return False
        source = f"steps:{self.path.name}:{zlib.crc32(line):08x}"
        if source != self._source or size < self._position:
            self._source = source
            self._position = (marks or {}).get(source, (0, 0))[1]
        return True

    def poll(self, *, final: bool = False) -> list[StepMetrics]:
        """The steps that came since the last call, in order; [] without. With `final` the last line needs no end."""
        if not self.open() and not final:
            return []
        try:
            with self.path.open("rb") as file:
                file.seek(self._position)
                lines = file.readlines()
        except OSError:
            return []
        return list(self._steps(lines, final=final))

    def _steps(self, lines: list[bytes], *, final: bool) -> Iterator[StepMetrics]:
        for line in lines:
            if not line.endswith(b"\n") and not final:
                return
            self._position += len(line)
            found = _step(line)
            if found is None:
                self.bad += 1
                _log.warning("%s: a line that ends at byte %d holds no step", self.path, self._position)
                continue
            yield StepMetrics(*found, self._position)


def _step(line: bytes) -> tuple[int, dict[str, Any]] | None:
    try:
        data: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    fields = cast("dict[str, Any]", data)
    step, metrics = fields.get("step"), fields.get("data")
    if isinstance(step, float) and step.is_integer():
        step = int(step)
    if type(step) is not int or abs(step) >= 2**63 or not isinstance(metrics, dict):
        return None
    return step, cast("dict[str, Any]", metrics)
