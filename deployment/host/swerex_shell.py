"""SWE-ReX's own terminal session on this machine, for comparison: everything but sessions is HostRuntime's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pexpect
from swerex.exceptions import SessionDoesNotExistError, SessionExistsError
from swerex.runtime.abstract import (
    Action,
    CloseBashSessionResponse,
    CloseResponse,
    CloseSessionRequest,
    CloseSessionResponse,
    CreateBashSessionRequest,
    CreateBashSessionResponse,
    CreateSessionRequest,
    CreateSessionResponse,
    Observation,
)
from swerex.runtime.local import BashSession

from uni_agent.deployment.host.launch import Launcher
from uni_agent.deployment.host.runtime import HostRuntime


class _CleanBashSession(BashSession):
    """SWE-ReX starts bash with all of this process's environment, keys included: here it gets only its own."""

    def __init__(self, request: CreateBashSessionRequest, env: Mapping[str, str], workdir: str) -> None:
        super().__init__(request)
        self._own_env = dict(env)
        self._workdir = workdir

    async def start(self) -> CreateBashSessionResponse:
        spawn: Any = pexpect.spawn
        shell: Any = spawn(
            "/usr/bin/env bash --norc",
            encoding="utf-8",
            codec_errors="backslashreplace",
            echo=False,
            cwd=self._workdir,
            env={**self._own_env, "PS1": self._ps1, "PS2": "", "PS0": ""},
        )
        self._shell = shell
        await asyncio.sleep(0.3)
        sources = [f"source {path}" for path in self.request.startup_source]
        shell.sendline(" ; ".join([*sources, *self._get_reset_commands()]))
        shell.expect(self._ps1, timeout=self.request.startup_timeout)
        return CreateBashSessionResponse(output=str(shell.before))


class SwerexShellRuntime(HostRuntime):
    """HostRuntime with SWE-ReX's sessions. Each call runs in a thread, as they block: others go on meanwhile."""

    def __init__(self, launcher: Launcher, *, workdir: str, env: Mapping[str, str], max_output_bytes: int) -> None:
        super().__init__(launcher, workdir=workdir, env=env, max_output_bytes=max_output_bytes)
        self._terminals: dict[str, _CleanBashSession] = {}

    async def create_session(self, request: CreateSessionRequest) -> CreateSessionResponse:
        """Open a terminal session. Raises SessionExistsError."""
        if request.session in self._terminals:
            raise SessionExistsError(f"session {request.session!r} already exists")
        session = _CleanBashSession(request, self._env, self.workdir)
        response = await asyncio.to_thread(_run, session.start())
        self._terminals[request.session] = session
        return response

    async def run_in_session(self, action: Action) -> Observation:
        """Run a command as SWE-ReX does. Raises its exceptions, and pexpect's when the shell ends."""
        session = self._terminals.get(action.session)
        if session is None:
            raise SessionDoesNotExistError(f"session {action.session!r} does not exist")
        return await asyncio.to_thread(_run, session.run(action))

    async def close_session(self, request: CloseSessionRequest) -> CloseSessionResponse:
        """Close the terminal. Raises SessionDoesNotExistError."""
        session = self._terminals.pop(request.session, None)
        if session is None:
            raise SessionDoesNotExistError(f"session {request.session!r} does not exist")
        await asyncio.to_thread(_run, session.close())
        return CloseBashSessionResponse()

    async def close(self) -> CloseResponse:
        """Close every terminal; idempotent."""
        terminals, self._terminals = self._terminals, {}
        for session in terminals.values():
            await asyncio.to_thread(_run, session.close())
        return await super().close()


def _run(work: Any) -> Any:
    return asyncio.run(work)
