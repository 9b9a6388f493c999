"""Batches for the estimators, made of the reference's groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tests.training.algorithms.reference import Group
from uni_agent.training.algorithms import advantage
from uni_agent.training.algorithms.context import AdvantageContext, Row, use
from uni_agent.training.config import CreditConfig

WIDTH = 12


def rows_of(groups: list[Group]) -> list[tuple[Row, list[int], float]]:
    """(row, mask, score) of every chain."""
    return [
        (
            Row(
                group=f"g{g}",
                sample=f"g{g}_{s}",
                index=c,
                trusted=sample.trusted,
                turns=tuple(chain.turns),
                turn_scores=tuple(chain.turn_scores),
            ),
            chain.mask,
            sample.score,
        )
        for g, group in enumerate(groups)
        for s, sample in enumerate(group)
        for c, chain in enumerate(sample.chains)
    ]


def estimate(
    rows: list[tuple[Row, list[int], float]],
    *,
    name: str = "grpo",
    by_std: bool = True,
    context: bool = True,
    dtype: torch.dtype = torch.float64,
    **options: Any,
) -> tuple[list[list[float]], dict[str, float]]:
    """Advantages of each row at its own length, and the counts. `options` are those of the context."""
    width = max([WIDTH, *(len(mask) for _, mask, _ in rows)])
    mask = torch.zeros(len(rows), width, dtype=torch.int64)
    rewards = torch.zeros(len(rows), width, dtype=dtype)
    for i, (_, own, score) in enumerate(rows):
        mask[i, : len(own)] = torch.tensor(own)
        rewards[i, max(len(own) - 1, 0)] = score
    index = np.array([row.group for row, _, _ in rows], dtype=object)
    options.setdefault("credit", CreditConfig(sample_weighting="chain"))
    known = AdvantageContext(tuple(row for row, _, _ in rows), **options)
    call: dict[str, Any] = {
        "token_level_rewards": rewards,
        "response_mask": mask,
        "index": index,
        "config": {"norm_adv_by_std_in_grpo": by_std},
    }
    function = getattr(advantage, name)
    if context:
        with use(known):
            values, returns = function(**call)
    else:
        values, returns = function(**call)
    assert torch.equal(values, returns)
    assert values.dtype == dtype
    return [row[: len(own)].tolist() for row, (_, own, _) in zip(values, rows, strict=True)], known.counts


def padded(rows: list[tuple[Row, list[int], float]]) -> list[tuple[Row, list[int], float]]:
    """The rows with one more as verl pads: a copy of the first that is no row of it."""
    first = rows[0][0]
    return [*rows, (replace(first, group="pad0", sample="pad0_0", padding=True, trusted=False), [0], 0.0)]
