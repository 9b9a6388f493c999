"""`uni-agent data`: tasks of any source as verl's parquet, and back."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uni_agent.cli.output import columns
from uni_agent.errors import ConfigError, UniAgentError

if TYPE_CHECKING:
    from uni_agent.types import Task

_SOURCE = (
    "a pipeline's YAML (its `data:` block), or a task file: .jsonl, .parquet (also of this command or of an earlier "
    "Uni-Agent), or a folder of .parquet files"
)
_CELL = 100
"""Characters of a value that `show` prints."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    text = "write tasks as the parquet file that verl trains on or validates with"
    to_verl = actions.add_parser("to-verl", help=text, description=_sentence(text), allow_abbrev=False)
    to_verl.add_argument("source", metavar="SOURCE", help=_SOURCE)
    to_verl.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the parquet file to write")
    to_verl.add_argument("--split", default="train", help="`extra_info.split` of the rows (default: %(default)s)")
    to_verl.add_argument(
        "--data-source", metavar="NAME", help="`data_source` of the rows, under which verl reports (default: a name)"
    )
    to_verl.add_argument(
        "--group-by", metavar="KEY", help="append the value of this metadata key to data_source, for numbers per group"
    )
    to_verl.add_argument("--agent-name", metavar="NAME", help="`agent_name` of the rows (default: uni_agent)")
    to_verl.add_argument("--limit", type=_count, metavar="N", help="only the first N tasks")
    text = "write the tasks of such a parquet file, or of an earlier Uni-Agent's, as a task file"
    from_verl = actions.add_parser("from-verl", help=text, description=_sentence(text), allow_abbrev=False)
    from_verl.add_argument("source", type=Path, metavar="PARQUET", help="a .parquet file, or a folder of them")
    from_verl.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the .jsonl file to write")
    text = "print how many tasks a source has, their fields, and the first ones"
    show = actions.add_parser("show", help=text, description=_sentence(text), allow_abbrev=False)
    show.add_argument("source", metavar="SOURCE", help=_SOURCE)
    show.add_argument("-n", "--rows", type=_count, default=3, metavar="N", help="how many tasks to print (default: 3)")
    show.add_argument("--json", action="store_true", help="everything as one JSON object on stdout")


def execute(args: argparse.Namespace) -> int:
    """Do it; 0 done, 2 for a source that holds something else or a target that cannot be written."""
    try:
        {"to-verl": _to_verl, "from-verl": _from_verl, "show": _show}[args.action](args)
    except UniAgentError as error:
        print(f"uni-agent data {args.action}: {error}", file=sys.stderr)
        return 2
    return 0


def _to_verl(args: argparse.Namespace) -> None:
    from uni_agent.data.verl_rows import AGENT_NAME, write_verl_parquet

    _check_target(args)
    name, tasks = _tasks(args.source, args.limit)
    count = write_verl_parquet(
        tasks,
        args.output,
        split=args.split,
        data_source=args.data_source or name,
        group_by=args.group_by,
        agent_name=args.agent_name or AGENT_NAME,
    )
    print(f"{args.output}: {count} rows", file=sys.stderr)


def _from_verl(args: argparse.Namespace) -> None:
    from uni_agent.data.source import unique_ids
    from uni_agent.data.task_lines import write_task_lines
    from uni_agent.data.verl_rows import read_verl_parquet

    _check_target(args)
    tasks = unique_ids((task, f"{args.source}: task {at}") for at, task in enumerate(read_verl_parquet(args.source)))
    print(f"{args.output}: {write_task_lines(tasks, args.output)} tasks", file=sys.stderr)


def _show(args: argparse.Namespace) -> None:
    tables = _verl_columns(Path(args.source))
    if tables is None:
        name, tasks = _tasks(args.source, None)
        sources = Counter({name: len(tasks)})
    else:
        from uni_agent.data.readers import read_parquet
        from uni_agent.data.verl_rows import task_of

        rows = list(read_parquet(Path(args.source)))
        tasks = [task_of(row.values, row.where) for row in rows]
        sources = Counter(str(row.values.get("data_source", "")) for row in rows)
    first = [task.model_dump(mode="json", exclude_defaults=True) for task in tasks[: args.rows]]
    fields = Counter(key for task in tasks for key in task.model_dump(exclude_defaults=True))
    if args.json:
        record = {"tasks": len(tasks), "sources": sources, "columns": tables, "fields": fields, "first": first}
        print(json.dumps(record))
        return
    print(f"{len(tasks)} tasks")
    print(columns([(source, str(count)) for source, count in sorted(sources.items())], "  "))
    if tables is not None:
        print("columns", columns(tables.items(), "  "), sep="\n")
    print("fields", columns([(field, f"in {count}") for field, count in fields.items()], "  "), sep="\n")
    for record in first:
        print(json.dumps(record["id"]), columns([(key, _cell(value)) for key, value in record.items()], "  "), sep="\n")


def _tasks(source: str, limit: int | None) -> tuple[str, list[Task]]:
    """What the source is called, and its tasks. Raises ConfigError."""
    from pydantic import ConfigDict

    from uni_agent.config.base import Config
    from uni_agent.config.load import from_data, load_config
    from uni_agent.data import DataConfig, read_verl_parquet

    class Source(Config):
        """The part of a pipeline that says where tasks come from; the rest need not be there."""

        model_config = ConfigDict(extra="ignore")

        name: str = ""
        data: DataConfig

    path, overrides = Path(source), [] if limit is None else [f"data.limit={limit}"]
    if _verl_columns(path) is not None:
        return path.stem, list(islice(read_verl_parquet(path), limit))
    if path.suffix in (".yaml", ".yml"):
        config = load_config(Source, source, overrides).config
    elif path.suffix in (".jsonl", ".parquet") or path.is_dir():
        kind = "jsonl" if path.suffix == ".jsonl" else "parquet"
        data = {"data": {"type": kind, "path": source if source.startswith("pkg://") else str(path.absolute())}}
        config = from_data(Source, data, source, overrides)
    else:
        raise ConfigError(f"{source}: no source of tasks: name {_SOURCE}")
    return config.name or path.stem, config.data.build().load()


def _verl_columns(path: Path) -> dict[str, str] | None:
    """Column → type of a parquet file with verl's rows; None for anything else."""
    from uni_agent.optional import load

    file = next(iter(sorted(path.glob("*.parquet"))), path) if path.is_dir() else path
    if file.suffix != ".parquet" or not file.is_file():
        return None
    pq: Any = load("pyarrow.parquet", extra="datasets", needed_for="a parquet file")
    try:
        schema = pq.read_schema(file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read as parquet: {error}") from error
    return {field.name: str(field.type) for field in schema} if "extra_info" in schema.names else None


def _check_target(args: argparse.Namespace) -> None:
    source, target = Path(args.source), Path(args.output)
    if target.exists() and source.exists() and target.samefile(source):
        raise ConfigError(f"{target}: is the source and would be replaced: name another file with --output")


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _cell(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _CELL else text[: _CELL - 2] + " …"


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no count: give a whole number above 0")
    return int(text)
