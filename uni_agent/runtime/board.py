"""How the progress of a run is shown while it goes on. A board never raises into the run that it shows."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TextIO

from uni_agent.store.display import colour, glyph, shorten
from uni_agent.types import ExitReason, RolloutKey

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

BoardKind = Literal["auto", "rich", "plain", "none"]
Clock = Callable[[], float]

_log = logging.getLogger(__name__)
_SHOWN_RUNNING = 5


class Board(Protocol):
    """Told what starts and ends, shows it from entering to leaving the block. Calls may come from any thread."""

    def started(self, key: RolloutKey) -> None:
        """A rollout starts."""
        ...

    def finished(
        self, key: RolloutKey, exit_reason: ExitReason, score: float | None = None, resolved: bool | None = None
    ) -> None:
        """A rollout ended. Another attempt at the same sample takes its place."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Ending:
    """How one rollout ended."""

    exit_reason: ExitReason
    score: float | None
    resolved: bool | None


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a board shows, as of one moment. Times in seconds; means are None without trusted endings."""

    done: int
    """Rollouts done, those of before a resume included."""
    total: int | None
    running: int
    oldest: tuple[tuple[RolloutKey, float], ...]
    """The rollouts that have been running longest, and for how long."""
    exit_reasons: dict[ExitReason, int]
    """Most frequent first; of this process alone, like the means and the rate."""
    reward_mean: float | None
    resolved_rate: float | None
    per_minute: float
    """0 until the first second is over."""
    eta: float | None
    elapsed: float


class Tally:
    """Counts what starts and ends, in constant time, from any thread."""

    def __init__(self, total: int | None, before: int, clock: Clock) -> None:
        self._total = total
        self._before = before
        self._clock = clock
        self._began = clock()
        self._lock = threading.Lock()
        self._running: dict[RolloutKey, float] = {}
        self._endings: dict[RolloutKey, Ending] = {}
        self._reasons: Counter[ExitReason] = Counter()
        self._scores = _Mean()
        self._resolved = _Mean()

    @property
    def elapsed(self) -> float:
        """Seconds since the tally was made."""
        return self._clock() - self._began

    def started(self, key: RolloutKey) -> None:
        """Count a rollout as running."""
        with self._lock:
            self._running[key] = self.elapsed

    def finished(self, key: RolloutKey, ending: Ending) -> None:
        """Count a rollout as done; the last ending of a sample counts."""
        with self._lock:
            self._running.pop(key, None)
            if (earlier := self._endings.get(key)) is not None:
                self._count(earlier, -1)
            self._endings[key] = ending
            self._count(ending, 1)

    def numbers(self) -> Numbers:
        """The counts as they stand."""
        with self._lock:
            elapsed, here = self.elapsed, len(self._endings)
            done = self._before + here
            rate = here / elapsed if elapsed >= 1 else 0.0
            oldest = islice(self._running.items(), _SHOWN_RUNNING)
            return Numbers(
                done=done,
                total=self._total,
                running=len(self._running),
                oldest=tuple((key, elapsed - at) for key, at in oldest),
                exit_reasons={reason: n for reason, n in self._reasons.most_common() if n},
                reward_mean=self._scores.value,
                resolved_rate=self._resolved.value,
                per_minute=60 * rate,
                eta=max(self._total - done, 0) / rate if rate and self._total is not None else None,
                elapsed=elapsed,
            )

    def _count(self, ending: Ending, sign: int) -> None:
        self._reasons[ending.exit_reason] += sign
        if ending.exit_reason.trusted:
            self._scores.add(ending.score, sign)
            self._resolved.add(ending.resolved, sign)


class _Mean:
    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0

    @property
    def value(self) -> float | None:
        return self._sum / self._count if self._count else None

    def add(self, number: float | None, sign: int) -> None:
        if number is not None and math.isfinite(number):
            self._sum += sign * number
            self._count += sign


class BaseBoard(ABC):
    """What boards share: counting under a lock, a ticker, and losing the display rather than the run."""

    _period: ClassVar[float | None] = None
    """Seconds between ticks; None for a board that shows nothing by itself."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        # Held while drawing, never while counting: a terminal that is paused must not pause a rollout.
        self._drawing = threading.Lock()
        self._broken = False
        self._left = threading.Event()
        self._ticker: threading.Thread | None = None

    def started(self, key: RolloutKey) -> None:
        """A rollout starts."""
        self.tally.started(key)

    def finished(
        self, key: RolloutKey, exit_reason: ExitReason, score: float | None = None, resolved: bool | None = None
    ) -> None:
        """A rollout ended. Another attempt at the same sample takes its place."""
        self.tally.finished(key, Ending(exit_reason, score, resolved))

    def tick(self) -> None:
        """Show what is due by now."""
        self._safely(self._show)

    def __enter__(self) -> Self:
        self._safely(self._open)
        if self._period is not None:
            self._ticker = threading.Thread(target=self._tick_on, name="progress-board", daemon=True)
            self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._left.set()
        if self._ticker is not None:
            self._ticker.join(timeout=5)
        state = "done" if kind is None else "failed" if issubclass(kind, Exception) else "interrupted"
        self._safely(lambda: self._close(state))

    @abstractmethod
    def _open(self) -> None: ...

    @abstractmethod
    def _show(self) -> None: ...

    @abstractmethod
    def _close(self, state: str) -> None: ...

    def _abandon(self) -> None:
        """Let go of what the display holds, after it failed."""
        return

    def _tick_on(self) -> None:
        while not self._left.wait(self._period):
            self.tick()

    def _safely(self, show: Callable[[], None]) -> None:
        """Run `show`. A terminal that is gone or cannot show a character ends the display, never the run."""
        if not self._drawing.acquire(timeout=5):
            return
        try:
            if not self._broken:
                show()
        except Exception as error:
            self._broken = True
            self._abandon()
            _log.warning("the progress display stops: %s: %s", type(error).__name__, error)
        finally:
            self._drawing.release()


