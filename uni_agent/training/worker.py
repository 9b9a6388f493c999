"""What one process of rollout workers shares, and how it carries out one rollout of a training run."""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from uni_agent.engine.base import SamplingBackend, SamplingParams
from uni_agent.errors import ConfigError
from uni_agent.model.config import VerlModelConfig
from uni_agent.model.tokens import AgentChatSession
from uni_agent.runtime.rollout import Attempt, RolloutLog, RolloutParts
from uni_agent.tokens.base import Renderer, ToolSchema
from uni_agent.tools.toolset import Toolset
from uni_agent.training.config import Fate, TrainConfig
from uni_agent.training.failures import FailurePolicy, Tries
from uni_agent.training.outcome import INLINE_TOKENS, Outcome, numbers_of, stand_in, trajectories_of, verdict
from uni_agent.training.pipelines import load_pipeline
from uni_agent.training.samples import Sample
from uni_agent.trajectory.trajectory import Trajectory
from uni_agent.types import ExitReason, RolloutKey, Task

if TYPE_CHECKING:
    from uni_agent.model.tokens import AgentChatModel
    from uni_agent.pipeline import PipelineConfig
    from uni_agent.store.records import RolloutRecord
    from uni_agent.tokens.cache import RolloutCache
    from uni_agent.tokens.graph import Chain

logger = logging.getLogger(__name__)

Clock = Callable[[], float]
_LONGEST_PAUSE = 30.0


class TrainingLog(RolloutLog, Protocol):
    """A `RolloutLog` that is also told how the attempt ended."""

    def finished(self, record: RolloutRecord, chains: Sequence[RolloutCache]) -> None:
        """The attempt is over. Never blocks."""
        ...


class Recorder(Protocol):
    """Where a process's rollouts are recorded."""

    def open_rollout(self, key: RolloutKey, attempt: int, task: Task, **about: Any) -> TrainingLog:
        """The log of one attempt; `about` says for which step and group it was made."""
        ...


