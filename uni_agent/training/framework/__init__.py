"""The black-box path: sessions of any agent at a gateway over verl's rollout servers, results in TransferQueue.

verl is told by `actor_rollout_ref.rollout.agent.agent_loop_manager_class:
uni_agent.training.framework.AgentFrameworkRolloutAdapter`; the settings are those of `AgentFrameworkConfig`.
"""

from uni_agent.training.framework.adapter import AgentFrameworkRolloutAdapter
from uni_agent.training.framework.config import AgentFrameworkConfig, RunnerConfig
from uni_agent.training.framework.session import RunnerResult, RunnerSession

__all__ = ["AgentFrameworkConfig", "AgentFrameworkRolloutAdapter", "RunnerConfig", "RunnerResult", "RunnerSession"]
