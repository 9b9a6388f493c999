from __future__ import annotations

import io
import sys
import threading
from typing import Any

import pytest

from uni_agent.runtime.board import BoardKind, LineBoard, NoBoard, RichBoard, duration, make_board
from uni_agent.types import ExitReason, RolloutKey

HOSTILE = "[red]x[/red] [link=http://a]y[/link] \x1b[2J\x1b]0;owned\x07 \u202egnp.exe \ud800"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def key(number: int) -> RolloutKey:
    return RolloutKey(f"task-{number}", 0)


def shown(board: Any) -> str:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=120, force_terminal=False)
    console.print(board.render())
    return console.file.getvalue()  # pyright: ignore


def test_a_line_has_the_numbers() -> None:
    clock, stream = Clock(), io.StringIO()
    board = make_board("plain", total=10, done=2, stream=stream, clock=clock)
    with board:
        for number in range(4):
            board.started(key(number))
        clock.now += 120
        board.finished(key(0), ExitReason.FINISHED, 1.0, True)
        board.finished(key(1), ExitReason.TOKEN_LIMIT, 0.0, False)
        board.finished(key(2), ExitReason.SANDBOX_ERROR, 0.0, False)  # says nothing about the model
    (line,) = stream.getvalue().splitlines()
    assert line == (
        "5/10 done · 1 running · ✓ finished 1 · ◷ token_limit 1 · ⚠ sandbox_error 1 · reward 0.500 · resolved 50.0%"
        " · 1.5/min · elapsed 2m00s · left 3m20s"
    )


def test_a_line_comes_every_interval_and_at_the_end() -> None:
    clock, stream = Clock(), io.StringIO()
    board = make_board("plain", total=None, stream=stream, clock=clock, interval=60)
    assert isinstance(board, LineBoard)
    with board:
        for _ in range(13):
            clock.now += 10
            board.tick()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0] == "0 done · 0 running · elapsed 1m00s"


@pytest.mark.parametrize(("error", "state"), [(ValueError, "failed"), (KeyboardInterrupt, "interrupted")])
def test_the_end_says_how_it_came(error: type[BaseException], state: str) -> None:
    stream = io.StringIO()
    with pytest.raises(error), make_board("plain", total=1, stream=stream):
        raise error
    assert stream.getvalue().splitlines()[-1].startswith(f"{state}: 0/1 done")


def test_a_later_attempt_takes_the_place_of_the_earlier() -> None:
    stream = io.StringIO()
    with make_board("plain", total=1, stream=stream) as board:
        board.finished(key(0), ExitReason.MODEL_ERROR)
        board.started(key(0))
        board.finished(key(0), ExitReason.FINISHED, 1.0, True)
    assert "1/1 done · 0 running · ✓ finished 1 · reward 1.000 · resolved 100.0%" in stream.getvalue()


def test_the_live_board_shows_hostile_names_as_text() -> None:
    board = make_board("rich", total=3, stream=Terminal(), name=HOSTILE, clock=Clock())
    board.started(RolloutKey(HOSTILE, 0))
    board.finished(key(1), ExitReason.FORMAT_ERROR, 0.0, False)
    text = shown(board)
    assert "[red]x[/red]" in text
    assert "✗" in text
    assert "format_error" in text
    assert "1/3 done" in text
    assert not set(text) & set("\x1b\x07\u202e\ud800")


def test_the_live_board_draws_and_leaves_its_last_state() -> None:
    stream = Terminal()
    with make_board("rich", total=2, stream=stream, name="demo") as board:
        board.started(RolloutKey(HOSTILE, 0))
        board.finished(key(0), ExitReason.FINISHED, 1.0, True)
    drawn = stream.getvalue()
    assert "done: 1/2 done" in drawn
    assert "\x1b[2J" not in drawn
    assert "\x1b]0;owned" not in drawn


@pytest.mark.parametrize("kind", ["rich", "plain"])
def test_a_terminal_that_is_gone_does_not_stop_a_rollout(kind: BoardKind) -> None:
    streams = (sys.stdout, sys.stderr)
    with make_board(kind, total=1, stream=Gone()) as board:
        board.started(key(0))
        board.finished(key(0), ExitReason.FINISHED, 1.0, True)
    assert (sys.stdout, sys.stderr) == streams
    assert board.tally.numbers().done == 1  # pyright: ignore


@pytest.mark.parametrize("kind", ["rich", "plain"])
def test_a_terminal_without_our_characters_gets_others(kind: BoardKind) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    with make_board(kind, total=1, stream=stream, name="größe") as board:
        board.started(RolloutKey("ü", 0))
        board.finished(key(0), ExitReason.FINISHED, 1.0, True)
    stream.flush()
    assert b"finished" in raw.getvalue()
    assert b"1/1 done" in raw.getvalue()


class Stuck(io.StringIO):
    """A terminal that is paused (Ctrl-S) while it is written to."""

    def __init__(self, gate: threading.Event) -> None:
        super().__init__()
        self.gate = gate
        self.entered = threading.Event()

    def write(self, text: str) -> int:
        self.entered.set()
        self.gate.wait(10)
        return super().write(text)


def test_a_paused_terminal_does_not_pause_a_rollout() -> None:
    gate = threading.Event()
    stream, clock = Stuck(gate), Clock()
    board = make_board("plain", total=1, stream=stream, clock=clock, interval=1)
    assert isinstance(board, LineBoard)
    clock.now += 5
    drawing = threading.Thread(target=board.tick)
    drawing.start()
    assert stream.entered.wait(5)
    board.started(key(0))
    board.finished(key(0), ExitReason.FINISHED)
    assert board.tally.numbers().done == 1
    gate.set()
    drawing.join()


def test_auto_follows_the_stream() -> None:
    assert isinstance(make_board("auto", total=1, stream=Terminal()), RichBoard)
    assert isinstance(make_board("auto", total=1, stream=io.StringIO()), LineBoard)
    assert isinstance(make_board("none", total=1), NoBoard)


def test_durations_read_well() -> None:
    assert [duration(s) for s in (0, 41.9, 187, 7500, -1)] == ["0s", "41s", "3m07s", "2h05m", "0s"]


def test_counting_stays_fast_with_many_rollouts() -> None:
    board = make_board("none", total=100_000)
    for number in range(20_000):
        board.started(key(number))
        board.finished(key(number), ExitReason.FINISHED, 1.0, True)
    numbers = board.tally.numbers()  # pyright: ignore
    assert numbers.done == 20_000  # pyright: ignore
