"""`uni-agent export RUN`: trajectories as JSON lines, Parquet or chat messages."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
import tempfile
from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from uni_agent.errors import ConfigError, MissingExtraError, StoreError, UniAgentError, boundary
from uni_agent.store.text import strict

if TYPE_CHECKING:
    from uni_agent.store import RunReader

_ROW_GROUP = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="a run's folder, its run.db, or `latest` (the default) in ./runs"
    )
    parser.add_argument(
        "--format",
        choices=("jsonl", "parquet", "sft"),
        default="jsonl",
        help="jsonl: all of a trajectory, tokens included; parquet: a row per token chain; sft: chat messages",
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="where to write (default: stdout)")
    parser.add_argument("--resolved", action="store_true", help="only rollouts that solved their task")


def execute(args: argparse.Namespace) -> int:
    """Export; 0 done, 2 when there is nothing to read or nowhere to write."""
    from uni_agent.cli.show import reading_out
    from uni_agent.config.settings import load_settings
    from uni_agent.store import RunReader, find_run

    try:
        if args.format == "parquet" and args.output is None and sys.stdout.isatty():
            raise ConfigError("parquet is no text for a terminal: name a file with --output")
        with RunReader(find_run(args.run, load_settings().runs_dir)) as reader:
            if args.output is None:
                with reading_out():
                    count = _export(reader, args, sys.stdout.buffer)
            else:
                with atomic_file(args.output) as file:
                    count = _export(reader, args, file)
                print(f"{args.output}: {count} records", file=sys.stderr)
    except UniAgentError as error:
        print(f"uni-agent export: {error}", file=sys.stderr)
        return 2
    return 0


@contextlib.contextmanager
def atomic_file(path: Path) -> Generator[BinaryIO]:
    """A file that appears under `path` whole when the block ends, or not at all. Raises StoreError when it cannot."""
    with boundary(StoreError, f"{path}: cannot be written"):
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(0o666 & ~_umask())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _export(reader: RunReader, args: argparse.Namespace, file: BinaryIO) -> int:
    from uni_agent.store import export

    if args.format == "parquet":
        return _write_parquet(export.chain_rows(reader, resolved_only=args.resolved), file)
    records = export.sft_messages if args.format == "sft" else export.trajectories
    return _write_lines(records(reader, resolved_only=args.resolved), file)


def _write_lines(records: Iterable[dict[str, Any]], file: BinaryIO) -> int:
    count = 0
    for record in records:
        file.write(strict(record).encode() + b"\n")
        count += 1
    file.flush()
    return count


def _write_parquet(rows: Iterator[dict[str, Any]], file: BinaryIO) -> int:
    try:
        pa, pq = _import("pyarrow"), _import("pyarrow.parquet")
    except ImportError as error:
        raise MissingExtraError("pyarrow", "datasets", "export --format parquet") from error
    schema = _schema(pa)
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


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
