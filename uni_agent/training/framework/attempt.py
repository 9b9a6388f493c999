"""One attempt at one session: opened at a gateway, worked by a runner, ended, scored."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from uni_agent.deployment.aio import finish
from uni_agent.errors import AgentError, ConfigError, UniAgentError, exit_reason_of
from uni_agent.gateway.config import SamplingOverrides
from uni_agent.gateway.errors import GatewayError
from uni_agent.gateway.ray import GatewayLostError, GatewayManager
from uni_agent.gateway.rollout_gateway import GatewaySession
from uni_agent.gateway.sessions import FinishedSession
from uni_agent.training.framework.config import FrameworkSettings, RunnerConfig
from uni_agent.training.framework.dispatch import dispatch
from uni_agent.training.framework.logs import SessionLogs
from uni_agent.training.framework.parts import MODEL
from uni_agent.training.framework.records import selected, task_id
from uni_agent.training.framework.scoring import Score, Scorer, unwrapped
from uni_agent.training.framework.session import RunnerResult, RunnerSession
from uni_agent.trajectory.trajectory import Trajectory
from uni_agent.types import ExitReason

_log = logging.getLogger(__name__)

_SPARE_SECONDS = 600.0
_END_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """Session `index` of a row, in a batch that validates or trains."""

    row: Mapping[str, Any]
    index: int
    validate: bool
    sampling: SamplingOverrides

    @property
    def uid(self) -> str:
        """The prompt."""
        return self.row["uid"]

    @property
    def step(self) -> int:
        """The trainer's step that asked."""
        return self.row["global_steps"]

    def __str__(self) -> str:
        """As logs name it."""
        return f"step {self.step}, prompt {self.uid}, session {self.index}"


@dataclass(slots=True)
class Ended:
    """How an attempt ended. `score` is None when it failed; then `failure` says why, with a traceback in `trace`.

    `trajectories` are as the gateway gave them, `chosen` those that train.
    """

    result: RunnerResult = field(default_factory=RunnerResult)
    session_id: str = ""
    trajectories: Sequence[Trajectory] = ()
    chosen: Sequence[Trajectory] = ()
    score: Score | None = None
    failure: str = ""
    trace: str = ""
    hopeless: bool = False
    accounting: Mapping[str, Any] = field(default_factory=dict[str, Any])
    posted: Mapping[str, Any] | None = None
    seconds: float = 0.0

    def failed(self, error: Exception) -> None:
        """Keep why the attempt failed."""
        reason = exit_reason_of(error)
        if isinstance(error, GatewayError | GatewayLostError):
            reason = ExitReason.MODEL_ERROR
        elif isinstance(error, _Untrusted):
            reason = self.result.exit_reason if not self.result.exit_reason.trusted else ExitReason.REWARD_ERROR
        self.score = None
        self.failure = f"{type(error).__name__}: {error}"
        self.trace = "".join(traceback.format_exception(error))
        self.hopeless = isinstance(error, ConfigError)
        self.result = RunnerResult(
            exit_reason=reason if not reason.trusted else ExitReason.UNKNOWN_ERROR,
            trusted=False,
            error=self.failure,
            info=self.result.info,
            metrics=self.result.metrics,
        )

    def about(self) -> dict[str, Any]:
        """For the log, as JSON data."""
        return {
            "session_id": self.session_id,
            "exit_reason": str(self.result.exit_reason),
            "error": self.failure or self.result.error,
            "traceback": self.trace,
            "reward": None if self.score is None else self.score.value,
            "reward_source": None if self.score is None else self.score.source,
            "trusted": self.score is not None and self.score.trusted,
            "info": dict(self.result.info),
            "posted": self.posted,
            "metrics": dict(self.result.metrics),
            "accounting": dict(self.accounting),
            "trained": [trajectory.id for trajectory in self.chosen],
            "seconds": self.seconds,
        }


