"""`uni-agent export`: what a run or a gateway recorded, as JSON lines, Parquet or chat messages."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from uni_agent.data.atomic import atomic_file
from uni_agent.errors import ConfigError, MissingExtraError, StoreError, UniAgentError, boundary
from uni_agent.store.text import strict

if TYPE_CHECKING:
    from uni_agent.store import RunReader

_ROW_GROUP = 64
_OF_SESSIONS = ("rows", "sessions")
_OF_VERL = ("verl", "verl-tokens")
_TABLES = ("parquet", *_OF_VERL)
_SQLITE = b"SQLite format 3\x00"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="a run's folder, its run.db, or `latest` (the default) in ./runs"
    )
    parser.add_argument(
        "--format",
        "--to",
        metavar="FORMAT",
        choices=("jsonl", "parquet", "sft", *_OF_VERL, *_OF_SESSIONS),
        help="jsonl (the default): all of a trajectory, tokens included; parquet: a row per token chain; sft: chat "
        "messages; verl: the run's tasks, a row each, as verl's `data.train_files` and `val_files` want them, to train "
        "on what was run; verl-tokens: a row per token chain in the fields of verl's rollouts (prompts, responses, "
        "response_mask, rollout_log_probs, rm_scores), for a dataset class or replay of your own: verl itself reads "
        "no tokens from files. Both are parquet. Of a gateway's sessions also rows: those of parquet as JSON lines; "
        "sessions: as `finalize` answers",
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="where to write (default: stdout)")
    parser.add_argument(
        "--render",
        type=Path,
        metavar="MODEL",
        help="a model's folder: compare the tokens of each trajectory with what its chat template writes of the "
        "messages; where they part is `render_difference` (in `extra`, of verl-tokens in `extra_fields`), null when "
        "nowhere, and counts go to stderr. For verl-tokens and a gateway's sessions",
    )
    parser.add_argument("--resolved", action="store_true", help="only rollouts that solved their task")
    sessions = parser.add_argument_group("sessions of a gateway, in place of a run's rollouts")
    sessions.add_argument(
        "--journal", type=Path, metavar="PATH", help="read a gateway's journal, or the folder of its journals"
    )
    sessions.add_argument("--merged", action="store_true", help="read the journals that were merged into RUN")
    sessions.add_argument("--session", action="append", default=[], metavar="ID", help="only this session; repeatable")
    sessions.add_argument(
        "--scenario", action="append", default=[], metavar="NAME", help="only trajectories of it, as `main`; repeatable"
    )
    sessions.add_argument(
        "--into", metavar="RUN", help="merge the journals into a run, which nobody writes; what it has stays"
    )


def execute(args: argparse.Namespace) -> int:
    """Export; 0 done, 2 when there is nothing to read or nowhere to write."""
    from uni_agent.cli.export_render import RenderChecks
    from uni_agent.cli.show import reading_out

    try:
        _check_options(args)
        if args.into is not None:
            return _merge(args)
        args.format = args.format or "jsonl"
        if args.format in _TABLES and args.output is None and sys.stdout.isatty():
            raise ConfigError("parquet is no text for a terminal: name a file with --output")
        args.checks = RenderChecks.of(args)
        with _exporter(args) as write:
            if args.output is None:
                with reading_out():
                    count = write(sys.stdout.buffer)
            else:
                with atomic_file(args.output, StoreError) as file:
                    count = write(file)
                print(f"{args.output}: {count} records", file=sys.stderr)
        if told := args.checks.summary():
            print(told, file=sys.stderr)
    except UniAgentError as error:
        print(f"uni-agent export: {error}", file=sys.stderr)
        return 2
    return 0


def _check_options(args: argparse.Namespace) -> None:
    """Raises ConfigError for options that do not go together, and for a target that is no export."""
    from uni_agent.cli.export_sessions import check_scenarios

    of_sessions = args.journal is not None or args.merged
    if args.journal is not None and (args.run is not None or args.merged):
        raise ConfigError("--journal PATH takes the place of RUN and --merged: give one of them")
    if args.into is not None:
        given = args.output or args.format or args.session or args.scenario or args.resolved or args.render
        if args.journal is None or given:
            raise ConfigError("--into RUN merges whole journals: give it with --journal PATH, and nothing else")
    elif of_sessions and args.format in _OF_VERL:
        raise ConfigError(f"--format {args.format} is for a run's rollouts; of sessions, use parquet")
    elif args.render is not None and (args.format == "sft" if of_sessions else args.format != "verl-tokens"):
        raise ConfigError(
            "--render compares tokens: give it with --format verl-tokens, or with --journal or --merged and a format "
            "other than sft"
        )
    elif of_sessions and args.resolved:
        raise ConfigError("--resolved is for rollouts; a gateway's sessions have rewards of their own")
    elif not of_sessions and (args.session or args.scenario or args.format in _OF_SESSIONS):
        raise ConfigError(
            "--session, --scenario and the formats rows and sessions are for a gateway's sessions: "
            "add --journal PATH, or --merged for those of RUN"
        )
    if args.format == "sessions" and args.scenario:
        raise ConfigError("--format sessions writes whole sessions: leave out --scenario")
    check_scenarios(args.scenario)
    _check_target(args.output)


def _check_target(path: Path | None) -> None:
    """An export takes the place of the one before it, never that of what exports are made from."""
    if path is None or not path.is_file():
        return
    from uni_agent.gateway.archive import is_journal

    with boundary(StoreError, f"{path}: cannot be read"), path.open("rb") as file:
        is_store = file.read(len(_SQLITE)) == _SQLITE
    if is_store or is_journal(path):
        what = "a run's store" if is_store else "a gateway's journal"
        raise ConfigError(f"{path}: is {what} and would be replaced: name another file with --output")


def _merge(args: argparse.Namespace) -> int:
    from uni_agent.cli.export_sessions import merge
    from uni_agent.config.settings import load_settings
    from uni_agent.store import find_run

    print(merge(args.journal, find_run(args.into, load_settings().runs_dir)), file=sys.stderr)
    return 0


@contextlib.contextmanager
def _exporter(args: argparse.Namespace) -> Generator[Callable[[BinaryIO], int]]:
    """What writes the records to a file, and says how many they are."""
    from uni_agent.cli import export_sessions
    from uni_agent.config.settings import load_settings
    from uni_agent.gateway.archive import is_journal, read_sessions
    from uni_agent.store import RunReader, find_run

    only = args.session or None
    if args.journal is not None:
        sessions = read_sessions(args.journal, only=only)
        yield lambda file: export_sessions.export(sessions, args, file)
        return
    try:
        run = find_run(args.run, load_settings().runs_dir)
    except ConfigError as error:
        if args.run and is_journal(Path(args.run)):
            raise ConfigError(f"{args.run}: holds journals of a gateway and no run: name it with --journal") from error
        raise
    if is_journal(run):
        raise ConfigError(f"{run}: is a gateway's journal: name it with --journal")
    with RunReader(run) as reader:
        if args.merged:
            merged = export_sessions.merged_sessions(reader, only)
            yield lambda file: export_sessions.export(merged, args, file)
        else:
            yield lambda file: _export(reader, args, file)


def _export(reader: RunReader, args: argparse.Namespace, file: BinaryIO) -> int:
    from uni_agent.store import export

    if args.format in _OF_VERL:
        from uni_agent.cli.export_verl import export_verl

        return export_verl(reader, args, file)
    if args.format == "parquet":
        return write_parquet(
            export.chain_rows(reader, resolved_only=args.resolved), lambda: _schema(_import("pyarrow")), file
        )
    records = export.sft_messages if args.format == "sft" else export.trajectories
    return write_lines(map(strict, records(reader, resolved_only=args.resolved)), file)


def write_lines(lines: Iterable[str], file: BinaryIO) -> int:
    """Write `lines`, each with a line break behind it; how many they are."""
    count = 0
    for line in lines:
        file.write(line.encode() + b"\n")
        count += 1
    file.flush()
    return count


def write_parquet(rows: Iterator[dict[str, Any]], schema_of: Callable[[], Any], file: BinaryIO) -> int:
    """Write a Parquet file of `rows`; how many they are. Raises MissingExtraError without pyarrow."""
    try:
        pa, pq = _import("pyarrow"), _import("pyarrow.parquet")
    except ImportError as error:
        raise MissingExtraError("pyarrow", "datasets", "export --format parquet") from error
    schema = schema_of()
    count = 0
    with pq.ParquetWriter(pa.PythonFile(file, mode="w"), schema, compression="zstd") as writer:
        while group := list(islice(rows, _ROW_GROUP)):
            writer.write_table(pa.Table.from_pylist(group, schema=schema))
            count += len(group)
    return count


def _import(name: str) -> Any:
    return importlib.import_module(name)  # untyped: its stubs know nothing of what is used here


def _schema(pa: Any) -> Any:
    text, ids = pa.string(), pa.list_(pa.int64())
    return pa.schema(
        [
            ("run_id", text),
            ("rollout", text),
            ("task_id", text),
            ("sample", pa.int32()),
            ("attempt", pa.int32()),
            ("exit_reason", text),
            ("exit_class", text),
            ("score", pa.float64()),
            ("resolved", pa.bool_()),
            ("trusted", pa.bool_()),
            ("reward_breakdown", text),
            ("error", text),
            ("answer", text),
            ("turns", pa.int32()),
            ("messages", text),
            ("chain", pa.int32()),
            ("prompt_ids", ids),
            ("response_ids", ids),
            ("response_mask", pa.list_(pa.int8())),
            ("response_logprobs", pa.list_(pa.float32())),
            ("spans", text),
            ("weight_spans", text),
            ("extra", text),
        ]
    )
