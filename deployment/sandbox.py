"""One started sandbox: the few things that a rollout does with it, over SWE-ReX's interface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from swerex.deployment.abstract import AbstractDeployment


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What one command in the shell session gave.

    `output` is stdout and stderr as text that encodes to strict UTF-8 (undecodable bytes as `\\xNN`). `exit_code` is 124
    for a time-out. `session`: `kept` (same shell, cwd and environment), `restarted` (the shell ended or had to be
    killed; cwd and environment are fresh) or `dead` (no shell can be had). `omitted` counts bytes that were cut from the
    middle because the output passed the sandbox's cap.
    """

    output: str
    exit_code: int
    timed_out: bool = False
    session: Literal["kept", "restarted", "dead"] = "kept"
    omitted: int = 0
    seconds: float = 0.0


class Sandbox:
    """A started deployment with one default shell session, and byte-exact files.

    Works over any SWE-ReX deployment. Every method has a deadline and raises SandboxLostError when the sandbox is gone.
    """

    def __init__(self, deployment: AbstractDeployment, *, workdir: str | None = None) -> None:
        self.deployment = deployment
        self.workdir = workdir

    async def open(self, *, env: dict[str, str] | None = None, startup_source: list[str] | None = None) -> None:
        """Open the shell session, with `env` exported and the working directory entered."""
        raise NotImplementedError

    async def run(self, command: str, *, timeout: float) -> CommandResult:
        """Run `command` in the session. Never raises for what the command does, only for a lost sandbox."""
        raise NotImplementedError

    async def execute(
        self,
        command: str | list[str],
        *,
        timeout: float,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
    ) -> CommandResult:
        """Run `command` (a bash text, or argv) outside the session, stdin closed; `env` is added to the environment."""
        raise NotImplementedError

    async def read_bytes(self, path: str, *, timeout: float = 60.0) -> bytes:
        """The exact bytes of a file. Raises FileNotFoundError, IsADirectoryError, PermissionError."""
        raise NotImplementedError

    async def write_bytes(self, path: str, data: bytes, *, mode: int | None = None, timeout: float = 60.0) -> None:
        """Write exact bytes, parents made; `path` may be relative to the working directory."""
        raise NotImplementedError

    async def write_tree(self, target: str, archive: bytes, *, timeout: float = 300.0) -> None:
        """Unpack a tar archive (bytes) at `target`, which is made when missing. One round trip where possible."""
        raise NotImplementedError

    async def is_alive(self, *, timeout: float = 10.0) -> bool:
        """Whether the sandbox answers."""
        raise NotImplementedError

    async def stop(self, *, timeout: float = 60.0) -> None:
        """Tear the sandbox down; idempotent, never raises for a sandbox that is gone already."""
        raise NotImplementedError
