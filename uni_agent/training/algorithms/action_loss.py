"""Policy losses with one importance ratio for each action, an action being what a turn sampled.

An action is a maximal run of ones in `response_mask`, so that rejection which masks tokens inside a turn splits it, and
the ratio is that of the tokens that are left.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

_LIMIT = 20.0
"""Log-ratios are clamped to ± this, as verl does for tokens."""


def action_loss(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """GSPO's ratio (arXiv 2507.18071) by action: the geometric mean of the token ratios of an action.

    Tensors are [B, T]; `config` is verl's ActorConfig, of which `clip_ratio_low`, `clip_ratio_high`, `clip_ratio_c`
    (dual clip) and `global_batch_info` are read. Returns the loss and the metrics that verl's vanilla loss has.

    The value of a token's ratio is its action's; its gradient is that of its own log-probability (GSPO-token, equation
    14 there), so that tokens of an action may have different advantages. With actions of one token this is verl's
    vanilla loss. A batch with no trained token has loss 0 and gradient 0.
    """
    return _loss(
        old_log_prob,
        log_prob,
        advantages,
        response_mask,
        loss_agg_mode,
        config,
        rollout_is_weights,
        mean=True,
    )


def action_sum_loss(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The same with the likelihood ratio of the whole action, the product of its tokens' ratios.

    It is the exact importance weight of an action, and varies the more the longer actions are.
    """
    return _loss(
        old_log_prob,
        log_prob,
        advantages,
        response_mask,
        loss_agg_mode,
        config,
        rollout_is_weights,
        mean=False,
    )


def _loss(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str,
    config: Any,
    rollout_is_weights: torch.Tensor | None,
    *,
    mean: bool,
) -> tuple[torch.Tensor, dict[str, Any]]:
    mask = response_mask.bool()
    low = config.clip_ratio if config.clip_ratio_low is None else config.clip_ratio_low
    high = config.clip_ratio if config.clip_ratio_high is None else config.clip_ratio_high
    dual = config.get("clip_ratio_c", 3.0)
    if dual <= 1.0:
        raise ValueError(f"actor.clip_ratio_c: dual clip needs a bound above 1, not {dual}")
    # What stands at masked positions must not reach a sum or a gradient, be it infinite.
    log_ratio = torch.where(mask, log_prob - old_log_prob, torch.zeros_like(log_prob))
    clamped = log_ratio.clamp(-_LIMIT, _LIMIT)
    whole = action_log_ratio(log_ratio.detach(), mask, mean=mean).clamp(-_LIMIT, _LIMIT)
    ratio = torch.exp(whole + (clamped - clamped.detach()))
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - low, 1 + high)
    losses = torch.maximum(unclipped, clipped)
    bound = -advantages * dual
    negative = advantages < 0
    metrics = {
        "actor/pg_clipfrac": _mean(clipped > unclipped, mask),
        "actor/ppo_kl": _mean(-clamped, mask),
        "actor/pg_clipfrac_lower": _mean((losses > bound) & negative, mask),
    }
    losses = torch.where(negative, torch.minimum(bound, losses), losses)
    if rollout_is_weights is not None:
        losses = losses * rollout_is_weights
    losses = torch.where(mask, losses, torch.zeros_like(losses))
    if not bool(mask.any()):  # verl divides by the number of trained tokens
        return losses.sum(), metrics
    core_algos: Any = importlib.import_module("verl.trainer.ppo.core_algos")
    loss = core_algos.agg_loss(loss_mat=losses, loss_mask=mask, loss_agg_mode=loss_agg_mode, **config.global_batch_info)
    return loss, metrics


def action_log_ratio(log_ratio: torch.Tensor, mask: torch.Tensor, *, mean: bool) -> torch.Tensor:
    """At each trained token the mean (or sum) of `log_ratio` over its action; 0 elsewhere. All [B, T]."""
    starts = mask.clone()
    starts[:, 1:] &= ~mask[:, :-1]
    number = starts.flatten().cumsum(0) - 1  # a run never spans rows: every row begins anew
    number = torch.where(mask.flatten(), number, number.new_zeros(()))
    size = max(int(starts.sum()), 1)
    weight = mask.flatten().to(log_ratio.dtype)
    total = log_ratio.new_zeros(size).index_add_(0, number, log_ratio.flatten() * weight)
    if mean:
        total = total / log_ratio.new_zeros(size).index_add_(0, number, weight).clamp(min=1)
    return (total[number] * weight).view_as(log_ratio)


def _mean(values: torch.Tensor, mask: torch.Tensor) -> float:
    return float((values.detach() * mask).sum() / (mask.sum() + 1e-8))
