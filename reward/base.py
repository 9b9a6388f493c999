"""What a reward spec is, and what it is given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from uni_agent.deployment.sandbox import Sandbox
from uni_agent.types import InteractionResult, RewardResult, Task


@dataclass(frozen=True, slots=True)
class RewardContext:
    """What a spec may look at: the task, what the agent did, and the sandbox it did it in (agent gone, tools removed).

    `sandbox` is None for specs that grade without one. `patch` is the agent's change against the base commit (bytes as
    `git diff --binary` writes them), None when the task has no repository.
    """

    task: Task
    result: InteractionResult
    sandbox: Sandbox | None
    patch: bytes | None = None


class AbstractRewardSpec(ABC):
    """Turns a finished episode into a verdict."""

    needs_sandbox: bool = True
    """Whether the spec grades in a sandbox."""
    timeout: float = 600.0
    """Seconds for the whole verdict; past it the outcome is a reward error, never a 0."""

    @abstractmethod
    async def compute_reward(self, context: RewardContext) -> RewardResult:
        """The verdict. Raise RewardError (or return `RewardResult.failed`) when there is none to give."""
