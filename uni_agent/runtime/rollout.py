"""One attempt at one rollout: sandbox, episode, verdict, teardown."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

from uni_agent.deployment.base import SandboxSpec
from uni_agent.deployment.start import start_sandbox
from uni_agent.errors import ConfigError, SandboxError, UniAgentError, exit_reason_of
from uni_agent.interaction.env import AgentEnv
from uni_agent.interaction.loop import AgentInteraction
from uni_agent.reward.base import AbstractRewardSpec, RewardContext
from uni_agent.reward.grade import grade
from uni_agent.store.records import RolloutRecord
from uni_agent.tokens.accounting import account, masked_copy
from uni_agent.tools.toolset import Toolset
from uni_agent.types import ExitReason, InteractionResult, Message, RewardResult, RolloutKey, Task, Timing, Turn

if TYPE_CHECKING:
    from uni_agent.deployment.sandbox import Sandbox
    from uni_agent.model.base import ChatModel, ChatSession
    from uni_agent.pipeline import PipelineConfig
    from uni_agent.store.run import RolloutState
    from uni_agent.tokens.cache import RolloutCache

_TOKEN_NOTICE = "\n[... {omitted} tokens left out: narrow the command to see them ...]\n"  # noqa: S105 - text, no secret


class RolloutLog(Protocol):
    """Where an attempt reports what happens while it happens. Calls never block."""

    def state(self, state: RolloutState) -> None:
        """The attempt moves to `state` (starting, running, grading)."""
        ...

    def turn(self, turn: Turn) -> None:
        """A turn ended."""
        ...

    def event(self, kind: str, **data: object) -> None:
        """Something worth keeping happened."""
        ...


@dataclass(slots=True)
class RolloutParts:
    """What all attempts of a run share: the model, and the places for starting sandboxes."""

    model: ChatModel
    starting: asyncio.Semaphore
    clock: Callable[[], float] = time.monotonic


@dataclass(slots=True)
class Attempt:
    """One attempt at the rollout `key` of `task`, under the task's own `config`."""

    key: RolloutKey
    number: int
    task: Task
    config: PipelineConfig
    parts: RolloutParts
    log: RolloutLog
    timing: Timing = field(default_factory=Timing)
    masks: Callable[[ExitReason], bool] | None = None
    """Whether an ending's tokens are masked; None: what the ending itself and `interaction` say."""
    session: ChatSession | None = None
    """The conversation, once the model was asked for one."""
    _result: InteractionResult | None = None
    _reward: RewardResult | None = None
    _sandbox: Sandbox | None = None
    _opening: Sequence[Message] = ()

    async def run(self) -> tuple[RolloutRecord, Sequence[RolloutCache]]:
        """Carry out the attempt; its record and its token chains (empty for models without tokens).

        Every fault becomes the record's exit reason, and the sandbox is always torn down. Only cancellation is raised,
        after the teardown. Chains of endings that do not train come back with their mask cleared; their spans still
        tell which tokens were sampled.
        """
        reason, error = ExitReason.UNKNOWN_ERROR, ""
        try:
            result = await self._work()
            reason, error = result.exit_reason, result.error
        except Exception as fault:  # the one place where a fault around an episode becomes data
            reason, error = exit_reason_of(fault), f"{type(fault).__name__}: {fault}"
            self.log.event("fault", error=error, unexpected=not isinstance(fault, UniAgentError))
        finally:
            await self._teardown()
        if self._reward is not None and not self._reward.trusted and reason.trusted:
            reason, error = ExitReason.REWARD_ERROR, self._reward.error
        return self.record(reason, error)

    async def _work(self) -> InteractionResult:
        toolset = Toolset([tool.build() for tool in self.config.tools])
        spec = self.config.reward.build()
        env = await self._start(toolset)
        self.log.state("running")
        # The conversation's name does not hold the attempt: a retried rollout samples as the first one would have.
        model = self.parts.model
        self._opening = self.config.agent.messages(self.task)
        self.session = await model.open(str(self.key), self._opening, toolset.schemas())
        interaction = AgentInteraction(
            self.session,
            env,
            self.config.interaction,
            on_turn=self.log.turn,
            limit_tokens=_token_limit(model, self.config.interaction.observation_token_limit),
            clock=self.parts.clock,
        )
        self._result = result = interaction.result
        try:
            await interaction.run()
        finally:
            self.timing.model, self.timing.tools = result.timing.model, result.timing.tools
        if result.exit_reason.trusted:
            self.log.state("grading")
            await self._grade(spec, env, result)
        return result

    async def _start(self, toolset: Toolset) -> AgentEnv:
        spec = SandboxSpec(
            name=_sandbox_name(self.key, self.number),
            image=self.task.image,
            workdir=self.task.workdir,
            env=self.task.env,
            allow=toolset.endpoints(),
        )
        self.log.state("starting")
        started = self.parts.clock()
        try:
            self._sandbox = await start_sandbox(self.config.deployment, spec, starting=self.parts.starting)
            env = AgentEnv(self._sandbox, toolset, self.config.interaction, clock=self.parts.clock)
            await env.setup(self.task)
        except ConfigError as fault:  # what a task asks and the sandbox cannot give: no fault of the model
            raise SandboxError(str(fault)) from fault
        finally:
            self.timing.start = self.parts.clock() - started
        return env

    async def _grade(self, spec: AbstractRewardSpec, env: AgentEnv, result: InteractionResult) -> None:
        started = self.parts.clock()
        try:
            for _ in range(self.config.run.reward_retries + 1):
                self._reward = await self._verdict(spec, env, result)
                if self._reward.trusted:
                    return
                self.log.event("reward_failed", error=self._reward.error)
        finally:
            self.timing.reward = self.parts.clock() - started

    async def _verdict(self, spec: AbstractRewardSpec, env: AgentEnv, result: InteractionResult) -> RewardResult:
        try:
            patch = await env.snapshot()
        except Exception as fault:  # a tree that the agent left unreadable must not end the run
            return RewardResult.failed(f"the patch cannot be read: {type(fault).__name__}: {fault}")
        sandbox = self._sandbox if spec.needs_sandbox else None
        return await grade(spec, RewardContext(self.task, result, sandbox, patch))

    async def _teardown(self) -> None:
        """Close the session and stop the sandbox, to the end, also while this task is being cancelled."""
        started = self.parts.clock()
        work = asyncio.ensure_future(self._close_all())
        cancelled: asyncio.CancelledError | None = None
        while not work.done():
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError as error:
                cancelled = error
        self.timing.teardown = self.parts.clock() - started
        if cancelled is not None:
            raise cancelled

    async def _close_all(self) -> None:
        if self.session is not None:
            await self._close("session", self.session.close(), 30)
        if self._sandbox is not None:
            await self._close("sandbox", self._sandbox.stop(), 90)

    async def _close(self, what: str, work: Awaitable[None], seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await work
        except Exception as fault:  # reported, never allowed to void a finished episode
            self.log.event("teardown_failed", what=what, error=f"{type(fault).__name__}: {fault}")

    def record(self, reason: ExitReason, error: str) -> tuple[RolloutRecord, Sequence[RolloutCache]]:
        """The record of what was done so far, as ended by `reason`, and its chains.

        Chains that contradict themselves are left out and named in the error: they must neither train nor end the run.
        """
        try:
            return self._accounted(reason, error)
        except ValueError as fault:
            self.log.event("chains_refused", error=str(fault))
            text = f"the token chains cannot be accounted for ({fault}); the episode ended as {reason}: {error}"
            return RolloutRecord(ExitReason.UNKNOWN_ERROR, text, timing=self.timing, opening=tuple(self._opening)), ()

    @property
    def turns(self) -> Sequence[Turn]:
        """The turns that were taken so far."""
        return self._result.turns if self._result else ()

    def masked(self, reason: ExitReason) -> bool:
        """Whether the tokens of an episode that ended by `reason` are not trained."""
        if self.masks is not None:
            return self.masks(reason)
        return not reason.trains or (self.config.interaction.mask_abnormal_exit_traj and reason.abnormal)

    def _accounted(self, reason: ExitReason, error: str) -> tuple[RolloutRecord, Sequence[RolloutCache]]:
        caches = self.session.caches if self.session is not None else ()
        masked = self.masked(reason)
        record = RolloutRecord(
            exit_reason=reason,
            error=error,
            answer=self._result.answer if self._result else "",
            reward=self._reward,
            account=account(caches, masked=masked),
            timing=self.timing,
            turns=len(self._result.turns) if self._result else 0,
            opening=tuple(self._opening),
        )
        return record, [masked_copy(cache, str(reason)) for cache in caches] if masked else caches


def _token_limit(model: ChatModel, limit: int | None) -> Callable[[str], str] | None:
    renderer = getattr(model, "renderer", None)
    if limit is None or renderer is None:
        return None
    return lambda text: renderer.limit(text, limit, _TOKEN_NOTICE)


def _sandbox_name(key: RolloutKey, attempt: int) -> str:
    """A name safe for files and containers, unique for task, sample and attempt however odd the task's id is."""
    safe = re.sub(r"[^A-Za-z0-9_.-]+", "-", key.task_id)[:40].strip("-.") or "task"
    digest = blake2b(str(key).encode(), digest_size=4).hexdigest()
    return f"{safe}-{digest}-{key.sample}-{attempt}"
