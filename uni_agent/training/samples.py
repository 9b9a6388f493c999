"""Which sample of which group a rollout of a training run is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from uni_agent.types import RolloutKey

Phase = Literal["train", "validation"]


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
