"""What Uni-Agent adds to verl's algorithms: advantages by sample and by turn, losses by action, credit by token.

| name in verl's configuration | key | module |
|---|---|---|
| `uni_agent_grpo`, `uni_agent_turn_grpo` | `algorithm.adv_estimator` | `advantage` |
| `uni_agent_action`, `uni_agent_action_sum` | `actor_rollout_ref.actor.policy_loss.loss_mode` | `action_loss` |

`context` is what an estimator knows beyond verl's tensors, `credit` what `train.credit` does with it, `metrics` what is
told about a batch. Nothing here imports verl or torch before verl itself has loaded its algorithms.
"""

from __future__ import annotations

import importlib
from typing import Any

ESTIMATORS = ("uni_agent_grpo", "uni_agent_turn_grpo")
"""Our advantage estimators by verl's name."""

LOSSES = ("uni_agent_action", "uni_agent_action_sum")
"""Our policy losses by verl's name."""


def register() -> None:
    """Give verl our estimators and losses, once it imports its own; more calls change nothing."""
    wrapt: Any = importlib.import_module("wrapt")
    wrapt.when_imported("verl.trainer.ppo.core_algos")(_register)


def _register(core_algos: Any) -> None:
    from uni_agent.training.algorithms import action_loss, advantage

    for name, estimator in zip(ESTIMATORS, (advantage.grpo, advantage.turn_grpo), strict=True):
        core_algos.register_adv_est(name)(estimator)
    for name, loss in zip(LOSSES, (action_loss.action_loss, action_loss.action_sum_loss), strict=True):
        core_algos.register_policy_loss(name)(loss)