@dataclass(slots=True)
class RolloutWorker:
    """The parts that all rollouts of one pipeline share in this process.

    `running` and `starting` are this process's share of `run.concurrency` and `run.start_concurrency`.
    """

    config: PipelineConfig
    train: TrainConfig
    renderer: Renderer
    recorder: Recorder
    failures: FailurePolicy
    running: asyncio.Semaphore
    starting: asyncio.Semaphore
    tools: tuple[ToolSchema, ...] = ()
    """What the agents may call, where a task does not say otherwise."""

    @classmethod
    def build(cls, config: PipelineConfig, recorder: Recorder, *, share: int = 1) -> RolloutWorker:
        """The parts of `config`, whose limits are shared by `share` processes. Raises ConfigError."""
        if config.train is None or not isinstance(config.model, VerlModelConfig):
            raise ConfigError("train: there is no `train:` block, or no `model.type: verl`, in this pipeline")
        return cls(
            config=config,
            train=config.train,
            renderer=config.model.renderer.build(config.model.path),
            recorder=recorder,
            failures=FailurePolicy(config.train.failures, config.run.retries),
            running=asyncio.Semaphore(max(1, config.run.concurrency // share)),
            starting=asyncio.Semaphore(max(1, config.run.start_concurrency // share)),
            tools=tuple(Toolset([tool.build() for tool in config.tools]).schemas()),
        )

    def model(self, backend: SamplingBackend, sampling: SamplingParams) -> AgentChatModel:
        """The chat model over verl's servers, within the lengths that the trainer takes."""
        model = self.config.model
        assert isinstance(model, VerlModelConfig)  # noqa: S101 - checked in `build`
        return model.over(
            backend,
            self.renderer,
            seed=self.config.run.seed,
            sampling=sampling,
            max_response=self.train.max_response_tokens,
        )

    def segments_of(self, ids: list[int]) -> list[tuple[str, int, int]]:
        """Thoughts, actions and other text of one sampled turn."""
        from uni_agent.tokens.segments import turn_segments

        return list(turn_segments(self.renderer, ids, self.tools))

    def render_of(self, trajectory: Trajectory) -> str | None:
        """Whether the tokens say what the agent saw; see `trajectory.render_check`. None where that is not known."""
        from uni_agent.trajectory.render_check import checked_render

        return checked_render(trajectory, self.renderer)[0]

    def stand_in(self, task: Task, record: RolloutRecord, session_id: str) -> Trajectory:
        """A row for a rollout of `task` that left nothing to train on."""
        try:
            prompt = self.renderer.initial(self.config.for_task(task).agent.messages(task), list(self.tools))
        except ValueError:  # a prompt that cannot be rendered: the row needs one all the same
            prompt = []
        filler = next(iter(self.renderer.stop_token_ids), 0)
        return stand_in(prompt, filler, record, session_id=session_id, train=self.train)

    async def rollout(self, task: Task, sample: Sample, model: AgentChatModel) -> Outcome:
        """Carry out one sample of `task`, with the attempts that the pipeline and `train.failures` allow.

        Raises only cancellation, and ConfigError for a task whose overrides do not fit.
        """
        return await _Rollout(self, self.config.for_task(task), task, sample, model).run()


@dataclass(slots=True)
class _Rollout:
    """One sample: its attempts, then what `train.failures` does about infrastructure."""

    worker: RolloutWorker
    config: PipelineConfig
    task: Task
    sample: Sample
    model: AgentChatModel
    tries: Tries = field(default_factory=Tries)

    async def run(self) -> Outcome:
        while True:
            async with self.worker.running:  # not while waiting to try again
                attempt, record = await self._attempt()
            self.tries.attempts += 1
            fate = self._verdict(record.exit_reason)
            if fate != "failed":
                return await self._outcome(attempt, record, fate)
            what = self.worker.failures.judge(self.tries, validate=self._validates)
            logger.warning("%s: %s: %s; %s", attempt.key, record.exit_reason, record.error, what)
            if what in ("drop", "mask"):
                return await self._failed(attempt, record, what)
            # Spread them out: whatever broke one sandbox has probably broken its neighbours at the same moment.
            pause = min(_LONGEST_PAUSE, 0.5 * 2 ** (self.tries.attempts - 1))
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - jitter

    async def _attempt(self) -> tuple[Attempt, RolloutRecord]:
        key, number = self.sample.key(self.task.id), self.tries.attempts
        log = self.worker.recorder.open_rollout(key, number, self.task, **self.sample.about())
        parts = RolloutParts(self.model, self.worker.starting)
        seeded = self.sample.seeded(self.task.id, self.tries.replaced)
        attempt = Attempt(seeded, number, self.task, self.config, parts, log)
        attempt.masks = self._masked
        try:
            record, caches = await attempt.run()
        except asyncio.CancelledError:
            log.finished(*attempt.record(ExitReason.CANCELLED, "cancelled"))
            raise
        log.finished(record, caches)
        return attempt, record

    @property
    def _validates(self) -> bool:
        return self.sample.phase == "validation"

    def _verdict(self, reason: ExitReason) -> Fate | Literal["failed"]:
        return verdict(reason, self.worker.train, self.config.interaction, validation=self._validates)

    def _masked(self, reason: ExitReason) -> bool:
        return self._verdict(reason) != "train"

    async def _outcome(self, attempt: Attempt, record: RolloutRecord, fate: Fate) -> Outcome:
        if fate == "drop":
            self.worker.failures.counts["dropped_by_exit"] += 1
        found = () if fate == "drop" else await self._trajectories(attempt, record, masked=fate == "mask")
        if not found and self._validates and record.reward is not None and record.reward.score is not None:
            # Nothing was sampled, as when the prompt fills the window: to a mean over tasks that is a result too.
            row = self.worker.stand_in(self.task, record, str(attempt.key))
            found = (replace(row, reward=record.reward.score),)
        numbers = self._numbers(attempt, record, delivered=bool(found))
        return Outcome(record, found, True, fate, self.tries.attempts, numbers)

    async def _failed(self, attempt: Attempt, record: RolloutRecord, fate: Literal["drop", "mask"]) -> Outcome:
        """Infrastructure ended it for good: the group goes without, or gets rows that train nothing."""
        found: tuple[Trajectory, ...] = ()
        if fate == "mask":
            stand_in = self.worker.stand_in(self.task, record, str(attempt.key))
            found = await self._trajectories(attempt, record, masked=True) or (stand_in,)
        numbers = self._numbers(attempt, record, delivered=bool(found))
        return Outcome(record, found, False, fate, self.tries.attempts, numbers)

    async def _trajectories(self, attempt: Attempt, record: RolloutRecord, *, masked: bool) -> tuple[Trajectory, ...]:
        chains: Sequence[Chain] = getattr(attempt.session, "chains", ())
        made = functools.partial(
            trajectories_of,
            chains,
            record,
            session_id=str(attempt.key),
            train=self.worker.train,
            masked=masked,
            render_of=self.worker.render_of,
            preempted=_preempted(attempt),
        )
        if sum(len(chain.cache) for chain in chains) < INLINE_TOKENS:
            return made()
        return await asyncio.to_thread(made)  # each chain is rendered once more

    def _numbers(self, attempt: Attempt, record: RolloutRecord, *, delivered: bool) -> dict[str, float]:
        numbers = numbers_of(
            record,
            attempt.turns,
            attempts=self.tries.attempts,
            replaced=self.tries.replaced,
            preempted=_preempted(attempt),
        )
        # What failed meanwhile left no sample of its own to tell of it; one that goes nowhere cannot tell either.
        failures = self.worker.failures.take() if delivered and not self._validates else {}
        return {**numbers, **{f"failures_{name}": count for name, count in failures.items()}}


def _preempted(attempt: Attempt) -> int | None:
    return attempt.session.preempted if isinstance(attempt.session, AgentChatSession) else None


_WORKERS: dict[str, RolloutWorker] = {}
_LOCK = threading.Lock()


def worker_of(settings: Mapping[str, Any], *, share: int, named: str | None = None) -> RolloutWorker:
    """This process's worker for the pipeline that `settings` name: `pipeline`, a YAML, and `run_dir`.

    `named` is another YAML, of one of several agents; its model and its `train:` block are those of the first. A worker
    is made once. Raises ConfigError for a YAML that cannot be read or does not train.
    """
    first, run_dir = settings.get("pipeline") or named, settings.get("run_dir")
    if not first or not run_dir:
        raise ConfigError(
            "actor_rollout_ref.rollout.custom.uni_agent: needs `pipeline`, the path of a pipeline's YAML, and `run_dir`"
        )
    path = str(named or first)
    with _LOCK:
        if path not in _WORKERS:
            config = load_pipeline(Path(path))
            if path != str(first):
                whole = load_pipeline(Path(str(first)))
                config = config.model_copy(update={"model": whole.model, "train": whole.train})
            _WORKERS[path] = RolloutWorker.build(config, _recorder(Path(str(run_dir))), share=share)
        return _WORKERS[path]


def _recorder(run_dir: Path) -> Recorder:
    from uni_agent.training.record import RolloutJournal

    return RolloutJournal(run_dir / "journal")
