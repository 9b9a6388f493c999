"""Runs every sample of every task: limits, retries, resume, cancellation. Results go to the store as they come."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from uni_agent.errors import StoreError
from uni_agent.runtime.rollout import Attempt, RolloutParts
from uni_agent.types import ExitClass, ExitReason, RolloutKey, Task, Turn

if TYPE_CHECKING:
    from uni_agent.pipeline import PipelineConfig
    from uni_agent.runtime.board import Board
    from uni_agent.store.records import RolloutRecord
    from uni_agent.store.run import RolloutState, RunStore

logger = logging.getLogger(__name__)

_STORE_POLL = 0.5


@dataclass(slots=True)
class RunOutcome:
    """What a run came to: endings by reason, the rollouts that were already there, and whether anything is missing."""

    exit_reasons: dict[ExitReason, int] = field(default_factory=dict[ExitReason, int])
    kept: int = 0
    interrupted: bool = False

    @property
    def done(self) -> int:
        """Rollouts that ended in this run of the program."""
        return sum(self.exit_reasons.values())

    @property
    def all_broken(self) -> bool:
        """Whether there were rollouts and infrastructure ended every one."""
        broken = sum(n for reason, n in self.exit_reasons.items() if reason.exit_class is ExitClass.INFRASTRUCTURE)
        return self.done > 0 and broken == self.done and self.kept == 0


@dataclass(slots=True)
class Controller:
    """Carries out the rollouts of one run with at most `run.concurrency` in flight.

    A fault of one rollout never touches another. `run` returns when all ended; when it is cancelled it first waits for
    every rollout in flight to tear its sandbox down. `store_patience`: seconds that a store which cannot be written is
    waited for before the run ends with StoreError.
    """

    config: PipelineConfig
    tasks: Sequence[Task]
    parts: RolloutParts
    store: RunStore
    board: Board
    outcome: RunOutcome = field(default_factory=RunOutcome)
    store_patience: float = 120.0

    async def run(self) -> RunOutcome:
        """Run what is missing. Raises only cancellation and StoreError."""
        for task in self.tasks:
            self.store.task(task)
        completed = self.store.completed()
        pending = _pending(self.tasks, self.config.run.samples_per_task, completed)
        total = len(self.tasks) * self.config.run.samples_per_task
        self.outcome.kept = total - len(pending)
        queue = iter(pending)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self.config.run.concurrency, len(pending))):
                    group.create_task(self._worker(queue))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        except asyncio.CancelledError:
            self.outcome.interrupted = True
            raise
        return self.outcome

    async def _worker(self, queue: Iterator[tuple[RolloutKey, Task]]) -> None:
        for key, task in queue:
            await self._wait_for_store()
            await self._rollout(key, task)

    async def _wait_for_store(self) -> None:
        """Start nothing whose result may be lost: wait while the store refuses to write, up to `store_patience`."""
        waited = 0.0
        while (error := self.store.error) is not None:
            if waited >= self.store_patience:
                raise StoreError(f"the run's store cannot be written: {error}") from error
            await asyncio.sleep(_STORE_POLL)
            waited += _STORE_POLL

    async def _rollout(self, key: RolloutKey, task: Task) -> None:
        self.board.started(key)
        config = self.config.for_task(task)
        attempts = self.config.run.retries + 1
        for attempt in range(attempts):
            record = await self._attempt(key, attempt, task, config)
            if not record.exit_reason.retryable or attempt + 1 == attempts:
                self._finished(key, record)
                return
            # Spread retries out: whatever broke one sandbox has probably broken its neighbours at the same moment.
            await asyncio.sleep(min(30.0, 0.5 * 2**attempt) * random.uniform(0.5, 1.5))  # noqa: S311 - jitter

    async def _attempt(self, key: RolloutKey, number: int, task: Task, config: PipelineConfig) -> RolloutRecord:
        rollout = self.store.rollout_started(key, number)
        attempt = Attempt(key, number, task, config, self.parts, StoreLog(self.store, rollout))
        try:
            record, chains = await attempt.run()
        except asyncio.CancelledError:
            record, chains = attempt.record(ExitReason.CANCELLED, "cancelled")
            self.store.chains(rollout, chains)
            self.store.finished(rollout, record)
            raise
        if record.exit_reason.retryable:
            logger.warning("%s attempt %d: %s: %s", key, number + 1, record.exit_reason, record.error)
        self.store.chains(rollout, chains)
        self.store.finished(rollout, record)
        return record

    def _finished(self, key: RolloutKey, record: RolloutRecord) -> None:
        reasons = self.outcome.exit_reasons
        reasons[record.exit_reason] = reasons.get(record.exit_reason, 0) + 1
        reward = record.reward
        self.board.finished(
            key,
            record.exit_reason,
            reward.score if reward is not None else None,
            reward.resolved if reward is not None else None,
        )


@dataclass(frozen=True, slots=True)
class StoreLog:
    """A rollout's view of the store."""

    store: RunStore
    rollout: str

    def state(self, state: RolloutState) -> None:
        """The attempt moves to `state`."""
        self.store.state(self.rollout, state)

    def turn(self, turn: Turn) -> None:
        """A turn ended."""
        self.store.turn(self.rollout, turn)

    def event(self, kind: str, **data: object) -> None:
        """Something worth keeping happened."""
        self.store.event(kind, self.rollout, **data)


def _pending(tasks: Iterable[Task], samples: int, completed: AbstractSet[RolloutKey]) -> list[tuple[RolloutKey, Task]]:
    return [
        (key, task)
        for task in tasks
        for sample in range(samples)
        if (key := RolloutKey(task.id, sample)) not in completed
    ]
