"""Rewards with nothing to learn from: each rollout gets what another one earned."""

from __future__ import annotations

import random
from dataclasses import replace

from uni_agent.reward import AbstractRewardSpec, RewardContext
from uni_agent.reward.config import CommandRewardConfig
from uni_agent.types import RewardResult

_EARNED: list[float] = []
_DRAW = random.Random(0)
_MOST = 512


class ShuffledReward(AbstractRewardSpec):
    """Grades by `command`, then hands out the score of a rollout before it: the same scores, of other work."""

    def __init__(self, command: str) -> None:
        self._inner = CommandRewardConfig(type="command", command=command).build()
        self.needs_sandbox = self._inner.needs_sandbox
        self.timeout = self._inner.timeout

    async def compute_reward(self, context: RewardContext) -> RewardResult:
        """The verdict with another's score."""
        result = await self._inner.compute_reward(context)
        if result.score is None:
            return result
        score = _DRAW.choice(_EARNED) if _EARNED else 0.0
        _EARNED.append(result.score)
        del _EARNED[:-_MOST]
        return replace(result, score=score, resolved=score >= 1.0)
