"""A sandbox that is a folder of this machine: real bash, real git."""

import asyncio
import io
import os
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from swerex.deployment.abstract import AbstractDeployment

from uni_agent.deployment.sandbox import CommandResult, Sandbox
from uni_agent.errors import SandboxLostError


class FolderSandbox(Sandbox):
    """Runs commands in a folder, without isolation. `lost` makes every call fail as a vanished sandbox does."""

    def __init__(self, folder: Path) -> None:
        super().__init__(cast("AbstractDeployment", None), workdir=str(folder))
        self.folder = folder
        self.lost = False
        folder.mkdir(parents=True, exist_ok=True)

    def _check(self) -> None:
        if self.lost:
            raise SandboxLostError("the sandbox is gone")

    async def execute(
        self,
        command: str | list[str],
        *,
        timeout: float,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
    ) -> CommandResult:
        self._check()
        argv = ["bash", "-c", command] if isinstance(command, str) else command
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=self.folder / (cwd or "."),
            env={**os.environ, **(env or {})},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        start = time.monotonic()
        try:
            output, _ = await asyncio.wait_for(process.communicate(), timeout)
        except TimeoutError:
            os.killpg(process.pid, 9)
            await process.wait()
            return CommandResult(output="", exit_code=124, timed_out=True, seconds=timeout)
        text = output.decode("utf-8", "backslashreplace")
        return CommandResult(output=text, exit_code=process.returncode or 0, seconds=time.monotonic() - start)

    async def read_bytes(self, path: str, *, timeout: float = 60.0) -> bytes:
        self._check()
        return (self.folder / path).read_bytes()

    async def write_bytes(self, path: str, data: bytes, *, mode: int | None = None, timeout: float = 60.0) -> None:
        self._check()
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        if mode is not None:
            target.chmod(mode)

    async def write_tree(self, target: str, archive: bytes, *, timeout: float = 300.0) -> None:
        self._check()
        folder = self.folder / target
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(archive)) as source:
            source.extractall(folder, filter="tar")


@pytest.fixture
def sandbox(tmp_path: Path) -> FolderSandbox:
    return FolderSandbox(tmp_path / "box")


@pytest.fixture
def make_sandbox(tmp_path: Path) -> Callable[[str], FolderSandbox]:
    return lambda name: FolderSandbox(tmp_path / name)
