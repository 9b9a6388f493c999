"""`uni-agent show RUN`: the numbers of a run, for people and for scripts."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from uni_agent.cli.show_training import training_json, training_lines
from uni_agent.errors import ConfigError, UniAgentError
from uni_agent.store.display import exit_class_of, glyph, printable, shorten
from uni_agent.store.text import dumps, plain

if TYPE_CHECKING:
    from uni_agent.store import RolloutRow, RunReader, Summary, TurnRow
    from uni_agent.store.summary import ReasonRow


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run's folder, its run.db, or `latest` (the default)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, nothing else")
    parser.add_argument("--rollout", metavar="TASK#SAMPLE", help="one rollout: how it ended, and why")
    parser.add_argument("--failed", action="store_true", help="list the rollouts that did not succeed")
    parser.add_argument(
        "--turns", action="store_true", help="print the turns of the rollout, or of all that are listed"
    )


def execute(args: argparse.Namespace) -> int:
    """Print; 0 done, 2 when there is no such run or rollout."""
    from uni_agent.config.settings import load_settings
    from uni_agent.store import RunReader, find_run

    try:
        with RunReader(find_run(args.run, load_settings().runs_dir)) as reader, reading_out():
            if args.rollout is not None:
                _show_rollout(reader, args)
            else:
                _show_run(reader, args)
    except UniAgentError as error:
        print(f"uni-agent show: {printable(str(error), keep_lines=True)}", file=sys.stderr)
        return 2
    return 0


def print_summary(summary: Summary, reasons: Sequence[ReasonRow] | None = None, stream: TextIO | None = None) -> None:
    """Print the numbers of a run as a table; `reasons` adds the mean reward of each exit reason."""
    with writable(stream or sys.stdout) as out:
        _print_lines(_summary_lines(summary, reasons, fancy=_is_unicode(out)), out)


@contextlib.contextmanager
def reading_out() -> Any:
    """End quietly when the reader of stdout (`| head`) goes away."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes stdout once more at exit: give it somewhere to go.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def writable(stream: TextIO) -> Any:
    """`stream`, with characters that its encoding lacks written as escapes instead of raising."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
    yield stream


# ------------------------------------------------------------------------------------------ a run


def _show_run(reader: RunReader, args: argparse.Namespace) -> None:
    summary = reader.summary()
    if args.json:
        _print_json(reader, summary, args)
        return
    print_summary(summary, reader.exit_reasons())
    with writable(sys.stdout) as out:
        _print_lines(training_lines(reader), out)
    if not args.failed and not args.turns:
        return
    with writable(sys.stdout) as out:
        for rollout in reader.each_rollout(failed=args.failed, texts=args.turns):
            _print_lines(_rollout_lines(rollout, full=args.turns), out)
            if args.turns:
                _print_turns(reader, rollout, out)


def _print_json(reader: RunReader, summary: Summary, args: argparse.Namespace) -> None:
    """One object, with its lists written as they are read: a run may not fit in memory."""
    facts = {**summary.to_dict(), "time_quantiles": reader.time_quantiles(), **training_json(reader)}
    write = sys.stdout.write
    write(_json(facts)[:-1])
    if args.failed or args.turns:
        write(',"failed":[' if args.failed else ',"rollout_list":[')
        for i, rollout in enumerate(reader.each_rollout(failed=args.failed)):
            write("," * bool(i) + _json(_rollout_dict(reader, rollout, turns=args.turns)))
        write("]")
    write("}\n")


def _summary_lines(summary: Summary, reasons: Sequence[ReasonRow] | None, *, fancy: bool) -> Iterable[str]:
    yield f"{shorten(summary.name, 60)}  {summary.run_id}  {summary.state}"
    yield ""
    width = max([11, *(len(name) for name in summary.exit_reasons)])
    means = {row.exit_reason: row.reward_mean for row in reasons or ()}
    if summary.exit_reasons:
        yield f"   {'exit reason':<{width}}  {'count':>7}  {'share':>6}" + ("  mean reward" if means else "")
    for name, count in summary.exit_reasons.items():
        mark = glyph(exit_class_of(name), ascii_only=not fancy)
        mean = f"  {_number(means.get(name), 3):>11}" if means else ""
        yield f" {mark} {printable(name):<{width}}  {count:>7}  {100 * count / summary.rollouts:>5.1f}%{mean}"
    yield ""
    counts = f"{summary.rollouts} rollout{_s(summary.rollouts)} of {summary.tasks} task{_s(summary.tasks)}"
    for number, what in (
        (summary.running, "running"),
        (summary.unfinished, "unfinished"),
        (summary.superseded, "redone"),
    ):
        counts += f", {number} {what}" if number else ""
    yield counts
    rate = None if summary.resolved_rate is None else 100 * summary.resolved_rate
    yield (
        f"reward {_number(summary.reward_mean, 3)}, resolved {_number(rate, 1)}% over {summary.trusted} trusted"
        f" rewards; {_number(summary.turns_mean, 1)} turns a rollout"
    )
    yield "tokens " + ", ".join(f"{name} {count}" for name, count in summary.tokens.items())
    for reason, count in summary.dropped_reasons.items():
        yield f"  dropped: {shorten(reason, 60)} {count}"
    yield "seconds " + ", ".join(f"{name} {seconds:.1f}" for name, seconds in summary.time.items())


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


# ------------------------------------------------------------------------------------------ a rollout


def _show_rollout(reader: RunReader, args: argparse.Namespace) -> None:
    task, mark, sample = args.rollout.rpartition("#")
    if not mark or not sample.isascii() or not sample.isdigit():
        raise ConfigError(f"--rollout {args.rollout}: write TASK#SAMPLE, such as {args.rollout or 'task'}#0")
    rollout = reader.find(task, int(sample))
    if args.json:
        print(_json(_rollout_dict(reader, rollout, turns=args.turns)))
        return
    with writable(sys.stdout) as out:
        _print_lines(_rollout_lines(rollout, full=True), out)
        if args.turns:
            _print_turns(reader, rollout, out)


def _rollout_dict(reader: RunReader, rollout: RolloutRow, *, turns: bool) -> dict[str, Any]:
    data = rollout.to_dict()
    if turns:
        data["turn_list"] = [turn.to_dict() for turn in reader.turns(rollout.id)]
    if place := reader.places([rollout.id]).get(rollout.id):
        data["training"] = dataclasses.asdict(place)
    return data


def _rollout_lines(rollout: RolloutRow, *, full: bool) -> Iterable[str]:
    name = f"{shorten(rollout.task_id, 80)}#{rollout.sample}"
    ending = rollout.exit_reason or rollout.state
    score = f"  reward {_number(rollout.score, 3)}" if rollout.trusted is not None else ""
    untrusted = " (not trusted)" if rollout.trusted is False else ""
    yield f"{name}  {printable(ending)}{score}{untrusted}  {rollout.turns} turns"
    for label, text in (("error", rollout.error), ("grader", rollout.reward_error)):
        if text:
            yield f"  {label}: {printable(text, keep_lines=True) if full else shorten(text, 200)}"
    if not full:
        return
    for label, numbers in (("tokens", rollout.tokens), ("dropped", rollout.dropped_reasons)):
        if numbers:
            yield f"  {label}: " + ", ".join(f"{shorten(key, 40)} {count}" for key, count in numbers.items())
    yield "  seconds: " + ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in rollout.time.items())
    if rollout.answer:
        yield f"  answer: {printable(rollout.answer, keep_lines=True)}"


def _print_turns(reader: RunReader, rollout: RolloutRow, out: TextIO) -> None:
    for message in rollout.opening:
        _print_lines(_message_lines(message), out)
    for turn in reader.turns(rollout.id):
        _print_lines(_turn_lines(turn), out)


def _turn_lines(turn: TurnRow) -> Iterable[str]:
    start, end = turn.span
    tokens = f", {end - start} tokens" if end > start else ""
    seconds = f"model {turn.model_seconds:.1f} s, tools {turn.tool_seconds:.1f} s"
    yield f"--- turn {turn.index}: {turn.status}{tokens}, {seconds}"
    yield from _message_lines(turn.message)
    for message in turn.observations:
        yield from _message_lines(message)


def _message_lines(message: dict[str, Any]) -> Iterable[str]:
    yield f"[{message['role']}]"
    if message["reasoning"]:
        yield f"(thinking) {printable(message['reasoning'], keep_lines=True)}"
    if message["content"]:
        yield printable(message["content"], keep_lines=True)
    for call in message["tool_calls"]:
        arguments = call["raw_arguments"] or dumps(call["arguments"])
        yield f"> {printable(call['name'])} {printable(arguments, keep_lines=True)}"


def _json(data: Any) -> str:
    """ASCII, so that it passes through a terminal or pipe of any encoding."""
    return json.dumps(plain(data), allow_nan=False)


def _is_unicode(stream: TextIO) -> bool:
    return (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "") == "utf8"


def _print_lines(lines: Iterable[str], out: TextIO) -> None:
    for text in lines:
        out.write(text + "\n")
