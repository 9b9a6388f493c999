"""The journal of one gateway process: what was committed outlives the process. See docs/trajectories.md."""

from uni_agent.gateway.journal.codec import turn_from_json, turn_to_json
from uni_agent.gateway.journal.file import Journal, compact
from uni_agent.gateway.journal.frames import Entry
from uni_agent.gateway.journal.repair import Repair, repair_journal
from uni_agent.gateway.journal.scan import read_journal

__all__ = [
    "Entry",
    "Journal",
    "Repair",
    "compact",
    "read_journal",
    "repair_journal",
    "turn_from_json",
    "turn_to_json",
]
