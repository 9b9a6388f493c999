"""Advantages in a group of samples, not of rows: `uni_agent_grpo` and `uni_agent_turn_grpo`.

A **group** is one prompt, a **sample** one session of it, a **row** one of its chains. A sample counts once in its
group's statistics, with the score of its last chain, and all of its chains are trained with its advantage. What is not
trusted (infrastructure failed, a score that is no number) and what is padding counts in no statistics and gets
advantage 0. A sample of which no token trains counts: its score is known. Only a row of which nothing at all is known,
and none of whose tokens trains, is taken as absent.

Normalisation is verl's for GRPO: minus the mean, divided by the standard deviation of a sample (n - 1) plus 1e-6 unless
`algorithm.norm_adv_by_std_in_grpo` is false. There are two exceptions. A group with one trusted sample has nothing to
be compared with: its advantage is 0, where verl takes the raw score. A group without spread has advantage 0 exactly,
where rounding could leave a rest.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from uni_agent.training.algorithms.context import AdvantageContext, Row, chains, current
from uni_agent.training.algorithms.credit import Bools, Floats, overlong_penalty, token_weights

_EPSILON = 1e-6
_OUTCOME = 0
_Events = Mapping[int, float]
"""Turn → reward that came at its end."""


def grpo(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: Any, config: Any = None, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outcome supervision: each trained token has its sample's normalised score.

    `token_level_rewards` and `response_mask` [B, T], `index` [B] names the groups. Returns advantages [B, T], 0 where
    the mask is, twice: they are the returns as well, as in verl.
    """
    return _estimate(token_level_rewards, response_mask, index, config, by_turn=False)


