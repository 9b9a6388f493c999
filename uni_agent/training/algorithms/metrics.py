"""What is told about a batch, beside verl's own metrics: names begin with `uni_agent/`.

Samples and chains are counted apart; padding counts nowhere. Numbers that stand in several chains of a sample are
read from its last one, but for tokens, which are added up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from uni_agent.training.algorithms.context import Row, chains, spans_of
from uni_agent.trajectory.render_check import KINDS

_MEANS = ("turns", "tool_calls", "tool_errors", "format_errors")
_SUMS = ("preemptions", "replaced")
_TOKENS = ("sampled", "trained", "masked", "dropped")
_SECONDS = ("start", "model", "tools", "reward", "teardown")
_FAILURES = "failures_"
"""Begins the names of counts that a worker made since the sample before: what failed, and what was done about it."""


@dataclass(frozen=True, slots=True)
class Sides:
    """The rows of a batch with their side information (None without) and scores, in the batch's order."""

    rows: Sequence[Row]
    sides: Sequence[Mapping[str, Any] | None]
    scores: Sequence[float]


def batch_metrics(batch: Sides, *, group_size: int, version: int, counts: Mapping[str, float]) -> dict[str, float]:
    """Metrics of a batch by name.

    `group_size` is how many samples a group should have, `version` that of the weights before this step's update,
    `counts` what the estimator counted. Values nobody told of are left out.
    """
    samples = list(chains(batch.rows).values())
    last = [side for numbers in samples if (side := batch.sides[numbers[-1]]) is not None]
    every = [side for numbers in samples for n in numbers if (side := batch.sides[n]) is not None]
    return {
        f"uni_agent/{name}": float(value)
        for name, value in {
            "samples": len(samples),
            "chains": sum(map(len, samples)),
            **_groups(batch, samples, group_size),
            **_endings(last),
            **_sessions(last),
            **_failures(last),
            **_tokens(every),
            **_renders(every),
            **_staleness(every, version),
            **_estimator(counts),
        }.items()
    }


def _groups(batch: Sides, samples: Sequence[Sequence[int]], size: int) -> dict[str, float]:
    scores: dict[str, list[float]] = {batch.rows[numbers[0]].group: [] for numbers in samples}
    untrusted = [numbers for numbers in samples if any(batch.rows[n].trusted is False for n in numbers)]
    left_out = {numbers[0] for numbers in untrusted}
    for numbers in samples:
        if numbers[0] not in left_out:
            scores[batch.rows[numbers[0]].group].append(batch.scores[numbers[-1]])
    return {
        "groups": len(scores),
        "groups_short": sum(len(own) < size for own in scores.values()),
        "groups_without_gradient": sum(len(own) < 2 or max(own) == min(own) for own in scores.values()),
        "untrusted_samples": len(untrusted),
        "untrusted_rows": sum(map(len, untrusted)),
    }


def _endings(sides: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    reasons = Counter(str(side["exit_reason"]) for side in sides if side.get("exit_reason"))
    return {f"exit_reason/{reason}": count / len(sides) for reason, count in sorted(reasons.items())}


def _sessions(sides: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    metrics = {name: float(np.mean(values)) for name in _MEANS if (values := _values(sides, name))}
    metrics |= {name: sum(values) for name in _SUMS if (values := _values(sides, name))}
    if attempts := [int(side["attempts"]) for side in sides if side.get("attempts")]:
        metrics["retries"] = sum(attempts) - len(attempts)
    for name in _SECONDS:
        if values := _values(sides, f"seconds_{name}"):
            metrics[f"seconds/{name}/mean"] = float(np.mean(values))
            metrics[f"seconds/{name}/p95"] = float(np.percentile(values, 95))
    return metrics


def _failures(sides: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    names = {str(name) for side in sides for name in side.get("metrics") or () if str(name).startswith(_FAILURES)}
    return {f"failures/{name.removeprefix(_FAILURES)}": sum(_values(sides, name)) for name in sorted(names)}


def _tokens(sides: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {f"tokens/{name}": sum(values) for name in _TOKENS if (values := _values(sides, f"tokens_{name}"))}


def _renders(sides: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The share of chains that are no exact render of their messages, by kind; see `trajectory.render_check`."""
    found = Counter(str(side["render"]) for side in sides if side.get("render"))
    return {f"render/{kind}": found[kind] / found.total() for kind in KINDS} if found else {}


def _values(sides: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    metrics: list[Mapping[str, Any]] = [side.get("metrics") or {} for side in sides]
    return [float(own[name]) for own in metrics if isinstance(own.get(name), int | float)]


def _staleness(sides: Sequence[Mapping[str, Any]], version: int) -> dict[str, float]:
    """How many versions behind the weights were that sampled a token."""
    spans = [(version - sampled, end - start) for side in sides for sampled, start, end in spans_of(side)]
    tokens = sum(size for _, size in spans)
    if not tokens:
        return {}
    return {
        "staleness/token_mean": sum(age * size for age, size in spans) / tokens,
        "staleness/token_max": max(age for age, size in spans if size),
    }


def _estimator(counts: Mapping[str, float]) -> dict[str, float]:
    """What the estimator did to which share of the trained tokens, and of the samples."""
    metrics: dict[str, float] = {}
    if "groups_without_gradient" in counts:
        metrics["groups_without_gradient"] = counts["groups_without_gradient"]
    if tokens := counts.get("tokens"):
        for kind in ("thought", "action", "text", "stale"):
            if (count := counts.get(f"tokens_{kind}")) is not None:
                metrics[f"credit/tokens_{kind}"] = count / tokens
    if scored := counts.get("samples_scored"):
        metrics["credit/samples_overlong"] = counts["samples_overlong"] / scored
        metrics["credit/overlong_penalty"] = counts["overlong_penalty"] / scored
    if (sharing := counts.get("chains_sharing")) is not None:
        metrics["credit/chains_sharing"] = sharing
    return metrics
