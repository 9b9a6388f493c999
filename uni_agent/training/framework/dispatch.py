"""Where a runner runs: in the worker itself, or in a Ray task of its own. Cancellation reaches both."""

from __future__ import annotations

import asyncio
import inspect
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from uni_agent.config.base import load_object
from uni_agent.deployment.aio import finish
from uni_agent.errors import AgentError, ConfigError, ModelError, RewardError, SandboxError, UniAgentError, boundary
from uni_agent.optional import load
from uni_agent.training.framework.config import RunnerConfig
from uni_agent.training.framework.session import RunnerResult, RunnerSession

_CANCEL_SECONDS = 30.0
_TURN_SECONDS = 0.5


def load_runner(fqn: str) -> Callable[..., Any]:
    """The callable or class that `package.module.name` (or `package.module:name`) names. Raises ConfigError."""
    reference = fqn if ":" in fqn else ":".join(fqn.rsplit(".", 1))
    if ":" not in reference:
        raise ConfigError(f"runner_fqn {fqn!r}: expected package.module.name")
    found = load_object(reference)
    if not callable(found):
        raise ConfigError(f"runner_fqn {fqn!r} names {type(found).__name__}, which cannot be called")
    return found


async def call_runner(fqn: str, kwargs: Mapping[str, Any], session: RunnerSession) -> RunnerResult:
    """`runner(session, **kwargs)`, or `Class(**kwargs)(session)`, awaited where it gives something to await.

    Raises errors of this package; whatever else a runner raises is an AgentError.
    """
    runner = load_runner(fqn)
    with boundary(AgentError, f"runner {fqn}"):
        value: Any = runner(**kwargs)(session) if isinstance(runner, type) else runner(session, **kwargs)
        if inspect.isawaitable(value):
            value = await value
        return RunnerResult.of(value)


async def dispatch(runner: RunnerConfig, session: RunnerSession) -> RunnerResult:
    """Run `runner` until its session's deadline. Raises errors of this package, AgentError past the deadline."""
    left = session.deadline - time.time()
    work = _in_task if runner.dispatch_mode == "ray_task" else call_runner
    try:
        async with asyncio.timeout(left):
            return await work(runner.runner_fqn, runner.runner_kwargs, session)
    except TimeoutError as error:
        raise AgentError(
            f"runner {runner.runner_fqn}: ran past its session's deadline (session_timeout: {runner.session_timeout:g})"
        ) from error


@dataclass(frozen=True, slots=True)
class Fault:
    """An error that crosses processes as plain data: its class may not be importable on the other side."""

    kind: str
    message: str
    trace: str


_KINDS: dict[str, type[UniAgentError]] = {
    cls.__name__: cls for cls in (ConfigError, ModelError, SandboxError, RewardError, AgentError)
}


def _work(fqn: str, kwargs: Mapping[str, Any], session: RunnerSession) -> RunnerResult | Fault:
    """The body of a task. Ray's cancellation interrupts `asyncio.run`, which cancels the runner: it can clean up."""
    try:
        return asyncio.run(_awake(call_runner(fqn, kwargs, session)))
    except UniAgentError as error:
        kind = next((name for name, cls in _KINDS.items() if isinstance(error, cls)), "AgentError")
        return Fault(kind, str(error), traceback.format_exc())


async def _awake(work: Coroutine[Any, Any, RunnerResult]) -> RunnerResult:
    """Await `work` while the event loop turns: Ray's interruption sends no signal that would wake a loop that waits."""
    loop = asyncio.get_running_loop()

    def turn() -> None:
        nonlocal timer
        timer = loop.call_later(_TURN_SECONDS, turn)

    timer = loop.call_later(_TURN_SECONDS, turn)
    try:
        return await work
    finally:
        timer.cancel()


@cache
def _remote() -> Any:
    ray = load("ray", extra="train", needed_for="dispatch_mode: ray_task")
    # A runner that crashed must not be run again on the same session: its turns are there already.
    return ray.remote(num_cpus=0, max_retries=0)(_work)


async def _in_task(fqn: str, kwargs: Mapping[str, Any], session: RunnerSession) -> RunnerResult:
    ray = load("ray", extra="train", needed_for="dispatch_mode: ray_task")
    ref = _remote().remote(fqn, dict(kwargs), session)
    answered = asyncio.ensure_future(_settled(ref))
    try:
        answer = await asyncio.shield(answered)
    except asyncio.CancelledError:
        answered.add_done_callback(_consume)  # what a cancelled task ends with is nobody's business any more
        await finish(_cancelled(ray, ref, answered))
        raise
    except ray.exceptions.RayError as error:
        raise AgentError(f"runner {fqn}: its task died: {str(error).strip().splitlines()[-1]}") from error
    if isinstance(answer, Fault):
        raise _KINDS[answer.kind](f"{answer.message}\n{answer.trace}")
    return answer


async def _settled(ref: Any) -> Any:
    return await ref


def _consume(answered: asyncio.Future[Any]) -> None:
    if not answered.cancelled():
        answered.exception()


async def _cancelled(ray: Any, ref: Any, answered: asyncio.Future[Any]) -> None:
    """Stop a task: asked first, so that it can clean up, then killed."""
    for force in (False, True):
        ray.cancel(ref, force=force)
        done, _ = await asyncio.wait({answered}, timeout=_CANCEL_SECONDS)
        if done:
            return
