"""Losses by action against plain loops, against verl's own and against finite differences of a softmax policy."""

from __future__ import annotations

import importlib
import importlib.util
import math
import random
from collections.abc import Callable
from typing import Any

import pytest

if importlib.util.find_spec("verl") is None:
    pytest.skip("verl is not installed", allow_module_level=True)

import torch

from uni_agent.training.algorithms.action_loss import action_loss, action_sum_loss

core_algos: Any = importlib.import_module("verl.trainer.ppo.core_algos")
actor_config: Any = importlib.import_module("verl.workers.config").ActorConfig

MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")
LOSSES = {"mean": action_loss, "sum": action_sum_loss}
MASK = [[1, 1, 0, 1, 1, 1], [1, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0]]
SINGLE = [[1, 0, 1, 0, 1, 0], [0, 1, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0]]


def config(**values: Any) -> Any:
    made = actor_config(
        strategy="fsdp2", ppo_micro_batch_size_per_gpu=1, rollout_n=1, clip_ratio_low=0.2, clip_ratio_high=0.3
    )
    made.global_batch_info.update(values)
    return made


def tensors(mask: list[list[int]], spread: float, seed: int = 0) -> dict[str, Any]:
    made = torch.Generator().manual_seed(seed)

    def normal() -> torch.Tensor:
        return torch.randn(len(mask), len(mask[0]), generator=made, dtype=torch.float64)

    old = -normal().abs()
    return {
        "old_log_prob": old,
        "log_prob": (old + spread * normal()).requires_grad_(),
        "advantages": normal(),
        "response_mask": torch.tensor(mask).bool(),
        "rollout_is_weights": normal().abs(),
    }


def gradient_of(loss: Any, at: Any) -> torch.Tensor:
    grad: Any = torch.autograd.grad
    return grad(loss, at)[0]


def actions(row: list[int]) -> list[list[int]]:
    """Positions of each action of a row."""
    found: list[list[int]] = []
    for position, bit in enumerate(row):
        if bit and position and row[position - 1]:
            found[-1].append(position)
        elif bit:
            found.append([position])
    return found


def by_loops(batch: dict[str, Any], mode: str, kind: str, low: float, high: float, dual: float) -> float:
    """The loss in Python floats."""
    mask: list[list[int]] = batch["response_mask"].int().tolist()
    old, new, advantage, weight = (
        batch[name].detach().tolist() for name in ("old_log_prob", "log_prob", "advantages", "rollout_is_weights")
    )
    rows: list[list[float]] = []
    for i, row in enumerate(mask):
        losses: list[float] = []
        for action in actions(row):
            log_ratio = sum(new[i][t] - old[i][t] for t in action)
            ratio = math.exp(log_ratio / len(action) if kind == "mean" else log_ratio)
            for t in action:
                a = advantage[i][t]
                loss = max(-a * ratio, -a * min(max(ratio, 1 - low), 1 + high))
                losses.append((min(loss, -a * dual) if a < 0 else loss) * weight[i][t])
        rows.append(losses)
    trained = [row for row in rows if row]
    if mode == "token-sum":
        return sum(map(sum, rows))
    if mode == "token-mean":
        return sum(map(sum, rows)) / sum(map(len, rows))
    each = [sum(row) / len(row) if mode == "seq-mean-token-mean" else sum(row) for row in trained]
    return sum(each) / len(trained) / (len(mask[0]) if mode.endswith("norm") else 1)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("spread", [0.05, 1.5])
def test_the_loss_is_that_of_plain_loops(kind: str, mode: str, spread: float) -> None:
    for seed in range(5):
        batch = tensors(MASK, spread, seed)
        found, _ = LOSSES[kind](**batch, loss_agg_mode=mode, config=config())
        assert math.isclose(found.item(), by_loops(batch, mode, kind, 0.2, 0.3, 3.0), rel_tol=1e-7)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("spread", [0.1, 2.0, 30.0])
