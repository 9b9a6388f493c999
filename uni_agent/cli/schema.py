"""`uni-agent schema`: the JSON schema that editors complete and check the YAML with."""

from __future__ import annotations

import argparse
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import BaseModel

KINDS = ("pipeline", "gateway")
"""The kinds of YAML: of `uni-agent run`, and of `uni-agent gateway`."""

SHIPPED = Path("the shipped files")
"""Stands for the files of all kinds."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("kind", nargs="?", choices=KINDS, default="pipeline", help="which YAML (default: pipeline)")
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--write",
        nargs="?",
        type=Path,
        const=SHIPPED,
        metavar="FILE",
        help="write it to FILE (default: those of all kinds, beside the shipped configurations)",
    )
    group.add_argument("--print", action="store_true", help="print it (the default)")


def execute(args: argparse.Namespace) -> int:
    """Print or write the schema."""
    from uni_agent.config.schema import schema_text

    if args.write is None:
        print(schema_text(config_class(args.kind)), end="")
    elif args.write == SHIPPED:
        for kind in KINDS:
            _write(shipped_file(kind), schema_text(config_class(kind)))
    else:
        _write(args.write, schema_text(config_class(args.kind)))
    return 0


def config_class(kind: str) -> type[BaseModel]:
    """The class that a YAML of this kind is read into."""
    if kind == "gateway":
        from uni_agent.gateway.app_config import GatewayAppConfig

        return GatewayAppConfig
    from uni_agent.pipeline import PipelineConfig

    return PipelineConfig


def shipped_file(kind: str = "pipeline") -> Path:
    """Where the shipped configurations look for their schema."""
    return Path(str(resources.files("uni_agent.configs"))) / "schema" / f"{kind}.json"


def _write(path: Path, text: str) -> None:
    from uni_agent.config.problems import fault

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise fault(f"--write {path}", f"cannot be written: {error.strerror}") from error
    print(path)
