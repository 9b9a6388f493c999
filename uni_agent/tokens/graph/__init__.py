"""The session graph: every turn of a session, whoever asks for it and however its history is spelled."""

from uni_agent.tokens.graph.export import Chain, GraphAccount
from uni_agent.tokens.graph.matcher import MaskedMatcher, Matcher, StrictMatcher
from uni_agent.tokens.graph.nodes import Context, Drift, Intent, Turn
from uni_agent.tokens.graph.prepared import Prepared
from uni_agent.tokens.graph.reading import Reading
from uni_agent.tokens.graph.record import TurnRecord, turn_record
from uni_agent.tokens.graph.session import GraphClosedError, SessionGraph
from uni_agent.tokens.graph.thinking import ThinkingPolicy

__all__ = [
    "Chain",
    "Context",
    "Drift",
    "GraphAccount",
    "GraphClosedError",
    "Intent",
    "MaskedMatcher",
    "Matcher",
    "Prepared",
    "Reading",
    "SessionGraph",
    "StrictMatcher",
    "ThinkingPolicy",
    "Turn",
    "TurnRecord",
    "turn_record",
]
