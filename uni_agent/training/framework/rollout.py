"""One session of one prompt, from its first attempt to what is written of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from uni_agent.tokens.base import Renderer
from uni_agent.training.failures import FailurePolicy, Tries, fate_of
from uni_agent.training.framework.attempt import Attempts, Ended, Wanted
from uni_agent.training.framework.config import FrameworkSettings
from uni_agent.training.framework.queue import Record
from uni_agent.training.framework.records import Scored, reported, session_records, stand_in
from uni_agent.training.outcome import INLINE_TOKENS, token_numbers
from uni_agent.types import TokenAccount

_log = logging.getLogger(__name__)

_LONGEST_PAUSE = 30.0


@dataclass(frozen=True, slots=True)
class Delivered:
    """What a session comes to: its records, none when it is left out, and why infrastructure ended it ("": did not)."""

    records: list[Record]
    failure: str = ""


@dataclass(slots=True)
class Slots:
    """How many sessions may be under way: of each runner, and of all."""

    every: asyncio.Semaphore | None
    runners: Mapping[str, asyncio.Semaphore | None]

    @classmethod
    def of(cls, settings: FrameworkSettings) -> Slots:
        """The limits that the settings state; 0 is none."""
        limits = {name: runner.max_concurrent_sessions for name, runner in settings.framework.agent_runners.items()}
        return cls(_semaphore(settings.concurrency), {name: _semaphore(limit) for name, limit in limits.items()})

    @contextlib.asynccontextmanager
    async def one(self, runner: str) -> AsyncGenerator[None]:
        """Hold a place. The runner's own comes first: who waits for it must not keep others waiting."""
        async with self.runners[runner] or contextlib.nullcontext(), self.every or contextlib.nullcontext():
            yield


def _semaphore(limit: int) -> asyncio.Semaphore | None:
    return asyncio.Semaphore(limit) if limit else None


