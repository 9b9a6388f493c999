"""Rewards of single turns: half a point for each whose commands all ran, and one for finishing."""

from __future__ import annotations

from uni_agent.reward import AbstractRewardSpec, RewardContext
from uni_agent.types import ExitReason, RewardResult, StepStatus


class TurnReward(AbstractRewardSpec):
    """Looks at the conversation alone."""

    needs_sandbox = False

    async def compute_reward(self, context: RewardContext) -> RewardResult:
        """The scores of the turns, and their sum with what the ending adds."""
        turns = tuple(0.5 if turn.status is StepStatus.COMPLETED else 0.0 for turn in context.result.turns)
        finished = context.result.exit_reason is ExitReason.FINISHED
        return RewardResult(score=sum(turns) + float(finished), resolved=finished, turn_scores=turns)
