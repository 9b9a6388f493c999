"""The default runner: the pipeline's own agent, sandbox and reward, with a gateway's session as its model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uni_agent.config.load import from_data
from uni_agent.errors import ConfigError
from uni_agent.model.config import OpenAIModelConfig
from uni_agent.model.openai_compatible import OpenAICompatibleChatModel
from uni_agent.pipeline import PipelineConfig, RunConfig
from uni_agent.runtime.rollout import Attempt, RolloutParts
from uni_agent.store.records import RolloutRecord
from uni_agent.training.config import TrainConfig
from uni_agent.training.failures import fate_of
from uni_agent.training.framework.config import CUSTOM
from uni_agent.training.framework.session import RunnerResult, RunnerSession
from uni_agent.training.outcome import episode_numbers, reward_info
from uni_agent.training.pipelines import load_pipeline
from uni_agent.training.samples import Sample
from uni_agent.types import ExitReason, Turn

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from uni_agent.store.run import RolloutState
    from uni_agent.training.record import JournalLog, RolloutJournal

_log = logging.getLogger(__name__)

_RETRIES = 5


async def run_task(session: RunnerSession, *, pipeline: str | None = None, report_reward: bool = False) -> RunnerResult:
    """Work the task of the session's row as the pipeline says, through the session's address.

    `pipeline` is the YAML; None: `rollout.custom.uni_agent.pipeline`. `report_reward` posts the reward to the session
    as well. The result has the exit reason, reward and trust of our own attempt; its failures are data, not raised.

    Raises ConfigError without a pipeline and for overrides that do not fit, DataError for a row without a task.
    """
    path = pipeline or session.run.get("pipeline")
    if not path:
        raise ConfigError("run_task needs a pipeline: runner_kwargs.pipeline, or rollout.custom.uni_agent.pipeline")
    shared = _pipeline(str(path))
    task = session.task
    config = shared.for_task(task)
    model = SessionModel(session, config)
    key = _sample(session, shared).key(task.id)
    log = _Log(_open_log(session, shared))
    parts = RolloutParts(model, _starting(shared.run.start_concurrency))
    attempt = Attempt(key, session.attempt, task, config, parts, log)
    attempt.masks = _masks(session, shared, config)
    try:
        record, chains = await attempt.run()
    except asyncio.CancelledError:
        log.finished(*attempt.record(ExitReason.CANCELLED, "cancelled"))
        raise
    finally:
        await model.close()
    log.finished(record, chains)
    result = result_of(record, log.turns, config)
    if report_reward and result.reward is not None:
        await session.reward(result.reward, result.info)
    return result


class SessionModel(OpenAICompatibleChatModel):
    """The chat model at a session's address, with the session's key. What it samples with is the gateway's to say."""

    def __init__(self, session: RunnerSession, config: PipelineConfig) -> None:
        timeout = getattr(config.model, "timeout", 600.0)
        super().__init__(
            OpenAIModelConfig(
                type="openai_compatible",
                model=session.model,
                base_url=session.openai_base_url,
                token_ids=True,
                timeout=timeout,
                retries=_RETRIES,
            )
        )
        self._key = session.api_key

    @property
    def client(self) -> AsyncOpenAI:
        """The connected client."""
        if self._client is None:
            from openai import AsyncOpenAI

            self._client = AsyncOpenAI(
                api_key=self._key,
                base_url=self.config.base_url,
                max_retries=self.config.retries,
                timeout=self.config.timeout,
            )
        return self._client


def result_of(record: RolloutRecord, turns: Sequence[Turn], config: PipelineConfig) -> RunnerResult:
    """What the record of an attempt is to the framework."""
    reason = record.exit_reason
    reward = record.reward if record.reward is not None and record.reward.trusted else None
    score = reward.score if reward is not None else None
    return RunnerResult(
        reward=None if score is None else float(score),
        exit_reason=reason,
        trusted=reason.trusted,
        masked=config.interaction.mask_abnormal_exit_traj and reason.abnormal,
        error=record.error,
        info=reward_info(record),
        metrics=episode_numbers(record, turns),
        turn_scores=tuple(enumerate(reward.turn_scores)) if reward is not None and score is not None else (),
    )


@cache
def _pipeline(path: str) -> PipelineConfig:
    return load_pipeline(Path(path))


def _run(session: RunnerSession, pipeline: PipelineConfig) -> tuple[TrainConfig | None, RunConfig]:
    """The run's own `train:` and `run:` blocks: `pipeline` may be another one, of this runner (`runner_kwargs`)."""
    path, stated = session.run.get("pipeline"), session.run.get("train")
    main = _pipeline(str(path)) if path else pipeline
    return from_data(TrainConfig, stated, f"{CUSTOM}.uni_agent.train") if stated else main.train, main.run


def _masks(session: RunnerSession, pipeline: PipelineConfig, config: PipelineConfig) -> Callable[[ExitReason], bool]:
    """Whether an ending's tokens are masked, as the framework will decide it; for the run's store.

    `config` is the task's own configuration of `pipeline`.
    """
    train, _ = _run(session, pipeline)
    exits = train.exits if train is not None else {}
    masked = config.interaction.mask_abnormal_exit_traj or session.mask_unfinished

    def masks(reason: ExitReason) -> bool:
        fate = fate_of(reason, exits, masked=masked and reason.abnormal, validation=session.validate)
        return fate != "train"

    return masks


_STARTING: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}


def _starting(limit: int) -> asyncio.Semaphore:
    """The places for starting sandboxes in this process; a semaphore belongs to one event loop."""
    loop = asyncio.get_running_loop()
    for old in [known for known in _STARTING if known.is_closed()]:
        del _STARTING[old]
    return _STARTING.setdefault(loop, asyncio.Semaphore(limit))


def _sample(session: RunnerSession, pipeline: PipelineConfig) -> Sample:
    """Which sample of the run this is: samples are numbered through all of its steps."""
    row = {"uid": session.uid, "global_steps": session.step, "session_id": session.index}
    train, run = _run(session, pipeline)
    return Sample.of(row, train, run, phase="validation" if session.validate else "train")


@dataclass(slots=True)
class _Log:
    """Keeps the turns, and tells the run's journal where there is one."""

    journal: JournalLog | None
    turns: list[Turn] = field(default_factory=list[Turn])

    def state(self, state: RolloutState) -> None:
        """The attempt moves to `state`."""
        if self.journal is not None:
            self.journal.state(state)

    def turn(self, turn: Turn) -> None:
        """A turn ended."""
        self.turns.append(turn)
        if self.journal is not None:
            self.journal.turn(turn)

    def event(self, kind: str, **data: object) -> None:
        """Something worth keeping happened."""
        if self.journal is not None:
            self.journal.event(kind, **data)

    def finished(self, record: RolloutRecord, chains: Any) -> None:
        """The attempt is over."""
        if self.journal is not None:
            self.journal.finished(record, chains)


def _open_log(session: RunnerSession, pipeline: PipelineConfig) -> JournalLog | None:
    folder = session.run.get("run_dir")
    if not folder:
        return None
    sample, task = _sample(session, pipeline), session.task
    return _journal(str(folder)).open_rollout(sample.key(task.id), session.attempt, task, **sample.about())


@cache
def _journal(run_dir: str) -> RolloutJournal:
    from uni_agent.training.record import RolloutJournal

    return RolloutJournal(Path(run_dir) / "journal", source="gateway")
