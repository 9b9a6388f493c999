"""Started sandboxes of every kind, stopped after the test whatever happens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from uni_agent.deployment import HostConfig, Sandbox, SandboxRegistry, SandboxSpec, start_sandbox

Start = Callable[..., Awaitable[Sandbox]]


@pytest.fixture(params=["bwrap", "none"])
def isolation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def registry() -> AsyncIterator[SandboxRegistry]:
    registry = SandboxRegistry()
    yield registry
    await registry.stop_all()
    assert not registry.failed


@pytest.fixture
def start(registry: SandboxRegistry, tmp_path: Path) -> Start:
    """Start an opened host sandbox: `start("bwrap", spec={...}, env={...}, **config)`."""

    async def begin(
        isolation: str, *, spec: dict[str, Any] | None = None, opened: dict[str, Any] | None = None, **config: Any
    ) -> Sandbox:
        full = HostConfig.model_validate({"isolation": isolation, "root": tmp_path / "boxes", **config})
        sandbox = await start_sandbox(full, SandboxSpec(name="test", **(spec or {})), registry=registry)
        await sandbox.open(**(opened or {}))
        return sandbox

    return begin


@pytest.fixture
async def sandbox(isolation: str, start: Start) -> Sandbox:
    return await start(isolation)
