"""`train.credit`: how much of a sample's advantage each of its tokens gets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from uni_agent.training.algorithms.context import AdvantageContext, Row
from uni_agent.training.config import OverlongConfig

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def overlong_penalty(length: int, budget: int, config: OverlongConfig) -> float:
    """What a response of `length` tokens loses of its score (DAPO, arXiv 2503.14476, equation 13).

    It grows from 0 to `penalty` in the last `buffer` tokens of `budget`, and stays there beyond.
    """
    over = length - (budget - config.buffer)
    return config.penalty * min(max(over / config.buffer, 0.0), 1.0)


def token_weights(context: AdvantageContext, samples: Sequence[Sequence[int]], mask: Bools) -> Floats:
    """Weights [B, T] by which advantages are multiplied; `samples` are the rows of each trusted sample.

    `mask` [B, T] tells the trained tokens. What was done is counted in the context.
    """
    weights = np.ones(mask.shape)
    before = np.zeros((len(mask), mask.shape[1] + 1), dtype=np.int64)  # trained tokens in front of each position
    np.cumsum(mask, axis=1, out=before[:, 1:])
    for number, row in enumerate(context.rows):
        if not row.padding:
            context.count("tokens", int(before[number, -1]))
            _by_kind(context, row, weights[number], before[number])
            _by_age(context, row, weights[number], before[number])
    if context.credit.sample_weighting == "sample":
        _by_sample(context, samples, weights, mask)
    return weights


def _by_kind(context: AdvantageContext, row: Row, weights: Floats, before: npt.NDArray[np.int64]) -> None:
    factors = {"thought": context.credit.thought_weight, "action": context.credit.action_weight}
    for kind, start, end in row.segments:
        context.count(f"tokens_{kind}", _between(before, start, end))
        weights[start:end] *= factors.get(kind, 1.0)


def _by_age(context: AdvantageContext, row: Row, weights: Floats, before: npt.NDArray[np.int64]) -> None:
    limit = context.credit.max_staleness
    if limit is None or context.version is None:
        return
    for version, start, end in row.weight_spans:
        if context.version - version > limit:
            weights[start:end] = 0.0
            context.count("tokens_stale", _between(before, start, end))


def _between(before: npt.NDArray[np.int64], start: int, end: int) -> int:
    """Trained tokens in [start, end), of which a shortened response may have lost the end."""
    most = len(before) - 1
    return int(before[min(end, most)] - before[min(start, most)])


def _by_sample(context: AdvantageContext, samples: Sequence[Sequence[int]], weights: Floats, mask: Bools) -> None:
    """The chains of a sample that train anything share its weight.

    The mean weight of such chains is 1, so that the size of a step does not depend on how many chains samples have.
    """
    trains: Bools = np.any(mask, axis=1)
    sharing = [numbers for sample in samples if (numbers := [n for n in sample if trains[n]])]
    rows = sum(map(len, sharing))
    for numbers in sharing:
        if len(numbers) > 1:
            context.count("chains_sharing", len(numbers))
        weights[numbers] *= rows / (len(sharing) * len(numbers))
