"""What one process of rollout workers shares, and how it carries out one rollout of a training run."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from uni_agent.engine.base import SamplingBackend, SamplingParams
from uni_agent.errors import ConfigError
from uni_agent.model.config import VerlModelConfig
from uni_agent.runtime.rollout import Attempt, RolloutLog, RolloutParts
from uni_agent.tokens.base import Renderer, ToolSchema
from uni_agent.tools.toolset import Toolset
from uni_agent.training.config import TrainConfig
from uni_agent.training.outcome import Outcome, numbers_of, stand_in, trajectories_of, verdict
from uni_agent.training.samples import Sample
from uni_agent.trajectory.trajectory import Trajectory
from uni_agent.types import ExitReason, RolloutKey, Task

if TYPE_CHECKING:
    from uni_agent.model.tokens import AgentChatModel
    from uni_agent.pipeline import PipelineConfig
    from uni_agent.store.records import RolloutRecord
    from uni_agent.tokens.cache import RolloutCache

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
class FailureBudget:
    """How many rollouts may still be done again in place of failed ones; None: no limit for the whole run."""

    left: int | None

    def take(self) -> bool:
        """Use one; False when none is left."""
        if self.left is None:
            return True
        if self.left <= 0:
            return False
        self.left -= 1
        return True


@dataclass(slots=True)
class RolloutWorker:
    """The parts that all rollouts of one pipeline share in this process.

    `running` and `starting` are this process's share of `run.concurrency` and `run.start_concurrency`.
    """

    config: PipelineConfig
    train: TrainConfig
    renderer: Renderer
    recorder: Recorder
    budget: FailureBudget
    running: asyncio.Semaphore
    starting: asyncio.Semaphore
    tools: tuple[ToolSchema, ...] = ()
    """What the agents may call, where a task does not say otherwise."""
    failures: dict[str, int] = field(default_factory=dict[str, int])
    """Ending → how many rollouts it ended for good, in this process."""

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
            budget=FailureBudget(config.train.failures.budget),
            running=asyncio.Semaphore(max(1, config.run.concurrency // share)),
            starting=asyncio.Semaphore(max(1, config.run.start_concurrency // share)),
            tools=tuple(Toolset([tool.build() for tool in config.tools]).schemas()),
        )

    def model(self, backend: SamplingBackend, sampling: SamplingParams) -> AgentChatModel:
        """The chat model over verl's servers, within the lengths that the trainer takes."""
        model = self.config.model
        assert isinstance(model, VerlModelConfig)  # noqa: S101 - checked in `build`
        on_abort: Literal["continue", "restart"] = "continue"
        return model.over(
            backend,
            self.renderer,
            seed=self.config.run.seed,
            sampling=sampling,
            max_response=self.train.max_response_tokens,
            on_abort=on_abort,
        )

    def segments_of(self, ids: list[int]) -> list[tuple[str, int, int]]:
        """Thoughts, actions and other text of one sampled turn."""
        from uni_agent.tokens.segments import turn_segments

        return list(turn_segments(self.renderer, ids, self.tools))

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
        config = self.config.for_task(task)
        async with self.running:
            return await _Rollout(self, config, task, sample, model).run()


