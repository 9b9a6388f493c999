"""What a request is for: rules over the wire tag it, and the tag rides on its trajectory."""

from uni_agent.gateway.scenario.base import Rule, Scenario, SessionFacts, Tag, View
from uni_agent.gateway.scenario.config import ScenarioConfig, ScenarioRule
from uni_agent.gateway.scenario.conversation import conversation_key
from uni_agent.gateway.scenario.tagger import BUILT_IN_RULES, Tagger, tag

__all__ = [
    "BUILT_IN_RULES",
    "Rule",
    "Scenario",
    "ScenarioConfig",
    "ScenarioRule",
    "SessionFacts",
    "Tag",
    "Tagger",
    "View",
    "conversation_key",
    "tag",
]
