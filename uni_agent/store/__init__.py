"""The run's store: one SQLite file per run, one writer, any number of readers. See docs/store.md."""

from uni_agent.store.attach import merge_into
from uni_agent.store.locate import RunPath, find_run, list_runs
from uni_agent.store.merge import MergedEntry, SessionRow
from uni_agent.store.reader import RunReader
from uni_agent.store.records import ChainRow, EventRow, RolloutRecord, RolloutRow, TurnRow
from uni_agent.store.run import RunStore
from uni_agent.store.summary import Summary

__all__ = [
    "ChainRow",
    "EventRow",
    "MergedEntry",
    "RolloutRecord",
    "RolloutRow",
    "RunPath",
    "RunReader",
    "RunStore",
    "SessionRow",
    "Summary",
    "TurnRow",
    "find_run",
    "list_runs",
    "merge_into",
]
