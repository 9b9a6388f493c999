"""How a training run's steps are shown while they happen."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Literal, Self, TextIO

from uni_agent.training.record import StepMetrics

Kind = Literal["auto", "rich", "plain", "none"]


def make_step_board(kind: Kind, *, total: int, name: str, stream: TextIO) -> StepBoard:
    """A board for `total` steps on `stream`; `auto` is a live one on a terminal, plain lines elsewhere."""
    if kind == "none":
        return StepBoard(total)
    live = kind == "rich" or (kind == "auto" and stream.isatty())
    return LiveBoard(total, name, stream) if live else PlainBoard(total, name, stream)


def headline(step: StepMetrics, total: int) -> str:
    """One line about a step: its reward, and the validation where there was one."""
    metrics = step.metrics
    words = [f"step {step.step}/{total}"]
    reward = metrics.get("critic/score/mean")
    if reward is not None:
        words.append(f"reward {reward:.3f}")
    checked = [value for key, value in metrics.items() if _is_score(key) and value is not None]
    if checked:
        words.append(f"validation {sum(checked) / len(checked):.3f}")
    seconds = metrics.get("timing_s/step")
    if seconds is not None:
        words.append(f"{seconds:.1f} s")
    return "  ".join(words)


def _is_score(key: str) -> bool:
    """Whether a metric is the mean reward of one validation group."""
    parts = key.split("/")
    return parts[0] == "val-core" and "reward" in parts and parts[-1].startswith("mean@")


class StepBoard:
    """Shows nothing."""

    def __init__(self, total: int) -> None:
        self.total = total

    def step(self, step: StepMetrics) -> None:
        """A step ended."""

    def __enter__(self) -> Self:
        """Show, for the length of a block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Show no more."""


class PlainBoard(StepBoard):
    """A line for each step."""

    def __init__(self, total: int, name: str, stream: TextIO) -> None:
        super().__init__(total)
        self._stream = stream
        self._name = name

    def __enter__(self) -> Self:
        """Say what starts."""
        self._say(f"{self._name}: {self.total} steps; starting the trainer …")
        return self

    def step(self, step: StepMetrics) -> None:
        """Print the step's line."""
        self._say(headline(step, self.total))

    def _say(self, text: str) -> None:
        try:
            print(text, file=self._stream, flush=True)
        except (OSError, ValueError):  # a closed terminal ends no training
            return


class LiveBoard(StepBoard):
    """A progress bar with the last step's numbers."""

    def __init__(self, total: int, name: str, stream: TextIO) -> None:
        super().__init__(total)
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        times = (TimeElapsedColumn(), TimeRemainingColumn())
        self._progress: Any = Progress(*columns, *times, console=Console(file=stream))
        self._task: Any = self._progress.add_task(f"{name}  starting the trainer …", total=total)
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        """Draw the bar."""
        self._progress.start()
        return self

    def step(self, step: StepMetrics) -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=step.step, description=headline(step, self.total))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the bar as it is."""
        self._progress.stop()
