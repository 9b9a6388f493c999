"""The one place where a reward spec is called."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from uni_agent.errors import RewardError, UniAgentError, boundary
from uni_agent.reward.base import AbstractRewardSpec, RewardContext
from uni_agent.types import RewardResult


async def grade(spec: AbstractRewardSpec, context: RewardContext) -> RewardResult:
    """The spec's verdict, or `RewardResult.failed` with the reason: never an exception, never a 0 for a fault.

    A fault is: any error, more than `spec.timeout` seconds, no sandbox where one is needed, a result that is no
    RewardResult or whose score is no finite number. Cancellation passes.
    """
    name = type(spec).__name__
    if spec.needs_sandbox and context.sandbox is None:
        return RewardResult.failed(f"{name}: there is no sandbox to grade in")
    deadline = asyncio.timeout(spec.timeout)
    try:
        with boundary(RewardError, name):
            async with deadline:
                return _checked(await spec.compute_reward(context), name)
    except UniAgentError as error:
        if deadline.expired():
            return RewardResult.failed(f"{name}: ran past {spec.timeout:g} s")
        return RewardResult.failed(f"{type(error).__name__}: {error}")


def _checked(result: Any, name: str) -> RewardResult:
    if not isinstance(result, RewardResult):
        raise RewardError(f"{name} gave {type(result).__name__}, not a RewardResult")
    if result.score is None:
        return (
            result if not result.trusted else RewardResult.failed(result.error or f"{name} gave no score", result.log)
        )
    if not math.isfinite(result.score):
        return RewardResult.failed(f"{name} gave the score {result.score}", result.log)
    if not all(map(math.isfinite, result.turn_scores)):
        return RewardResult.failed(f"{name} gave the turn_scores {list(result.turn_scores)}", result.log)
    return result
