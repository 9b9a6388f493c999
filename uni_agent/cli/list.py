"""`uni-agent list`: the parts that can be named in a YAML."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from uni_agent.cli.output import columns, print_json

if TYPE_CHECKING:
    from uni_agent.config.catalogue import Choice

KINDS = {
    "tools": "tools",
    "deployments": "deployment",
    "rewards": "reward",
    "models": "model",
    "engines": "engine",
    "parsers": "tool_parser",
    "harnesses": "agent",
    "sources": "data",
}
"""What is listed → the key of the YAML that names it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("kind", nargs="?", choices=list(KINDS), help="what to list (default: everything)")
    parser.add_argument("--json", action="store_true", help="as JSON, with the options of each part")


def execute(args: argparse.Namespace) -> int:
    """Print the parts."""
    found = {kind: _choices(kind) for kind in ([args.kind] if args.kind else KINDS)}
    if args.json:
        print_json({kind: [asdict(choice) for choice in choices] for kind, choices in found.items()})
        return 0
    for kind, choices in found.items():
        if len(found) > 1:
            print(f"{kind} (`{KINDS[kind]}:`)")
        print(columns([(choice.name, choice.summary) for choice in choices], "  " if len(found) > 1 else ""))
        if len(found) > 1:
            print()
    return 0


def _choices(kind: str) -> list[Choice]:
    from uni_agent.config.catalogue import places
    from uni_agent.pipeline import PipelineConfig

    if kind == "parsers":
        return _parsers()
    unique: dict[str, Choice] = {}
    for place in places(PipelineConfig):
        if place.path.removesuffix("[]").rpartition(".")[2] == KINDS[kind]:
            for choice in place.choices:
                unique.setdefault(choice.name, choice)
    return list(unique.values())


def _parsers() -> list[Choice]:
    """The parsers have a table of their own: which of them fit depends on the model's template."""
    from uni_agent.config.catalogue import Choice
    from uni_agent.tokens.parsers import PARSERS

    return [
        Choice(name, " ".join((factory.__doc__ or "").split("\n\n")[0].split())) for name, factory in PARSERS.items()
    ]
