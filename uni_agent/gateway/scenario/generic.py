"""Rules for clients that mark nothing. They need a main conversation to compare with; in doubt a request is main."""

from __future__ import annotations

import re

from uni_agent.gateway.scenario.base import Rule, Scenario, SessionFacts, View

STATED_HEADER = "x-uni-agent-scenario"
"""A client's own word for what its request is."""

_SMALL = 1024
"""A cap up to here, below the main conversation's, is that of a helper that says little."""
_READ = 2000
"""So many characters of an instruction are searched for words."""

_ASKS = r"(?:generat\w+|writ\w+|creat\w+|produc\w+|suggest\w*|output\w*|giv\w+|provid\w+|mak\w+)"
_TITLE = re.compile(rf"\b{_ASKS}\b[^.\n]{{0,80}}\b(?:title|headline)\b|\btitle generator\b", re.IGNORECASE)
_SUMMARY = re.compile(r"\bsummar(?:y|ies|i[sz]e\w*|i[sz]ing|i[sz]ation)\b|\bcondens(?:e|ing)\b", re.IGNORECASE)
_HISTORY = re.compile(
    r"\b(?:conversation|context|history|transcript|session)\b[^.\n]{0,40}\b(?:compact\w*|summar\w+|checkpoint|condens\w+)"
    r"|\b(?:compact\w*|summar\w+|condens\w+)\b[^.\n]{0,80}\b(?:conversation|context|history|transcript)\b",
    re.IGNORECASE,
)


def _count(view: View, facts: SessionFacts) -> Scenario | None:
    return Scenario.COUNT if view.request.wire.path.rstrip("/").endswith(("/count_tokens", "/input_tokens")) else None


def _stated(view: View, facts: SessionFacts) -> Scenario | None:
    stated = view.headers.get(STATED_HEADER, "").strip().lower()
    return Scenario(stated) if stated in Scenario.__members__.values() else None


def _helper(view: View, facts: SessionFacts) -> bool:
    """Whether a request without tools and history, under another system prompt, is not the main agent's.

    Some agents are pipelines of prompts without tools: for those only a small cap marks a helper.
    """
    if view.tools or not view.fresh or not facts.foreign_system(view):
        return False
    cap = view.request.max_tokens
    return facts.tools or (cap is not None and cap <= _SMALL and (facts.max_tokens is None or cap < facts.max_tokens))


def _instruction(view: View) -> str:
    return (view.system or view.first_user)[:_READ]


def _title(view: View, facts: SessionFacts) -> Scenario | None:
    return Scenario.TITLE if _helper(view, facts) and _TITLE.search(_instruction(view)) else None


def _compaction(view: View, facts: SessionFacts) -> Scenario | None:
    return Scenario.COMPACTION if _helper(view, facts) and _HISTORY.search(_instruction(view)) else None


def _summary(view: View, facts: SessionFacts) -> Scenario | None:
    return Scenario.SUMMARY if _helper(view, facts) and _SUMMARY.search(_instruction(view)) else None


def _sub_agent(view: View, facts: SessionFacts) -> Scenario | None:
    # A session that began without tools began with a helper: what comes with tools then is the agent.
    return Scenario.SUB_AGENT if view.tools and view.fresh and facts.tools and facts.foreign(view) else None


def _known(view: View, facts: SessionFacts) -> Scenario | None:
    if view.continues:
        known = bool(view.system) and view.system_digest not in facts.systems and view.system_digest in facts.sub_agents
    else:
        known = view.opening in facts.sub_agents and (facts.foreign_system(view) or not facts.started)
    return Scenario.SUB_AGENT if known else None


def _side(view: View, facts: SessionFacts) -> Scenario | None:
    return Scenario.UNKNOWN if _helper(view, facts) and facts.foreign(view) else None


_ANY = "any"

FIRST_RULES: tuple[Rule, ...] = (
    Rule("count", _ANY, "the path ends with `count_tokens` or `input_tokens`", _count),
    Rule("stated", _ANY, f"header `{STATED_HEADER}` names a scenario; other values are ignored", _stated),
)
"""Asked before the clients' own rules."""

GENERIC_RULES: tuple[Rule, ...] = (
    Rule("known-sub-agent", _ANY, "the conversation has the opening of a sub-agent", _known),
    Rule("generic-title", _ANY, "a helper whose instruction asks for a title", _title),
    Rule("generic-compaction", _ANY, "a helper whose instruction asks to summarize a conversation", _compaction),
    Rule("generic-summary", _ANY, "a helper whose instruction asks for a summary", _summary),
    Rule(
        "generic-sub-agent",
        _ANY,
        "a new conversation with tools, with another system prompt and another first message",
        _sub_agent,
    ),
    Rule("generic-side", _ANY, "a helper with another first message, for something else", _side),
)
"""Asked after the clients' own rules."""