@dataclass(slots=True)
class _Rollout:
    """One sample: its attempts, then what `train.failures` does about infrastructure."""

    worker: RolloutWorker
    config: PipelineConfig
    task: Task
    sample: Sample
    model: AgentChatModel
    attempts: int = 0
    again: int = 0

    async def run(self) -> Outcome:
        policy = self.worker.train.failures
        number = 0
        while True:
            attempt, record = await self._sampled(number)
            fate = verdict(record.exit_reason, self.worker.train, self.config.interaction)
            if fate != "failed":
                return self._outcome(attempt, record, fate)
            may = policy.on_infra_failure in ("retry", "replace") and self.again < policy.per_rollout
            if not may or self.sample.phase == "validation" or not self.worker.budget.take():
                return self._failed(attempt, record)
            self.again += 1
            number = self.again if policy.on_infra_failure == "replace" else 0
            logger.warning("%s: %s; %s", self.sample.key(self.task.id), record.error, policy.on_infra_failure)

    async def _sampled(self, number: int) -> tuple[Attempt, RolloutRecord]:
        """One sample with `run.retries`; `number` makes a replacement another sample, with a seed of its own."""
        retries = self.config.run.retries
        for tried in range(retries + 1):
            attempt, record = await self._attempt(number)
            if not record.exit_reason.retryable or tried == retries:
                break
            pause = min(_LONGEST_PAUSE, 0.5 * 2**tried) * random.uniform(0.5, 1.5)  # noqa: S311 - jitter
            await asyncio.sleep(pause)
        return attempt, record  # pyright: ignore[reportPossiblyUnboundVariable] - there is at least one try

    async def _attempt(self, number: int) -> tuple[Attempt, RolloutRecord]:
        key = self.sample.key(self.task.id)
        log = self.worker.recorder.open_rollout(key, self.attempts, self.task, **self.sample.about())
        parts = RolloutParts(self.model, self.worker.starting)
        seeded = RolloutKey(f"{key.task_id}~{number}", key.sample) if number else key
        attempt = Attempt(seeded, self.attempts, self.task, self.config, parts, log)
        attempt.masks = self._masked
        self.attempts += 1
        try:
            record, caches = await attempt.run()
        except asyncio.CancelledError:
            log.finished(*attempt.record(ExitReason.CANCELLED, "cancelled"))
            raise
        log.finished(record, caches)
        return attempt, record

    def _masked(self, reason: ExitReason) -> bool:
        return verdict(reason, self.worker.train, self.config.interaction) != "train"

    def _outcome(self, attempt: Attempt, record: RolloutRecord, fate: Literal["train", "mask", "drop"]) -> Outcome:
        chains = getattr(attempt.session, "chains", ())
        trajectories = (
            trajectories_of(chains, record, session_id=str(attempt.key), train=self.worker.train, masked=fate == "mask")
            if fate != "drop"
            else ()
        )
        numbers = numbers_of(record, attempt.turns, attempts=self.attempts, replaced=self.again)
        return Outcome(record, trajectories, True, fate, self.attempts, numbers)

    def _failed(self, attempt: Attempt, record: RolloutRecord) -> Outcome:
        """Infrastructure ended it for good: the group goes without, or gets a row that trains nothing."""
        counts = self.worker.failures
        counts[record.exit_reason] = counts.get(record.exit_reason, 0) + 1
        logger.error("%s is left out: %s: %s", attempt.key, record.exit_reason, record.error)
        numbers = numbers_of(record, attempt.turns, attempts=self.attempts, replaced=self.again)
        if self.worker.train.failures.on_infra_failure != "mask" or self.sample.phase == "validation":
            return Outcome(record, (), False, "drop", self.attempts, numbers)
        row = self.worker.stand_in(self.task, record, str(attempt.key))
        return Outcome(record, (row,), False, "mask", self.attempts, numbers)


_WORKERS: dict[str, RolloutWorker] = {}
_LOCK = threading.Lock()


def worker_of(settings: Mapping[str, Any], *, share: int) -> RolloutWorker:
    """This process's worker for the pipeline that `settings` name: `pipeline`, a YAML, and `run_dir`.

    It is made once. Raises ConfigError for a YAML that cannot be read or does not train.
    """
    pipeline, run_dir = settings.get("pipeline"), settings.get("run_dir")
    if not pipeline or not run_dir:
        raise ConfigError(
            "actor_rollout_ref.rollout.custom.uni_agent: needs `pipeline`, the path of a pipeline's YAML, and `run_dir`"
        )
    with _LOCK:
        if str(pipeline) not in _WORKERS:
            _WORKERS[str(pipeline)] = RolloutWorker.build(
                load_pipeline(Path(str(pipeline))), _recorder(Path(str(run_dir))), share=share
            )
        return _WORKERS[str(pipeline)]


def load_pipeline(path: Path) -> PipelineConfig:
    """The pipeline in a YAML file. Raises ConfigError."""
    from uni_agent.config.load import load_config
    from uni_agent.pipeline import PipelineConfig

    return load_config(PipelineConfig, path).config


def _recorder(run_dir: Path) -> Recorder:
    from uni_agent.training.record import RolloutJournal

    return RolloutJournal(run_dir / "journal")
