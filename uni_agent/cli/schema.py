"""`uni-agent schema`: the JSON schema that editors complete and check the YAML with."""

from __future__ import annotations

import argparse
from importlib import resources
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--write",
        nargs="?",
        type=Path,
        const=shipped_file(),
        metavar="FILE",
        help="write it to FILE (default: beside the shipped configurations)",
    )
    group.add_argument("--print", action="store_true", help="print it (the default)")


def execute(args: argparse.Namespace) -> int:
    """Print or write the schema."""
    from uni_agent.config.problems import fault
    from uni_agent.config.schema import schema_text
    from uni_agent.pipeline import PipelineConfig

    text = schema_text(PipelineConfig)
    if args.write is None:
        print(text, end="")
        return 0
    try:
        args.write.parent.mkdir(parents=True, exist_ok=True)
        args.write.write_text(text, encoding="utf-8")
    except OSError as error:
        raise fault(f"--write {args.write}", f"cannot be written: {error.strerror}") from error
    print(args.write)
    return 0


def shipped_file() -> Path:
    """Where the shipped configurations look for their schema."""
    return Path(str(resources.files("uni_agent.configs"))) / "schema" / "pipeline.json"
