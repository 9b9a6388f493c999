"""A verdict without a look."""

from __future__ import annotations

from uni_agent.reward.base import AbstractRewardSpec, RewardContext
from uni_agent.types import ExitClass, RewardResult


class DummyReward(AbstractRewardSpec):
    """A fixed score; None gives 1.0 to an episode that the agent ended itself and 0.0 to any other."""

    needs_sandbox = False

    def __init__(self, score: float | None = None) -> None:
        self._score = score

    async def compute_reward(self, context: RewardContext) -> RewardResult:
        """The verdict; `resolved` from a score of 1 on."""
        score = self._score
        if score is None:
            score = 1.0 if context.result.exit_reason.exit_class is ExitClass.FINISHED else 0.0
        return RewardResult(score=score, resolved=score >= 1.0)