def test_with_actions_of_one_token_it_is_verls_vanilla_loss_exactly(kind: str, mode: str, spread: float) -> None:
    for seed in range(5):
        batch = tensors(SINGLE, spread, seed)
        found, metrics = LOSSES[kind](**batch, loss_agg_mode=mode, config=config())
        gradient = gradient_of(found, batch["log_prob"])
        other = core_algos.compute_policy_loss_vanilla
        expected, its = other(**batch, loss_agg_mode=mode, config=config())
        its_gradient = gradient_of(expected, batch["log_prob"])
        assert torch.equal(found, expected)
        assert torch.equal(gradient, its_gradient)
        assert metrics.keys() == its.keys()
        assert all(math.isclose(metrics[name], its[name], rel_tol=1e-6, abs_tol=1e-9) for name in its)


def test_one_action_for_a_row_is_verls_gspo() -> None:
    mask = [[1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0]]
    batch = tensors(mask, 0.3)
    batch["advantages"] = batch["advantages"].abs()  # GSPO has no dual clip
    found, _ = action_loss(**batch, config=config())
    gradient = gradient_of(found, batch["log_prob"])
    expected, _ = core_algos.compute_policy_loss_gspo(**batch, loss_agg_mode="token-mean", config=config())
    its = gradient_of(expected, batch["log_prob"])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradient, its)


