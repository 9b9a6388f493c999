"""What every test may use, and the rule that nothing skips where everything must be there."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from uni_agent.deployment import HostConfig, SandboxRegistry, SandboxSpec, start_sandbox

MakeSandbox = Callable[[str], Awaitable[Any]]

# A process keeps the first token that its Ray sees: one for all of its clusters, whichever test starts the first.
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

REQUIRE_ALL = os.environ.get("UNI_AGENT_REQUIRE_ALL") == "1"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under UNI_AGENT_REQUIRE_ALL=1 a skip is a failure: a check that silently does not run is none."""
    del item, call
    report = yield
    if REQUIRE_ALL and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, but nothing may skip here: {report.longrepr}"
    return report


ONE_WORKER = {
    "tests/engine/real/": "a server",
    "tests/training/test_runs.py": "a trainer",
    "tests/training/test_evaluation.py": "a trainer",
    "tests/training/test_learning.py": "a trainer",
    "tests/training/framework/test_rollouts.py": "a trainer",
    "tests/training/algorithms/test_trainer.py": "a trainer",
}
"""Tests that share a server that is dear to start, or a cluster each: no two of a kind at once."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Under `-n` the tests of one kind in ONE_WORKER run on one worker; all others go wherever there is room."""
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((kind for start, kind in ONE_WORKER.items() if nodeid.startswith(start)), nodeid)

    return Scheduling(config, log)


@pytest.fixture
async def make_sandbox(tmp_path: Path) -> AsyncGenerator[MakeSandbox]:
    """Starts sandboxes that are folders of this machine: real bash, real git, no isolation, so that tests look inside.

    `await make_sandbox(name)` gives one whose attribute `folder` is its working directory; all are stopped afterwards.
    """
    registry = SandboxRegistry()
    config = HostConfig(type="host", isolation="none", root=tmp_path, env=["TMPDIR"])

    async def make(name: str) -> Any:
        sandbox: Any = await start_sandbox(config, SandboxSpec(name=name), registry=registry)
        sandbox.folder = Path(sandbox.workdir)
        return sandbox

    yield make
    await registry.stop_all()


@pytest.fixture
async def sandbox(make_sandbox: MakeSandbox) -> Any:
    """One sandbox of `make_sandbox`."""
    return await make_sandbox("box")
