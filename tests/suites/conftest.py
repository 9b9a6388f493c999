"""Sandboxes that are folders of this machine: real bash, real git, no isolation, so that tests can look inside."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from uni_agent.deployment import HostConfig, SandboxRegistry, SandboxSpec, start_sandbox

MakeSandbox = Callable[[str], Awaitable[Any]]


@pytest.fixture
async def make_sandbox(tmp_path: Path) -> AsyncGenerator[MakeSandbox]:
    """Starts a sandbox whose attribute `folder` is its working directory; all are stopped afterwards."""
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
    return await make_sandbox("box")
