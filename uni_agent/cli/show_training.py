"""The steps of a training run, for `uni-agent show`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from uni_agent.cli.output import columns
from uni_agent.store.display import printable, shorten

if TYPE_CHECKING:
    from uni_agent.store import RunReader
    from uni_agent.store.training import GroupScore, StepRollouts, TrainStep

_SECONDS = ("timing_s/step", "perf/time_per_step")
"""What verl calls the seconds of a step."""


def training_lines(reader: RunReader) -> Iterable[str]:
    """A table of the steps and one of the validations; nothing for a run that trains nothing."""
    if not reader.trains:
        return
    measured = {step.step: step for step in reader.train_steps()}
    rollouts = reader.step_rollouts()
    training = {row.step: row for row in rollouts if row.phase != "validation"}
    steps = sorted({*(step for step in training if step is not None), *measured})
    if steps:
        yield ""
        header = ("step", "rollouts", "reward", "resolved", "turns", "seconds", "exit reasons")
        yield from _table([header, *(_step_cells(step, training.get(step), measured.get(step)) for step in steps)])
    scores = _scores(reader)
    if scores:
        yield ""
        header = ("validation at step", "of", "rollouts", "reward", "resolved")
        yield from _table([header, *(_score_cells(score) for score in scores)])


def training_json(reader: RunReader) -> dict[str, Any]:
    """`{"training": {steps, rollouts, validation}}` as plain data; {} for a run that trains nothing.

    These are the metrics of each step, the numbers of each step's and phase's rollouts, and the scores of each
    validation by group.
    """
    if not reader.trains:
        return {}
    found = {"steps": reader.train_steps(), "rollouts": reader.step_rollouts(), "validation": _scores(reader)}
    return {"training": {name: [dataclasses.asdict(row) for row in rows] for name, rows in found.items()}}


def _scores(reader: RunReader) -> Sequence[GroupScore]:
    return reader.validation_scores(_group_by(reader.meta().get("config")))


def _group_by(config: Any) -> str | None:
    """`train.validation.group_by` of the run's configuration."""
    value: Any = config
    for key in ("train", "validation", "group_by"):
        if not isinstance(value, dict):
            return None
        value = cast("dict[str, Any]", value).get(key)
    return value if isinstance(value, str) else None


def _step_cells(step: int, rollouts: StepRollouts | None, measured: TrainStep | None) -> tuple[str, ...]:
    metrics = measured.metrics if measured else {}
    seconds = next((metrics[name] for name in _SECONDS if isinstance(metrics.get(name), int | float)), None)
    if rollouts is None:
        return (str(step), "-", "-", "-", "-", _number(seconds, 1), "-")
    reasons = ", ".join(f"{printable(name)} {count}" for name, count in rollouts.exit_reasons.items())
    if rollouts.running:
        reasons += f"{', ' if reasons else ''}running {rollouts.running}"
    return (
        str(step),
        str(rollouts.rollouts),
        _number(rollouts.reward_mean, 3),
        _percent(rollouts.resolved_rate),
        _number(rollouts.turns_mean, 1),
        _number(seconds, 1),
        reasons or "-",
    )


def _score_cells(score: GroupScore) -> tuple[str, ...]:
    return (
        "-" if score.step is None else str(score.step),
        shorten(score.group, 40) or "all",
        str(score.rollouts),
        _number(score.reward_mean, 3),
        _percent(score.resolved_rate),
    )


def _table(rows: list[tuple[str, ...]]) -> Iterable[str]:
    return columns(rows, "  ").splitlines()


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"