def turn_grpo(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: Any, config: Any = None, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Process supervision (DeepSeekMath, arXiv 2402.03300, section 4.1.3) with a discount from turn to turn.

    Rewards of turns are normalised by mean and standard deviation of all rewards in the group; a token gets the sum of
    those of its own turn and of later ones, each times `train.credit.turn_discount` for each turn between. What a
    sample's score has beyond its turns' rewards is a reward of its last turn, so that with no other and no discount
    this is `grpo`. Arguments and result as there.

    Without a context turns are runs of ones in the mask; a turn but the last has a reward where it is not 0.
    """
    return _estimate(token_level_rewards, response_mask, index, config, by_turn=True)


@dataclass(frozen=True, slots=True)
class _Sample:
    """A trusted sample: the numbers of its rows, its rewards by turn."""

    group: str
    rows: tuple[int, ...]
    events: _Events


def _estimate(
    rewards: torch.Tensor, mask: torch.Tensor, index: Any, config: Any, *, by_turn: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    context = current(index)
    if len(context.rows) != len(mask):
        raise ValueError(f"{len(mask)} rows to estimate, but the context has {len(context.rows)}: pass the whole batch")
    trained: Bools = mask.bool().cpu().numpy()
    given: Floats = rewards.detach().double().cpu().numpy()
    rows = _completed(context.rows, given, trained) if by_turn else context.rows
    samples = _samples(context, rows, given.sum(axis=1), trained, by_turn=by_turn)
    by_std = True if config is None else bool(config.get("norm_adv_by_std_in_grpo", True))
    advantages = np.zeros(trained.shape)
    for sample, events in _normalised(context, samples, by_std=by_std):
        for number in sample.rows:
            if by_turn:
                _fill(advantages[number], rows[number], events, context.credit.turn_discount)
            else:
                advantages[number] = events[_OUTCOME]
    advantages *= token_weights(context, [sample.rows for sample in samples], trained) * trained
    result = torch.as_tensor(advantages).to(rewards)
    return result, result


def _samples(
    context: AdvantageContext, rows: Sequence[Row], totals: Floats, mask: Bools, *, by_turn: bool
) -> list[_Sample]:
    """The trusted samples with their scores, penalties taken off."""
    trains: Bools = np.any(mask, axis=1)
    samples: list[_Sample] = []
    for numbers in chains(rows).values():
        own = [rows[n] for n in numbers]
        given = [float(totals[numbers[-1]]), *(value for row in own for _, value in row.turn_scores)]
        known = all(bool(trains[n]) if rows[n].trusted is None else rows[n].trusted for n in numbers)
        if known and all(map(math.isfinite, given)):
            score = given[0] - _penalty(context, own, mask[numbers])
            events = _events(own, score) if by_turn else {_OUTCOME: score}
            samples.append(_Sample(own[-1].group, tuple(numbers), events))
    return samples


def _penalty(context: AdvantageContext, rows: Sequence[Row], mask: Bools) -> float:
    """The overlong penalty of a sample, by its longest chain."""
    config, budget = context.credit.overlong, context.max_response
    if config is None or budget is None:
        return 0.0
    known = [_trained_length(own) if row.length is None else row.length for row, own in zip(rows, mask, strict=True)]
    penalty = overlong_penalty(max(known), budget, config)
    context.count("samples_scored")
    context.count("samples_overlong", penalty > 0)
    context.count("overlong_penalty", penalty)
    return penalty


def _trained_length(mask: Bools) -> int:
    at = mask.nonzero()[0]
    return int(at[-1]) + 1 if len(at) else 0


def _events(rows: Sequence[Row], score: float) -> dict[int, float]:
    """Rewards by turn; the rest of the score is one of the last turn in any chain."""
    events = {turn: value for row in rows for turn, value in row.turn_scores}
    rest = score - math.fsum(events.values())
    last = max([0, *events, *(turn for row in rows for turn, _, _ in row.turns)])
    return {**events, last: events.get(last, 0.0) + rest}


def _normalised(
    context: AdvantageContext, samples: Sequence[_Sample], *, by_std: bool
) -> list[tuple[_Sample, _Events]]:
    """The samples of groups that teach something, with normalised rewards."""
    groups: dict[str, list[_Sample]] = {row.group: [] for row in context.rows if not row.padding}
    for sample in samples:
        groups[sample.group].append(sample)
    result: list[tuple[_Sample, _Events]] = []
    for group in groups.values():
        values = [value for sample in group for value in sample.events.values()]
        flat = len(group) < 2 or max(values) == min(values)
        context.count("groups_without_gradient", flat)
        if flat:
            continue
        mean = math.fsum(values) / len(values)
        scale = statistics.stdev(values) + _EPSILON if by_std else 1.0
        for sample in group:
            result.append((sample, {turn: (value - mean) / scale for turn, value in sample.events.items()}))
    return result


def _fill(advantages: Floats, row: Row, events: _Events, discount: float) -> None:
    """Give each turn's tokens the discounted sum of rewards from that turn on."""
    turns = sorted(row.turns, key=lambda turn: turn[1])
    sums = _sums(events, {turn for turn, _, _ in turns}, discount)
    starts = [0, *(start for _, start, _ in turns[1:]), len(advantages)]
    for (turn, _, _), (start, end) in zip(turns, pairwise(starts), strict=False):
        advantages[start:end] = sums[turn]


def _sums(events: _Events, turns: set[int], discount: float) -> dict[int, float]:
    total, later, sums = 0.0, 0, dict[int, float]()
    for turn in sorted(turns | set(events), reverse=True):
        total = total * discount ** (later - turn if sums else 0) + events.get(turn, 0.0)
        sums[turn], later = total, turn
    return sums


def _completed(rows: Sequence[Row], rewards: Floats, mask: Bools) -> list[Row]:
    """The rows with turns where nobody told them: runs of ones in the mask, numbered on through a sample's chains."""
    done = list(rows)
    for numbers in chains(rows).values():
        first = 0
        for number in numbers:
            row = rows[number]
            if not row.turns:
                turns = tuple((first + i, start, end) for i, (start, end) in enumerate(runs(mask[number])))
                row = replace(row, turns=turns)
                if row.trusted is None and number == numbers[-1]:
                    row = replace(row, turn_scores=_scores(turns, rewards[number]))
                done[number] = row
            first = max([first, *(turn + 1 for turn, _, _ in row.turns)])
    return done


def _scores(turns: Sequence[tuple[int, int, int]], rewards: Floats) -> tuple[tuple[int, float], ...]:
    """The turns but the last that have a reward, up to where the next one begins."""
    sums = [(turn, float(rewards[start:after].sum())) for (turn, start, _), (_, after, _) in pairwise(turns)]
    return tuple((turn, value) for turn, value in sums if value != 0)


def runs(mask: Bools) -> list[tuple[int, int]]:
    """(start, end) of the maximal runs of ones in `mask` [T]."""
    edges = np.diff(np.pad(mask.astype(np.int8), 1))
    starts, ends = (edges == 1).nonzero()[0].tolist(), (edges == -1).nonzero()[0].tolist()
    return list(zip(starts, ends, strict=True))
