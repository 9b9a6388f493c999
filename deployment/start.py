"""Bringing a sandbox up, with a deadline and attempts, so that nothing is left behind; the list of what lives."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from swerex.deployment.abstract import AbstractDeployment

from uni_agent.deployment.aio import finish
from uni_agent.deployment.base import SandboxSpec
from uni_agent.deployment.errors import ProviderBusyError
from uni_agent.deployment.sandbox import Sandbox
from uni_agent.errors import ConfigError, SandboxStartError

logger = logging.getLogger(__name__)

_FIRST_BACKOFF = 0.5
_LONGEST_BACKOFF = 20.0
_BUSY_BUDGET = 900.0
"""Seconds that a start goes on asking a provider that refuses for now; such refusals are not attempts."""


class DeployPart(Protocol):
    """What is needed of a member of `DeployConfig`."""

    @property
    def startup_timeout(self) -> float:
        """Seconds for one attempt."""
        ...

    @property
    def startup_attempts(self) -> int:
        """How many attempts there are."""
        ...

    @property
    def tool_install_dir(self) -> str | None:
        """Where tool scripts are installed; None leaves it to the deployment."""
        ...

    def build(self, spec: SandboxSpec) -> AbstractDeployment:
        """A deployment that is not started yet."""
        ...


class SandboxRegistry:
    """Every sandbox that exists or may exist; `failed` names those that could not be deleted, for the run's report."""

    def __init__(self) -> None:
        self._live: set[Sandbox] = set()
        self.failed: list[str] = []

    def __len__(self) -> int:
        return len(self._live)

    def add(self, sandbox: Sandbox) -> None:
        """Take note of a sandbox before its start: half-started ones cost money too."""
        self._live.add(sandbox)
        sandbox.on_stopped = self._on_stopped

    def _on_stopped(self, sandbox: Sandbox) -> None:
        self._live.discard(sandbox)
        if sandbox.stop_error:
            self.failed.append(f"{sandbox.name}: {sandbox.stop_error}")

    async def stop_all(self, *, timeout: float = 60.0) -> None:
        """Stop what is left, all at once, each within `timeout` seconds."""
        await finish(asyncio.gather(*(sandbox.stop(timeout=timeout) for sandbox in tuple(self._live))))


async def start_sandbox(
    config: DeployPart,
    spec: SandboxSpec,
    *,
    registry: SandboxRegistry | None = None,
    starting: asyncio.Semaphore | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    rng: random.Random | None = None,
) -> Sandbox:
    """A started sandbox, its session not opened yet.

    Each attempt has a name of its own (`<spec.name>-<n>`), `config.startup_timeout` seconds, and is stopped when it
    fails or is cancelled, before anything else happens. `starting` limits how many sandboxes come up at once; the
    wait for it and for a provider that refuses for now does not count. Raises SandboxStartError with the last cause;
    ConfigError at once.
    """
    rng = rng or random.Random()  # noqa: S311 - jitter
    loop = asyncio.get_running_loop()
    give_up = loop.time() + _BUSY_BUDGET
    failures, refusals = 0, 0
    while True:
        named = dataclasses.replace(spec, name=f"{spec.name}-{failures + refusals + 1}")
        try:
            async with starting or contextlib.nullcontext():
                return await _attempt(config, named, registry)
        except ConfigError:
            raise
        except ProviderBusyError as error:
            refusals += 1
            cause: Exception = error
            if loop.time() > give_up:
                raise SandboxStartError(f"no sandbox within {_BUSY_BUDGET:g} s: {error}") from error
        except Exception as error:
            failures += 1
            cause = error
            if failures >= config.startup_attempts:
                raise SandboxStartError(
                    f"the sandbox did not start in {failures} attempts; the last: {_text(error)}"
                ) from error
        backoff = min(_LONGEST_BACKOFF, _FIRST_BACKOFF * 2 ** min(failures + refusals - 1, 10))
        logger.warning("sandbox %s did not start, trying again: %s", named.name, _text(cause))
        await sleep(backoff * rng.uniform(0.5, 1.5))


async def _attempt(config: DeployPart, spec: SandboxSpec, registry: SandboxRegistry | None) -> Sandbox:
    deployment = config.build(spec)
    sandbox = Sandbox(deployment, workdir=spec.workdir, name=spec.name, tool_install_dir=config.tool_install_dir)
    if registry is not None:
        registry.add(sandbox)
    try:
        async with asyncio.timeout(config.startup_timeout):
            await _start(deployment)
    except BaseException as error:
        await sandbox.stop()
        if isinstance(error, TimeoutError):
            raise TimeoutError(f"it was not up after {config.startup_timeout:g} s") from error
        raise
    return sandbox


def _start(deployment: AbstractDeployment) -> Awaitable[None]:
    untyped: Any = deployment  # SWE-ReX leaves the parameters of `start` open
    return untyped.start()


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
