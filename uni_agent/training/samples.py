"""Which sample of which group a rollout of a training run is."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from uni_agent.types import RolloutKey

if TYPE_CHECKING:
    from uni_agent.pipeline import RunConfig
    from uni_agent.training.config import TrainConfig

Phase = Literal["train", "validation"]

_MANY = 2**20
"""Room for the numbers of a step's samples where nobody numbers them: a number is drawn for each."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Sample `session` of the group `uid`, for `step` of the trainer.

    A task comes again in later steps, so its samples are numbered through the whole run: `width` is the most that one
    step may have of them, training and validation together.
    """

    phase: Phase
    step: int
    uid: str
    session: int
    width: int
    training: int
    """How many of `width` belong to training; validation has the rest."""

    @classmethod
    def of(
        cls, row: Mapping[str, Any], train: TrainConfig | None, run: RunConfig, *, phase: Phase | None = None
    ) -> Self:
        """The sample that a row of verl's asks for.

        The row has `uid`, `global_steps`, `session_id` (the older trainers number no samples of a group: then one is
        drawn) and `extra_info.split`. Without `phase` that says it: `train` or none at all trains, any other validates.
        """
        each = (train.samples_per_task if train is not None else None) or run.samples_per_task
        checked = train.validation.samples_per_task if train is not None and train.validation is not None else 0
        session = row.get("session_id")
        if session is None:
            session, each, checked = secrets.randbelow(_MANY), _MANY, _MANY
        return cls(
            phase=phase or _phase(row),
            step=int(row.get("global_steps") or 0),
            uid=str(row.get("uid", "")),
            session=int(session),
            width=each + checked,
            training=each,
        )

    def key(self, task_id: str) -> RolloutKey:
        """The rollout's name in the run's store."""
        offset = self.session + (self.training if self.phase == "validation" else 0)
        return RolloutKey(task_id, self.step * self.width + offset)

    def seeded(self, task_id: str, replaced: int = 0) -> RolloutKey:
        """What its sampling is seeded with.

        A sample that replaces another draws anew. A validation draws the same in every evaluation, so that what differs
        between two of them is the policy and not the dice.
        """
        key = self.key(task_id) if self.phase == "train" else RolloutKey(task_id, self.session)
        return RolloutKey(f"{task_id}~{replaced}", key.sample) if replaced else key

    def about(self) -> dict[str, Any]:
        """What the record says beside the key."""
        return {"phase": self.phase, "step": self.step, "uid": self.uid, "session": self.session}


def _phase(row: Mapping[str, Any]) -> Phase:
    extra: Any = row.get("extra_info")
    info: Mapping[str, Any] = cast("Mapping[str, Any]", extra) if isinstance(extra, Mapping) else {}
    return "train" if info.get("split") in (None, "", "train") else "validation"