class NoBoard(BaseBoard):
    """Counts and shows nothing."""

    def _open(self) -> None:
        return

    def _show(self) -> None:
        return

    def _close(self, state: str) -> None:
        del state


class LineBoard(BaseBoard):
    """One plain line every `interval` seconds, and one at the end."""

    _period = 1.0

    def __init__(self, tally: Tally, stream: TextIO, interval: float) -> None:
        super().__init__(tally)
        self._stream = stream
        self._interval = interval
        self._shown_at = tally.elapsed

    def _open(self) -> None:
        return

    def _show(self) -> None:
        if self.tally.elapsed - self._shown_at >= self._interval:
            self._write("")

    def _close(self, state: str) -> None:
        self._write("" if state == "done" else f"{state}: ")

    def _write(self, prefix: str) -> None:
        self._shown_at = self.tally.elapsed
        self._stream.write(encodable(prefix + line(self.tally.numbers()), self._stream) + "\n")
        self._stream.flush()


class RichBoard(BaseBoard):
    """A live table on a terminal. Text of tasks is shown as text, never as markup or terminal commands."""

    _period = 0.5

    def __init__(self, tally: Tally, stream: TextIO, title: str) -> None:
        from rich.live import Live

        super().__init__(tally)
        self._title = title
        self._ascii = not can_show(stream)
        self._live = Live(console=_console(stream), auto_refresh=False, transient=False)

    def _open(self) -> None:
        self._live.start()
        self._show()

    def _show(self) -> None:
        self._live.update(self.render(), refresh=True)

    def _close(self, state: str) -> None:
        self._live.update(self.render(state), refresh=True)
        self._live.stop()

    def _abandon(self) -> None:
        with contextlib.suppress(Exception):  # gives stdout and stderr back before it fails at the terminal again
            self._live.stop()

    def render(self, state: str = "") -> RenderableType:
        """The board as it stands."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        numbers = self.tally.numbers()
        table = Table(box=None, pad_edge=False, show_header=bool(numbers.exit_reasons))
        for name, justify in (("", "left"), ("exit reason", "left"), ("count", "right"), ("share", "right")):
            table.add_column(name, justify=justify)  # pyright: ignore[reportArgumentType] - two of the literals
        ended = sum(numbers.exit_reasons.values())
        for reason, count in numbers.exit_reasons.items():
            style = colour(reason.exit_class)
            mark = glyph(reason.exit_class, ascii_only=self._ascii)
            table.add_row(Text(mark, style), Text(str(reason), style), str(count), f"{100 * count / ended:.0f}%")
        file = self._live.console.file
        prefix = f"{state}: " if state else ""
        parts: list[RenderableType] = [Text(encodable(shorten(self._title, 100), file), "bold")] if self._title else []
        parts += [Text(encodable(prefix + line(numbers, reasons=False), file)), table]
        if not state:
            names = [f"{duration(seconds):>6}  {shorten(str(key), 80)}" for key, seconds in numbers.oldest]
            parts += [Text(encodable(name, file), "dim") for name in names]
        return Group(*parts)


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            # Rich would end the process here, and point its stdout elsewhere.
            raise OSError("the terminal is gone")

    return Terminal(file=stream, highlight=False)


def make_board(
    kind: BoardKind,
    *,
    total: int | None,
    stream: TextIO | None = None,
    done: int = 0,
    name: str = "",
    interval: float = 60.0,
    clock: Clock = time.monotonic,
) -> Board:
    """A board for `total` rollouts (None: unknown) of which `done` were done when the run was resumed.

    `auto` is `rich` on a terminal and `plain` elsewhere. `stream` is by default stderr. `plain` writes every
    `interval` seconds.
    """
    tally = Tally(total, done, clock)
    if kind == "none":
        return NoBoard(tally)
    out: TextIO | None = stream or sys.stderr
    if out is None:  # a process without standard streams
        return NoBoard(tally)
    if kind == "rich" or (kind == "auto" and out.isatty()):
        return RichBoard(tally, out, name)
    return LineBoard(tally, out, interval)


def line(numbers: Numbers, *, reasons: bool = True) -> str:
    """The numbers on one line."""
    total = "" if numbers.total is None else f"/{numbers.total}"
    parts = [f"{numbers.done}{total} done", f"{numbers.running} running"]
    if reasons:
        counts = numbers.exit_reasons.items()
        parts += [f"{glyph(reason.exit_class)} {reason} {count}" for reason, count in counts]
    if numbers.reward_mean is not None:
        parts.append(f"reward {numbers.reward_mean:.3f}")
    if numbers.resolved_rate is not None:
        parts.append(f"resolved {100 * numbers.resolved_rate:.1f}%")
    if numbers.per_minute:
        parts.append(f"{numbers.per_minute:.1f}/min")
    parts.append(f"elapsed {duration(numbers.elapsed)}")
    if numbers.eta:
        parts.append(f"left {duration(numbers.eta)}")
    return " · ".join(parts)


def duration(seconds: float) -> str:
    """`41s`, `3m07s` or `2h05m`."""
    whole = max(int(seconds), 0)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def can_show(stream: TextIO) -> bool:
    """Whether `stream` can carry our glyphs."""
    return encodable("✓◷✗⚠■·…", stream) == "✓◷✗⚠■·…"


def encodable(text: str, stream: Any) -> str:
    """`text` with what the stream's encoding lacks replaced by `?`."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)
