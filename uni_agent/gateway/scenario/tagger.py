"""Asks the rules in their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from uni_agent.gateway.canonical import ModelRequest
from uni_agent.gateway.scenario.base import Rule, Scenario, SessionFacts, Tag, View
from uni_agent.gateway.scenario.clients import CLIENT_RULES
from uni_agent.gateway.scenario.conversation import conversation_key
from uni_agent.gateway.scenario.generic import FIRST_RULES, GENERIC_RULES

BUILT_IN_RULES: tuple[Rule, ...] = FIRST_RULES + CLIENT_RULES + GENERIC_RULES
"""All built-in rules, in the order in which they are asked."""

DEFAULT = "default"
"""The name of the rule behind all others: what nobody claims is main."""


@dataclass(frozen=True, slots=True)
class Tagger:
    """An ordered list of rules; the first that decides gives the tag."""

    rules: Sequence[Rule] = BUILT_IN_RULES

    def tag(self, request: ModelRequest, session: SessionFacts) -> Tag:
        """The tag of `request`, given what was before it in its session. Pure."""
        view = View.of(request)
        for rule in self.rules:
            scenario = rule.decide(view, session)
            if scenario is not None:
                return Tag(scenario, rule.name, conversation_key(request))
        return Tag(Scenario.MAIN, DEFAULT, conversation_key(request))


_BUILT_IN = Tagger()


def tag(request: ModelRequest, session: SessionFacts) -> Tag:
    """The tag that the built-in rules give."""
    return _BUILT_IN.tag(request, session)