@dataclass(slots=True)
class Attempts:
    """What attempts share."""

    settings: FrameworkSettings
    manager: GatewayManager
    scorer: Scorer
    logs: SessionLogs

    async def attempt(self, wanted: Wanted, runner: RunnerConfig, *, attempt: int, sample: int) -> Ended:
        """Carry one attempt out. Raises only cancellation, after the session was given up."""
        ended, started = Ended(), time.monotonic()
        folder = await self.logs.folder(wanted.step, wanted.uid, wanted.index, attempt)
        try:
            opened = await self._open(wanted, runner, attempt)
            ended.session_id = opened.session_id
            session = self._session(opened, wanted, runner, attempt, sample, folder)
            await self._worked(ended, runner, session)
            ended.score = await self._scored(ended, runner, wanted)
        except Exception as error:  # the one place where a fault around a session becomes data
            ended.failed(error)
        finally:
            ended.seconds = time.monotonic() - started
            if ended.session_id:
                await finish(self._released(ended, runner))
        await self.logs.write(folder, ended.about(), ended.trajectories)
        return ended

    async def _open(self, wanted: Wanted, runner: RunnerConfig, attempt: int) -> GatewaySession:
        return await self.manager.acreate_session(
            sampling=wanted.sampling.model_dump(exclude_none=True),
            ttl=runner.session_timeout + _SPARE_SECONDS,
            metadata={
                "uid": wanted.uid,
                "session": wanted.index,
                "attempt": attempt,
                "step": wanted.step,
                "task_id": task_id(wanted.row),
                "validate": wanted.validate,
            },
        )

    def _session(
        self, opened: GatewaySession, wanted: Wanted, runner: RunnerConfig, attempt: int, sample: int, folder: str
    ) -> RunnerSession:
        return RunnerSession(
            session_id=opened.session_id,
            base_url=opened.base_url,
            api_key=opened.api_key,
            reward_key=opened.reward_key,
            model=MODEL,
            row=wanted.row,
            uid=wanted.uid,
            index=wanted.index,
            sample=sample,
            attempt=attempt,
            step=wanted.step,
            validate=wanted.validate,
            deadline=time.time() + runner.session_timeout,
            run=self.settings.run,
            tool_config_path=runner.tool_config_path,
            log_dir=folder,
            mask_unfinished=self.settings.framework.mask_unfinished_episode,
        )

    async def _worked(self, ended: Ended, runner: RunnerConfig, session: RunnerSession) -> None:
        """Run the agent and end the session. Raises what made the runner fail."""
        try:
            ended.result = await dispatch(runner, session)
        except UniAgentError as error:
            reason = exit_reason_of(error)
            if not reason.trusted:
                raise
            # A full window or a turn that took too long says something about the model: the session is scored.
            ended.result = RunnerResult(exit_reason=reason, error=f"{type(error).__name__}: {error}")
        finished = await self.manager.afinalize(session.session_id)
        self._keep(ended, finished)

    def _keep(self, ended: Ended, finished: FinishedSession) -> None:
        ended.trajectories = finished.trajectories
        ended.accounting = finished.accounting
        ended.posted = finished.reward_info

    async def _scored(self, ended: Ended, runner: RunnerConfig, wanted: Wanted) -> Score:
        """The session's score, and which trajectories have it. Raises what makes the session say nothing."""
        result = ended.result
        ended.chosen = selected(ended.trajectories, self.settings, runner.trajectory_selection)
        if not result.trusted or not result.exit_reason.trusted:
            raise _Untrusted(result.error or f"the runner says that {result.exit_reason} is not to be trusted")
        if not ended.chosen and not result.exit_reason.abnormal:
            raise AgentError("the runner ended without a turn of the model")
        if not ended.chosen:  # a prompt that fills the window: it says so each time, and there is nothing to train
            return Score(0.0, {}, "none")
        told = unwrapped(ended.posted or {})
        if told.get("trusted") is False:
            raise _Untrusted("the posted reward says that it is not to be trusted")
        return await self.scorer.score(result, ended.posted, ended.chosen, wanted.row)

    async def _released(self, ended: Ended, runner: RunnerConfig) -> None:
        """Give the session up where it goes on, and free it. Never raises."""
        try:
            async with asyncio.timeout(_END_SECONDS):
                if not ended.accounting:
                    given_up = await self.manager.aabort(ended.session_id, ended.failure[:200] or "cancelled")
                    self._keep(ended, given_up)
                    ended.chosen = selected(ended.trajectories, self.settings, runner.trajectory_selection)
                await self.manager.aforget(ended.session_id)
        except Exception as error:  # a gateway that died holds nothing any more
            _log.debug("session %s cannot be freed: %s", ended.session_id, error)


class _Untrusted(UniAgentError):
    """A session whose runner says that it says nothing about the model."""
