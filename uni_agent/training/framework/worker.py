"""The Ray actor behind the adapter: gateways, sessions, and the statuses that verl's replay buffer waits for."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from uni_agent.deployment.aio import finish
from uni_agent.errors import ConfigError
from uni_agent.gateway.config import SamplingOverrides
from uni_agent.gateway.ray import GatewayManager
from uni_agent.training.failures import FailurePolicy
from uni_agent.training.framework.attempt import Attempts, Wanted
from uni_agent.training.framework.config import FrameworkSettings
from uni_agent.training.framework.dispatch import load_runner
from uni_agent.training.framework.logs import SessionLogs
from uni_agent.training.framework.parts import VerlGatewayFactory, build_renderer, gateway_config
from uni_agent.training.framework.queue import Partition, Queue, Status
from uni_agent.training.framework.rollout import Delivered, Rollouts, Slots
from uni_agent.training.framework.scoring import Scorer

_log = logging.getLogger(__name__)

_KEPT_ERRORS = 100
_GATEWAY_CPUS = 0.1


@dataclass(slots=True)
class _Batch:
    """How the rollouts of one call of the trainer go."""

    left: int
    rollouts: int = 0
    failed: int = 0
    first: str = ""


@dataclass(slots=True)
class _State:
    tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    errors: deque[str] = field(default_factory=lambda: deque[str](maxlen=_KEPT_ERRORS))
    fatal: str = ""
    prompts: dict[str, int] = field(default_factory=dict[str, int])


class FrameworkWorker:
    """Runs the sessions of all prompts. `client` is verl's LLMServerClient, `reward_workers` its RewardLoopWorkers.

    A subclass named by `framework_class_fqn` may override `start`, `prompt` and what is public here. All of it runs on
    the actor's event loop; TransferQueue must have been started before (`tq.init(config)` in the trainer).
    """

    def __init__(self, settings: FrameworkSettings, client: Any, reward_workers: Sequence[Any] = ()) -> None:
        self.settings = settings
        self.queue = Queue.join()
        self._client = client
        self._reward_workers = list(reward_workers) if settings.framework.use_reward_loop_worker else []
        self._manager: GatewayManager | None = None
        self._rollouts: Rollouts | None = None
        self._state = _State()

    async def start(self) -> list[str]:
        """Start the gateways; their addresses. Raises ConfigError for runners, models and parsers that do not fit."""
        settings = self.settings
        for runner in settings.framework.agent_runners.values():
            load_runner(runner.runner_fqn)
        manager = GatewayManager(
            VerlGatewayFactory(self._client, settings),
            settings.framework.gateway_count,
            config=gateway_config(settings),
            num_cpus=_GATEWAY_CPUS,
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.queue.prepare())
                built = group.create_task(asyncio.to_thread(build_renderer, settings))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # who starts this looks for a ConfigError
        renderer = built.result()
        await asyncio.to_thread(manager.start)
        self._manager = manager
        scorer = Scorer(self._reward_workers, settings.reward_retries)
        self._rollouts = Rollouts(
            settings,
            Attempts(settings, manager, scorer, SessionLogs(settings.log_dir)),
            renderer,
            FailurePolicy(settings.failures, settings.retries),
            Slots.of(settings),
        )
        return manager.urls

    async def submit(self, rows: Sequence[Mapping[str, Any]], validate: bool) -> str:
        """Begin with `rows` and return at once: "", or why an earlier batch failed as a whole (said once).

        Raises ConfigError for a row that no runner is for; then nothing is begun.
        """
        fatal, self._state.fatal = self._state.fatal, ""
        if fatal:
            return fatal
        for row in rows:
            self.settings.framework.runner(row.get("agent_name"))
        batch = _Batch(len(rows))
        for row in rows:
            task = asyncio.create_task(self._prompt(row, validate, batch), name=f"prompt {row['uid']}")
            self._state.tasks.add(task)
            task.add_done_callback(self._state.tasks.discard)
        return ""

    async def check(self) -> str:
        """Why a batch failed as a whole, as `submit` says it; "" when none did."""
        fatal, self._state.fatal = self._state.fatal, ""
        return fatal

    async def stats(self) -> dict[str, Any]:
        """What happened so far: `failures` (counts by what was done), `exits`, `prompts` by status, `errors`."""
        rollouts = self._rollouts
        return {
            "failures": dict(rollouts.policy.counts) if rollouts is not None else {},
            "exits": dict(rollouts.exits) if rollouts is not None else {},
            "prompts": dict(self._state.prompts),
            "errors": list(self._state.errors),
            "under_way": len(self._state.tasks),
        }

    async def shutdown(self) -> None:
        """Give up what is under way, mark its prompts as failed, and stop the gateways. Idempotent."""
        tasks = list(self._state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._manager is not None:
            await asyncio.to_thread(self._manager.shutdown)

    async def ended(self) -> None:
        """Never returns: a call that fails when this process dies is how the adapter learns of it."""
        await asyncio.Event().wait()

    async def prompt(self, row: Mapping[str, Any], validate: bool) -> Sequence[Delivered | BaseException]:
        """All sessions of one prompt, settled and written; an exception stands for a session that could not be."""
        count, sampling = self._asked(row, validate)
        sessions = [self._session(Wanted(row, i, validate, sampling)) for i in range(count)]
        return await asyncio.gather(*sessions, return_exceptions=True)

    def _asked(self, row: Mapping[str, Any], validate: bool) -> tuple[int, SamplingOverrides]:
        """How many sessions, and how they are sampled, as verl's own worker reads it."""
        settings = self.settings
        sampling = settings.val_sampling if validate else settings.sampling
        count = int(row.get("__rollout_n__", settings.val_n if validate else settings.n))
        if not validate and not row.get("__do_sample__", True):
            sampling = sampling.model_copy(update={"temperature": 0.0, "top_p": 1.0, "top_k": -1})
        return count, sampling

    async def _session(self, wanted: Wanted) -> Delivered:
        assert self._rollouts is not None  # noqa: S101 - `start` came first
        delivered = await self._rollouts.run(wanted)
        partition = _partition(wanted.validate)
        keys = [key for key, _, _ in delivered.records]
        try:
            await self.queue.records(partition, delivered.records)
        except BaseException:
            await finish(self.queue.clear(partition, keys))
            raise
        return delivered

    async def _prompt(self, row: Mapping[str, Any], validate: bool, batch: _Batch) -> None:
        """One prompt from `running` to its final status, which is written whatever happens."""
        uid, status, found = row["uid"], "failure", list[Delivered | BaseException]()
        try:
            await self._mark(uid, validate, "running")
            found = list(await self.prompt(row, validate))
            status = self._status(uid, found)
        except Exception as error:
            _log.exception("prompt %s failed", uid)
            found = [error]
        finally:
            # After all of its sessions: none may write once verl has cleared the group.
            self._settle(batch, found)
            await finish(self._mark(uid, validate, status))

    async def _mark(self, uid: str, validate: bool, status: Status) -> None:
        try:
            await self.queue.status(uid, _partition(validate), status)
        except Exception as error:
            text = f"prompt {uid}: its status {status} cannot be written to TransferQueue: {error}"
            _log.exception(text)
            self._state.errors.append(text)
            if status != "running":
                self._state.fatal = text
        else:
            if status != "running":
                self._state.prompts[status] = self._state.prompts.get(status, 0) + 1

    def _status(self, uid: str, found: Sequence[Delivered | BaseException]) -> Status:
        """As verl means it: `failure` when a session could not be settled, or nothing is there to train on.

        Sessions that `train.failures` left out do not make a group fail: it goes without them.
        """
        raised = [one for one in found if isinstance(one, BaseException)]
        for error in raised:
            _log.error("a session of prompt %s failed", uid, exc_info=error)
        delivered = any(isinstance(one, Delivered) and one.records for one in found)
        return "failure" if raised or not delivered else "finished"

    def _settle(self, batch: _Batch, found: Sequence[Delivered | BaseException]) -> None:
        for one in found:
            failure = one.failure if isinstance(one, Delivered) else f"{type(one).__name__}: {one}"
            batch.rollouts += 1
            if failure:
                batch.failed += 1
                batch.first = batch.first or failure
                self._state.errors.append(failure)
        batch.left -= 1
        if batch.left == 0 and batch.rollouts and batch.failed == batch.rollouts:
            self._state.fatal = f"all {batch.rollouts} rollouts of a batch failed; the first: {batch.first}"
            _log.error(self._state.fatal)


def worker_class(settings: FrameworkSettings) -> Callable[..., FrameworkWorker]:
    """The worker's class that the settings name. Raises ConfigError for one that is no FrameworkWorker."""
    fqn = settings.framework.framework_class_fqn
    if fqn is None:
        return FrameworkWorker
    found: Any = load_runner(fqn)
    if not (isinstance(found, type) and issubclass(found, FrameworkWorker)):
        raise ConfigError(
            f"agent_framework.framework_class_fqn: {fqn} is no subclass of {__name__}.FrameworkWorker; "
            "leave it out for the framework itself"
        )
    return found


def _partition(validate: bool) -> Partition:
    return "val" if validate else "train"
