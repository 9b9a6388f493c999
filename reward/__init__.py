"""Reward specs: how a finished episode becomes a verdict."""

if not __name__.startswith("uni_agent."):
    raise ImportError(f"import uni_agent.{__name__}")

from uni_agent.reward.base import AbstractRewardSpec, RewardContext
from uni_agent.reward.config import (
    BaseRewardConfig,
    CommandRewardConfig,
    DummyRewardConfig,
    GradingFile,
    PluginRewardConfig,
    RewardConfig,
)
from uni_agent.reward.grade import grade

__all__ = [
    "AbstractRewardSpec",
    "BaseRewardConfig",
    "CommandRewardConfig",
    "DummyRewardConfig",
    "GradingFile",
    "PluginRewardConfig",
    "RewardConfig",
    "RewardContext",
    "grade",
]