def policy(weights: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of `tokens` [B, T] under a softmax whose logits are `weights[token before]`."""
    before = torch.cat([torch.zeros_like(tokens[:, :1]), tokens[:, :-1]], dim=1)
    return torch.log_softmax(weights[before], dim=-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def objective(weights: torch.Tensor, old: torch.Tensor, tokens: torch.Tensor, advantage: float, kind: str) -> float:
    """What the loss descends, as a function of the policy alone, in plain loops and with no stop-gradient.

    By token mean, with N trained tokens: `mean` 1/N sum over actions of n L(s), s the geometric mean of the ratios of
    its n tokens; `sum` 1/N sum over actions of L(r), r their product; L the clipped loss of a ratio.
    """
    new = policy(weights, tokens)
    total, count = 0.0, 0
    for i, row in enumerate(MASK):
        for action in actions(row):
            log_ratio = sum(float(new[i, t] - old[i, t]) for t in action)
            size = len(action)
            ratio = math.exp(log_ratio / size if kind == "mean" else log_ratio)
            loss = max(-advantage * ratio, -advantage * min(max(ratio, 0.8), 1.3))
            loss = min(loss, -advantage * 3.0) if advantage < 0 else loss
            total += loss * (size if kind == "mean" else 1)
            count += size
    return total / count


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("advantage", [0.7, -1.3])
@pytest.mark.parametrize("distance", [0.0, 0.1, 0.8])
def test_the_gradient_is_that_of_finite_differences(kind: str, advantage: float, distance: float) -> None:
    made = torch.Generator().manual_seed(3)
    weights = torch.randn(4, 4, generator=made, dtype=torch.float64)
    tokens = torch.randint(0, 4, (3, 6), generator=made)
    old = policy(weights + distance * torch.randn(4, 4, generator=made, dtype=torch.float64), tokens)
    own = weights.clone().requires_grad_()
    mask = torch.tensor(MASK).bool()
    loss, _ = LOSSES[kind](old, policy(own, tokens), torch.full_like(old, advantage), mask, config=config())
    gradient = gradient_of(loss, own)
    step = 1e-6
    for i in range(4):
        for j in range(4):
            ends: list[float] = []
            for sign in (1, -1):
                moved = weights.clone()
                moved[i, j] += sign * step
                ends.append(objective(moved, old, tokens, advantage, kind))
            assert math.isclose(gradient[i, j].item(), (ends[0] - ends[1]) / (2 * step), rel_tol=1e-5, abs_tol=1e-8)


@pytest.mark.parametrize("kind", LOSSES)
def test_on_the_policy_that_sampled_the_gradient_is_that_of_vanilla(kind: str) -> None:
    batch = tensors(MASK, 0.0)
    loss, _ = LOSSES[kind](**batch, config=config())
    found = gradient_of(loss, batch["log_prob"])
    loss, _ = core_algos.compute_policy_loss_vanilla(**batch, config=config())
    expected = gradient_of(loss, batch["log_prob"])
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kind", LOSSES)
def test_tokens_that_are_masked_inside_a_turn_split_it(kind: str) -> None:
    batch = tensors([[1, 1, 1, 1]], 0.2)
    batch["response_mask"] = torch.tensor([[True, True, False, True]])
    apart: dict[str, Any] = {
        name: torch.cat([t[:, :2], torch.zeros_like(t[:, :1]), t[:, 3:]], dim=1) for name, t in batch.items()
    }
    found, _ = LOSSES[kind](**batch, config=config())
    expected, _ = LOSSES[kind](**apart, config=config())
    assert torch.equal(found, expected)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
def test_what_is_masked_reaches_neither_loss_nor_gradient(kind: str, mode: str, garbage: float) -> None:
    batch = tensors(MASK, 0.2)
    mask = batch["response_mask"]
    dirty = {name: t if t.dtype == torch.bool else torch.where(mask, t, garbage) for name, t in batch.items()}
    dirty["log_prob"] = dirty["log_prob"].detach().requires_grad_()
    loss, metrics = LOSSES[kind](**dirty, loss_agg_mode=mode, config=config())
    gradient = gradient_of(loss, dirty["log_prob"])
    assert torch.equal(loss, LOSSES[kind](**batch, loss_agg_mode=mode, config=config())[0])
    assert not gradient[~mask].any()
    assert torch.isfinite(gradient).all()
    assert all(map(math.isfinite, metrics.values()))


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("mode", MODES)
def test_a_batch_in_which_nothing_trains_has_no_loss_and_no_gradient(kind: str, mode: str) -> None:
    batch = tensors([[0, 0, 0]], 0.2)
    info = {"dp_size": 1, "batch_num_tokens": 0, "global_batch_size": 4, "loss_scale_factor": None}
    loss, metrics = LOSSES[kind](**batch, loss_agg_mode=mode, config=config(**info))
    gradient = gradient_of(loss, batch["log_prob"])
    assert loss.item() == 0.0
    assert not gradient.any()
    assert all(map(math.isfinite, metrics.values()))


@pytest.mark.parametrize("kind", [*LOSSES, "vanilla"])
@pytest.mark.parametrize("mode", MODES)
def test_trn_04_a_padding_row_adds_nothing_to_loss_or_gradient(kind: str, mode: str) -> None:
    mask = [[1, 1, 0, 1, 1, 0]] * 7
    function = core_algos.compute_policy_loss_vanilla if kind == "vanilla" else LOSSES[kind]
    padded = tensors([*mask, [0] * 6], 0.3)
    plain = {name: t[:7].detach().requires_grad_(t.requires_grad) for name, t in padded.items()}
    for info in ({}, {"dp_size": 1, "batch_num_tokens": 28, "global_batch_size": 8, "loss_scale_factor": None}):
        loss, metrics = function(**padded, loss_agg_mode=mode, config=config(**info))
        expected, its = function(**plain, loss_agg_mode=mode, config=config(**info))
        torch.testing.assert_close(loss, expected)
        gradient = gradient_of(loss, padded["log_prob"])
        assert not gradient[7].any()
        torch.testing.assert_close(gradient[:7], gradient_of(expected, plain["log_prob"]))
        assert metrics == pytest.approx(its)


def test_micro_batches_add_up_to_the_batch() -> None:
    batch = tensors(MASK, 0.4)
    info = {"dp_size": 1, "batch_num_tokens": sum(map(sum, MASK)), "global_batch_size": 3, "loss_scale_factor": None}
    for mode in MODES:
        whole, _ = action_loss(**batch, loss_agg_mode=mode, config=config(**info))
        parts = [
            action_loss(**{n: t[i : i + 1] for n, t in batch.items()}, loss_agg_mode=mode, config=config(**info))[0]
            for i in range(3)
        ]
        torch.testing.assert_close(whole, torch.stack(parts).sum())


def test_a_bound_of_the_dual_clip_that_cuts_everything_is_refused() -> None:
    wrong: Callable[..., Any] = action_loss
    made = actor_config(strategy="fsdp2", ppo_micro_batch_size_per_gpu=1, rollout_n=1, clip_ratio_c=0.5)
    with pytest.raises(ValueError, match="clip_ratio_c"):
        wrong(**tensors(MASK, random.random()), config=made)
