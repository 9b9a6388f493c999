"""SWE-ReX's own session behind the same configuration."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.deployment.conftest import Start


async def test_swerex_sessions_run_and_leak_nothing(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-LEAKED")
    sandbox = await start("none", shell="swerex", opened={"env": {"GIVEN": "1"}})
    result = await sandbox.run("echo $GIVEN; basename $PWD; env", timeout=60)
    assert result.output.splitlines()[:2] == ["1", "work"] and "LEAKED" not in result.output
    assert (await sandbox.run("false", timeout=60)).exit_code == 1
    timed_out = await sandbox.run("sleep 60", timeout=1)
    assert timed_out.timed_out and timed_out.exit_code == 124
    assert (await sandbox.run("echo ok", timeout=60)).output.strip() == "ok"
    assert (await sandbox.run("exit 3", timeout=60)).session == "restarted"
    assert (await sandbox.run("echo $GIVEN", timeout=60)).output.strip() == "1"


async def test_sessions_do_not_block_the_loop(start: Start) -> None:
    first, second = await start("none", shell="swerex"), await start("none", shell="swerex")
    begin = time.monotonic()
    await asyncio.gather(first.run("sleep 3", timeout=60), second.run("sleep 3", timeout=60))
    assert time.monotonic() - begin < 5.9
