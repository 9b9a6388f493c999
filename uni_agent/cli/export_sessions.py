"""What `uni-agent export` writes of gateway sessions."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO

from uni_agent.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from uni_agent.cli.export_render import RenderChecks
    from uni_agent.gateway.finished import FinishedSession
    from uni_agent.store import RunReader
    from uni_agent.trajectory import Trajectory


def check_scenarios(names: Collection[str]) -> None:
    """Raises ConfigError for what is no scenario."""
    from uni_agent.config.suggest import closest
    from uni_agent.gateway.scenario import Scenario

    known = [scenario.value for scenario in Scenario]
    for name in names:
        if name not in known:
            near = closest(name, known)
            hint = f"did you mean {near!r}?" if near else f"scenarios: {', '.join(known)}"
            raise ConfigError(f"--scenario {name!r}: no such scenario, {hint}")


def merge(journal: Path, run: Path) -> str:
    """Merge a journal, or a folder of them, into a run; what to tell the user of it."""
    from uni_agent.gateway.archive import read_journals
    from uni_agent.store import merge_into

    sources: list[str] = []

    def noted() -> Iterator[Any]:
        for source, entries in read_journals(journal):
            sources.append(source)
            yield source, entries

    added = merge_into(run, noted())
    return f"{run}: {added} new entries of {len(sources)} {'journal' if len(sources) == 1 else 'journals'}"


def merged_sessions(reader: RunReader, only: Collection[str] | None) -> Iterator[FinishedSession]:
    """The sessions of the journals that were merged into a run, in the order in which they were opened."""
    from itertools import groupby

    from uni_agent.gateway.archive import rebuilt_sessions

    for name in dict.fromkeys(row.session_id for row in reader.sessions()):
        if only is None or name in only:
            for source, entries in groupby(reader.journal(name), key=lambda entry: entry.source):
                yield from rebuilt_sessions(entries, f"{reader.path}: journal {source}")


def export(sessions: Iterator[FinishedSession], args: argparse.Namespace, file: BinaryIO) -> int:
    """Write the sessions that `args` asks for; how many records they are."""
    from uni_agent.cli.export import write_lines, write_parquet
    from uni_agent.trajectory.rows import arrow_schema, strict_json, token_row

    if args.session:
        sessions = _all_of(sessions, args.session)
    checks: RenderChecks = args.checks
    if args.format == "sessions":
        compared = (
            replace(session, trajectories=list(map(checks.noted, session.trajectories))) for session in sessions
        )
        return write_lines((strict_json(session.to_json()) for session in compared), file)
    chosen = map(checks.noted, _trajectories(sessions, args.scenario))
    if args.format == "parquet":
        return write_parquet((token_row(trajectory) for trajectory in chosen), arrow_schema, file)
    return write_lines((strict_json(_record(trajectory, args.format)) for trajectory in chosen), file)


def _record(trajectory: Trajectory, form: str) -> dict[str, Any]:
    from uni_agent.trajectory.rows import token_row
    from uni_agent.trajectory.sft import sft_example

    if form == "rows":
        return token_row(trajectory)
    return sft_example(trajectory) if form == "sft" else trajectory.to_json()


def _trajectories(sessions: Iterable[FinishedSession], scenarios: Collection[str]) -> Iterator[Trajectory]:
    for session in sessions:
        for trajectory in session.trajectories:
            if not scenarios or trajectory.scenario in scenarios:
                yield trajectory


def _all_of(sessions: Iterable[FinishedSession], wanted: Collection[str]) -> Iterator[FinishedSession]:
    missing = dict.fromkeys(wanted)
    for session in sessions:
        missing.pop(session.session_id, None)
        yield session
    if missing:
        raise ConfigError(f"no session {', '.join(map(repr, missing))} is there")
