"""How one agent is launched in its sandbox."""

from uni_agent.harness.config import HarnessConfig, InteractionHarnessConfig

__all__ = ["HarnessConfig", "InteractionHarnessConfig"]
