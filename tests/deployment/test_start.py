"""Starting and stopping: nothing leaks, whatever fails or is cancelled in between."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from pathlib import Path

import pytest

from uni_agent.deployment import DummyConfig, HostConfig, Sandbox, SandboxRegistry, SandboxSpec, start_sandbox
from uni_agent.errors import ConfigError, SandboxStartError

SPEC = SandboxSpec(name="task-0")


async def no_sleep(_seconds: float) -> None:
    await asyncio.sleep(0)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0.05)


async def test_sbx_16_cancelled_while_creating(registry: SandboxRegistry) -> None:
    config = DummyConfig(start_delay=1.0)
    task = asyncio.ensure_future(start_sandbox(config, SPEC, registry=registry))
    await asyncio.sleep(0.5)
    assert config.backend.creating == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (config.backend.live, config.backend.creating, len(registry)) == (0, 0, 0)


async def test_sbx_16_cancelled_again_while_cleaning_up(registry: SandboxRegistry) -> None:
    config = DummyConfig(start_delay=0.6)
    task = asyncio.ensure_future(start_sandbox(config, SPEC, registry=registry))
    await asyncio.sleep(0.2)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.05)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (config.backend.live, len(registry)) == (0, 0)


async def test_sbx_16_a_failed_delete_is_tried_once_more(registry: SandboxRegistry) -> None:
    config = DummyConfig(fail_stops=1)
    sandbox = await start_sandbox(config, SPEC, registry=registry)
    await sandbox.stop()
    assert (config.backend.live, config.backend.stops, registry.failed) == (0, 2, [])
    await sandbox.stop()
    assert config.backend.stops == 2


async def test_sbx_16_what_cannot_be_deleted_is_listed() -> None:
    config, registry = DummyConfig(fail_stops=9), SandboxRegistry()
    sandbox = await start_sandbox(config, SPEC, registry=registry)
    await sandbox.stop()
    assert len(registry) == 0 and registry.failed == ["task-0-1: ConnectionError: 503: this stop was told to fail"]


async def test_sbx_16_an_interrupt_with_five_alive(registry: SandboxRegistry) -> None:
    config = DummyConfig(replies={"work": {"seconds": 60}})  # type: ignore[dict-item]

    async def rollout(index: int) -> None:
        sandbox = await start_sandbox(config, SandboxSpec(name=f"task-{index}"), registry=registry)
        try:
            await sandbox.open()
            await sandbox.run("work", timeout=120)
        finally:
            await sandbox.stop()

    run = asyncio.gather(*(rollout(i) for i in range(5)))
    await asyncio.sleep(0.2)
    assert config.backend.live == 5
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await settle()
    assert (config.backend.live, len(registry)) == (0, 0)


async def test_stop_runs_to_its_end_under_cancellation() -> None:
    config = DummyConfig(start_delay=0.5)
    deployment = config.build(SPEC)
    starting = asyncio.ensure_future(deployment.start())
    await asyncio.sleep(0.1)
    stopping = asyncio.ensure_future(Sandbox(deployment).stop())
    await asyncio.sleep(0.1)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    await starting
    assert config.backend.live == 0


async def test_host_start_cancelled_at_any_time_leaves_nothing(isolation: str, tmp_path: Path) -> None:
    config = HostConfig.model_validate({"isolation": isolation, "root": tmp_path / "boxes"})
    registry = SandboxRegistry()
    for delay in (0, 0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.04, 0.08, 0.3):
        # Eight at once, so that many are caught in the middle of bubblewrap's own start.
        tasks = [asyncio.ensure_future(start_sandbox(config, SPEC, registry=registry)) for _ in range(8)]
        await asyncio.sleep(delay)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await (await task).stop()
        assert len(registry) == 0 and list((tmp_path / "boxes").glob("*")) == []
    await asyncio.sleep(0.2)
    assert _holders_of(tmp_path / "boxes") == []


def _holders_of(folder: Path) -> list[str]:
    """Processes with a descriptor on a file of `folder`, as every sandbox that is starting has on its log."""
    found: list[str] = []
    for link in Path("/proc").glob("[0-9]*/fd/2"):
        with contextlib.suppress(OSError):
            if str(link.readlink()).startswith(str(folder)):
                found.append(str(link))
    return found


async def test_attempts_have_names_of_their_own_and_end_with_the_cause(registry: SandboxRegistry) -> None:
    config = DummyConfig(fail_starts=2)
    sandbox = await start_sandbox(config, SPEC, registry=registry, sleep=no_sleep)
    assert (sandbox.name, config.backend.starts, config.backend.live) == ("task-0-3", 3, 1)
    failing = DummyConfig(fail_starts=9, startup_attempts=2)
    with pytest.raises(SandboxStartError, match=r"in 2 attempts.*told to fail") as caught:
        await start_sandbox(failing, SPEC, registry=registry, sleep=no_sleep)
    assert caught.value.__cause__ is not None and failing.backend.starts == 2


async def test_a_start_past_its_deadline_is_stopped_and_tried_again(registry: SandboxRegistry) -> None:
    config = DummyConfig(start_delay=0.5, startup_timeout=0.1, startup_attempts=2)
    with pytest.raises(SandboxStartError, match=r"not up after 0\.1 s"):
        await start_sandbox(config, SPEC, registry=registry, sleep=no_sleep)
    assert (config.backend.starts, config.backend.live, config.backend.creating) == (2, 0, 0)


async def test_a_configuration_error_is_not_tried_again(registry: SandboxRegistry) -> None:
    config = HostConfig(isolation="none")
    with pytest.raises(ConfigError, match="absolute path"):
        await start_sandbox(config, SandboxSpec(name="x", workdir="relative"), registry=registry)
    with pytest.raises(ConfigError, match="cannot be the name"):
        await start_sandbox(config, SandboxSpec(name="x", env={"A=B": "1"}), registry=registry)
    with pytest.raises(ConfigError, match="no_such"):
        await start_sandbox(DummyConfig(responder="json:no_such"), SPEC, registry=registry)


@pytest.mark.parametrize("limited", [True, False])
async def test_sbx_17_a_burst_of_starts_passes_a_provider_that_takes_eight(
    limited: bool, registry: SandboxRegistry
) -> None:
    config = DummyConfig(max_creating=8, start_delay=0.02)
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(seconds / 50)

    starting = asyncio.Semaphore(8) if limited else None
    sandboxes = await asyncio.gather(
        *(
            start_sandbox(
                config,
                SandboxSpec(name=f"t{i}"),
                registry=registry,
                starting=starting,
                sleep=sleep,
                rng=random.Random(i),
            )
            for i in range(64)
        )
    )
    assert len(sandboxes) == 64 == config.backend.live and config.backend.peak_creating <= 8
    assert len(set(waits)) == len(waits) and (
        not waits if limited else len(waits) > 8
    )  # jitter: no two waits are equal


async def test_sbx_17_waiting_in_the_queue_is_not_start_time_and_a_slow_one_blocks_nobody(
    registry: SandboxRegistry,
) -> None:
    slow = DummyConfig(start_delay=1.5)
    quick = DummyConfig(start_delay=0.05, startup_timeout=0.8)
    starting = asyncio.Semaphore(2)
    begin = time.monotonic()
    first = asyncio.ensure_future(start_sandbox(slow, SPEC, registry=registry, starting=starting))
    await asyncio.sleep(0.01)
    # Twenty in a row need longer than the time-out of each.
    specs = [SandboxSpec(name=f"q{i}") for i in range(20)]
    await asyncio.gather(*(start_sandbox(quick, s, registry=registry, starting=starting) for s in specs))
    assert (quick.backend.starts == 20 and not first.done()) or time.monotonic() - begin > 1.4
    await first


async def test_dummies_are_cheap(registry: SandboxRegistry) -> None:
    config = DummyConfig(default="out")
    begin = time.monotonic()
    for index in range(300):
        sandbox = await start_sandbox(config, SandboxSpec(name=str(index)), registry=registry)
        await sandbox.open()
        assert (await sandbox.run("x", timeout=1)).output == "out"
        await sandbox.stop()
    assert time.monotonic() - begin < 10 and config.backend.live == 0
