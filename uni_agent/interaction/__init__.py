"""The ReAct loop over a chat model and a sandboxed environment."""

from uni_agent.interaction.config import InteractionConfig
from uni_agent.interaction.env import AgentEnv
from uni_agent.interaction.loop import AgentInteraction

__all__ = ["AgentEnv", "AgentInteraction", "InteractionConfig"]