@dataclass(slots=True)
class Rollouts:
    """What all sessions of a worker share. `pause` is how long the first retry waits, in seconds."""

    settings: FrameworkSettings
    attempts: Attempts
    renderer: Renderer
    policy: FailurePolicy
    slots: Slots
    pause: float = 0.5
    exits: dict[str, int] = field(default_factory=dict[str, int])

    async def run(self, wanted: Wanted) -> Delivered:
        """Carry a session out, with the attempts that it may have. Raises ConfigError, ModelError for its records."""
        name, runner = self.settings.framework.runner(wanted.row.get("agent_name"))
        tries = Tries()
        sample = wanted.index
        while True:
            async with self.slots.one(name):
                ended = await self.attempts.attempt(wanted, runner, attempt=tries.attempts, sample=sample)
            tries.attempts += 1
            if ended.score is not None:
                return await self._delivered(wanted, ended, tries)
            decision = self.policy.judge(tries, hopeless=ended.hopeless, validate=wanted.validate)
            if decision in ("drop", "mask"):
                return await self._failed(wanted, ended, tries, decision == "mask")
            _log.warning("%s, attempt %d: %s; %s", wanted, tries.attempts, ended.failure, decision)
            if decision == "replace":
                # Numbers of other samples lie behind those of the group, so that none is used twice.
                sample = wanted.index + tries.replaced * max(self.settings.n, 1)
            pause = min(_LONGEST_PAUSE, self.pause * 2 ** min(tries.attempts - 1, 10))
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - jitter

    async def _delivered(self, wanted: Wanted, ended: Ended, tries: Tries) -> Delivered:
        score, result = ended.score, ended.result
        assert score is not None  # noqa: S101 - the caller's condition
        self._count(ended)
        if not ended.chosen:
            _log.warning("%s: %s before the first turn; nothing of it trains", wanted, result.exit_reason)
            return Delivered([])
        unfinished = result.exit_reason.abnormal or score.info.get("finished") is False
        masked = result.masked or (self.settings.framework.mask_unfinished_episode and unfinished)
        fate = fate_of(result.exit_reason, self.settings.exits, masked=masked, validation=wanted.validate)
        if fate == "drop":
            self.policy.counts["dropped_by_exit"] += 1
            return Delivered([])
        if not score.trusted:
            self.policy.counts["unscored"] += 1
            if wanted.validate:  # a row there would count as a score of 0
                return Delivered([])
        masked = fate == "mask" or not score.trusted
        return await self._records(
            wanted,
            Scored(
                trajectories=ended.chosen,
                wholes=ended.trajectories,
                result=result,
                score=score.value,
                info=reported(score.info, validate=wanted.validate),
                trusted=score.trusted,
                masked=masked,
                attempts=tries.attempts,
                numbers=self._numbers(wanted, ended, tries, masked=masked),
                seconds=_seconds(ended),
            ),
        )

    async def _failed(self, wanted: Wanted, ended: Ended, tries: Tries, masked: bool) -> Delivered:
        self._count(ended)
        _log.error(
            "%s is left out after %d attempts (%s): %s\n%s",
            wanted,
            tries.attempts,
            ended.result.exit_reason,
            ended.failure,
            ended.trace,
        )
        if not masked:
            return Delivered([], ended.failure)
        chosen = ended.chosen or [stand_in(ended.session_id or "none", wanted.row, self.settings, self.renderer)]
        scored = Scored(
            trajectories=chosen,
            wholes=ended.trajectories,
            result=ended.result,
            score=0.0,
            info={},
            trusted=False,
            masked=True,
            attempts=tries.attempts,
            numbers=self._numbers(wanted, ended, tries, masked=True),
            seconds=_seconds(ended),
        )
        return replace(await self._records(wanted, scored), failure=ended.failure)

    async def _records(self, wanted: Wanted, scored: Scored) -> Delivered:
        made = partial(session_records, scored, wanted.row, wanted.index, self.settings, self.renderer)
        if sum(len(t.prompt_ids) + len(t.response_ids) for t in scored.trajectories) < INLINE_TOKENS:
            return Delivered(made())
        return Delivered(await asyncio.to_thread(made))  # each chain is rendered once more, and this loop is everyone's

    def _numbers(self, wanted: Wanted, ended: Ended, tries: Tries, *, masked: bool) -> dict[str, float]:
        numbers = session_numbers(ended, tries, masked=masked)
        if wanted.validate:  # the trainer's metrics are those of what it trains on
            return numbers
        return {**numbers, **{f"failures_{name}": count for name, count in self.policy.take().items()}}

    def _count(self, ended: Ended) -> None:
        reason = str(ended.result.exit_reason)
        self.exits[reason] = self.exits.get(reason, 0) + 1


def session_numbers(ended: Ended, tries: Tries, *, masked: bool) -> dict[str, float]:
    """The numbers of one session for the trainer's metrics: the runner's own, and the gateway's account.

    Preemptions are not among them: a gateway keeps nothing of what its engine said beside the tokens.
    """
    account = ended.accounting
    sampled, trained, cleared = (int(account.get(name, 0)) for name in ("sampled", "trained", "masked"))
    return {
        "turns": float(account.get("turns", 0)),
        "seconds_session": ended.seconds,
        **{name: float(value) for name, value in ended.result.metrics.items()},
        **token_numbers(TokenAccount(sampled, trained, cleared, dict(account.get("dropped") or {})), masked=masked),
        "attempts": float(tries.attempts),
        "replaced": float(tries.replaced),
    }


def _seconds(ended: Ended) -> dict[str, float]:
    """Seconds as verl's AgentLoopMetrics has them."""
    told = ended.result.metrics
    score = ended.score.seconds if ended.score is not None else 0.0
    return {
        "generate_sequences": float(told.get("seconds_model", 0.0)),
        "tool_calls": float(told.get("seconds_tools", 0.0)),
        "compute_score": float(told.get("seconds_reward", 0.0)) + score,
    }
