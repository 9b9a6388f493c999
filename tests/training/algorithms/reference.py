"""Advantages by plain loops over Python floats, written from the papers and not from the code."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Chain:
    """One row: which tokens train, turns as (number, start, end), rewards of turns."""

    mask: list[int]
    turns: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    turn_scores: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])


@dataclass(frozen=True)
class Sample:
    """One sample of a group with its chains in order; `score` is that of the last."""

    score: float
    chains: list[Chain]
    trusted: bool = True


Group = list[Sample]


def grpo(groups: list[Group], *, by_std: bool = True) -> list[list[float]]:
    """Advantages of all rows, groups, samples and chains in order."""
    out: list[list[float]] = []
    for group in groups:
        scores = [sample.score for sample in group if sample.trusted]
        for sample in group:
            value = normalised(sample.score, scores, by_std) if sample.trusted and len(scores) > 1 else 0.0
            for chain in sample.chains:
                out.append([value * bit for bit in chain.mask])
    return out


def turn_grpo(groups: list[Group], *, discount: float = 1.0, by_std: bool = True) -> list[list[float]]:
    """The same with a reward for each turn (DeepSeekMath, section 4.1.3)."""
    out: list[list[float]] = []
    for group in groups:
        rewards = [turn_rewards(sample) for sample in group]
        values = [v for sample, own in zip(group, rewards, strict=True) if sample.trusted for v in own.values()]
        enough = sum(sample.trusted for sample in group) > 1
        for sample, own in zip(group, rewards, strict=True):
            for chain in sample.chains:
                row = [0.0] * len(chain.mask)
                for turn, start, end in chain.turns:
                    for position in range(start, end):
                        if sample.trusted and enough and chain.mask[position]:
                            for later, reward in own.items():
                                if later >= turn:
                                    row[position] += discount ** (later - turn) * normalised(reward, values, by_std)
                out.append(row)
    return out


def turn_rewards(sample: Sample) -> dict[int, float]:
    """Turn → reward; the last turn of all has what is left of the score."""
    own: dict[int, float] = {}
    for chain in sample.chains:
        for turn, score in chain.turn_scores:
            own[turn] = score
    rest = sample.score - sum(own.values())
    last = max(turn for chain in sample.chains for turn, _, _ in chain.turns)
    own[last] = own.get(last, 0.0) + rest
    return own


def normalised(value: float, values: list[float], by_std: bool) -> float:
    if max(values) == min(values):
        return 0.0
    mean = sum(values) / len(values)
    if not by_std:
        return value - mean
    variance = sum((other - mean) ** 2 for other in values) / (len(values) - 1)
    return (value - mean) / (math.sqrt(variance) + 1e-6)
