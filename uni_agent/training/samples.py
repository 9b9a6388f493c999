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
        """The rollout's name in the run's store, and what its sampling is seeded with."""
        offset = self.session + (self.training if self.phase == "validation" else 0)
        return RolloutKey(task_id, self.step * self.width + offset)

    def about(self) -> dict[str, Any]:
        """What the record says beside the key."""
        return {"phase": self.phase, "step": self.step, "uid": self.uid, "session": self.session}
