"""What becomes of a rollout that infrastructure ended, and how an ending trains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from uni_agent.training.config import FailureConfig, Fate
from uni_agent.types import ExitReason

Decision = Literal["retry", "replace", "drop", "mask"]
"""What to do about one more failed attempt."""

_BUDGET_FACTOR = 4


@dataclass(slots=True)
class Tries:
    """What one rollout has had so far."""

    attempts: int = 0
    extra: int = 0
    replaced: int = 0


@dataclass(slots=True)
class FailurePolicy:
    """Decides for all rollouts of one worker; `counts` tells what was decided since it was made.

    Beside what `judge` counts, callers count there what else leaves rollouts out: `dropped_by_exit`, `unscored`.
    """

    config: FailureConfig
    retries: int
    counts: Counter[str] = field(default_factory=Counter[str])
    _taken: Counter[str] = field(default_factory=Counter[str])
    _failed: int = 0
    _spent: int = 0

    def judge(self, tries: Tries, *, hopeless: bool = False, validate: bool = False) -> Decision:
        """What to do after one more attempt of a rollout failed; keeps `tries` up to date.

        `hopeless`: what failed would fail again. A validation spends nothing of the budget and has no masked
        rows: they would count as a score of 0.
        """
        self.counts["infrastructure_failures"] += 1
        decision = self._decision(tries, hopeless, validate)
        if decision == "mask" and validate:
            decision = "drop"
        self.counts[{"retry": "retried", "replace": "replaced", "drop": "dropped", "mask": "masked"}[decision]] += 1
        return decision

    def take(self) -> dict[str, float]:
        """What was counted since the last call, by name; {} when nothing happened.

        For the `metrics` of the next trained sample, as `failures_<name>`: the trainer's metrics add them up.
        """
        new = self.counts - self._taken
        self._taken = self.counts.copy()
        return {name: float(count) for name, count in new.items()}

    def _decision(self, tries: Tries, hopeless: bool, validate: bool) -> Decision:
        last = "mask" if self.config.on_infra_failure == "mask" else "drop"
        if hopeless:
            return last
        if tries.attempts <= self.retries:
            return "retry"
        if validate:
            return "drop"
        if tries.extra == 0:
            self._failed += 1
        wish = self.config.on_infra_failure
        if wish in ("drop", "mask") or tries.extra >= self.config.per_rollout:
            return last
        budget = self.config.budget
        if self._spent >= (_BUDGET_FACTOR * self._failed if budget is None else budget):
            self.counts["budget_exhausted"] += 1
            return last
        self._spent += 1
        tries.extra += 1
        if wish == "replace":
            tries.replaced += 1
        return wish


def fate_of(reason: ExitReason, exits: Mapping[ExitReason, Fate], *, masked: bool, validation: bool = False) -> Fate:
    """How a rollout that ended so trains: as `exits` says, or else masked where the episode's rules mask it.

    In a `validation` no ending that says something about the model is left out: its reward counts, or a policy that
    fails by an ending which is dropped would score the better the more it fails.
    """
    if reason in exits:
        fate = exits[reason]
    elif not reason.trains:
        fate = "drop"
    else:
        fate = "mask" if masked else "train"
    return "mask" if validation and fate == "drop" and reason.trusted else fate
