"""One started sandbox: the few things that a rollout does with it, over SWE-ReX's interface."""

from __future__ import annotations

import asyncio
import logging
import posixpath
import secrets
import shlex
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from swerex.deployment.abstract import AbstractDeployment
from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    SessionDoesNotExistError,
)
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    CloseBashSessionRequest,
    Command,
    CommandResponse,
    CreateBashSessionRequest,
    Observation,
)

from uni_agent.deployment.aio import finish
from uni_agent.deployment.environment import check_env
from uni_agent.deployment.errors import CommandTimedOut, ShellExited
from uni_agent.deployment.files import BinaryFiles, read_in_chunks, unpack, write_in_chunks
from uni_agent.deployment.output import DEFAULT_MAX_OUTPUT_BYTES, limit_text
from uni_agent.errors import SandboxError, SandboxLostError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_SESSION = "default"
_GRACE = 30.0
"""Seconds beyond a command's own timeout that a runtime gets to report it."""
_SHELL_START = 60.0
_LARGE_COMMAND = 100_000
"""Bytes from which a command travels as a file: the kernel takes 128 KiB for one argument."""
_SUSPECT = (137, 143)
"""Exit codes that a provider may also give for a sandbox that was ended."""

SessionState = Literal["kept", "restarted", "dead"]


@dataclass(frozen=True, slots=True)
class CommandResult:
    r"""What one command in the shell session gave.

    `output` is stdout and stderr as text that encodes to strict UTF-8 (undecodable bytes and NUL as `\xNN`).
    `exit_code` is 124 for a time-out. `session`: `kept` (same shell, cwd and environment), `restarted` (the shell
    ended or had to be killed; cwd and environment are fresh) or `dead` (no shell can be had). `omitted` counts bytes
    that were cut from the middle because the output passed the sandbox's cap; a line in `output` says so where they
    stood.
    """

    output: str
    exit_code: int
    timed_out: bool = False
    session: SessionState = "kept"
    omitted: int = 0
    seconds: float = 0.0


class Sandbox:
    """A started deployment with one default shell session, and byte-exact files.

    Works over any SWE-ReX deployment. Every method has a deadline and raises SandboxLostError when the sandbox is gone.
    `workdir` and `tool_install_dir` are paths inside; `stop_error` says why a stop failed, "" when it did not.
    """

    def __init__(
        self,
        deployment: AbstractDeployment,
        *,
        workdir: str | None = None,
        name: str = "",
        tool_install_dir: str | None = None,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
    ) -> None:
        self.deployment = deployment
        self.name = name
        self.stop_error = ""
        self.on_stopped: Callable[[Sandbox], None] | None = None
        self._workdir = workdir
        self._tool_install_dir = tool_install_dir
        self._max_output_bytes = max_output_bytes
        self._env: dict[str, str] = {}
        self._sources: list[str] = []
        self._stale = False
        self._stopping: asyncio.Task[None] | None = None

    @property
    def workdir(self) -> str | None:
        """Where the shell starts, and what relative paths refer to; None leaves it to the image."""
        return getattr(self.deployment, "workdir", None) or self._workdir

    @property
    def tool_install_dir(self) -> str:
        """Where tool scripts belong in this sandbox."""
        own: str | None = getattr(self.deployment, "tool_install_dir", None)
        return self._tool_install_dir or own or "/opt/uni-agent/bin"

    # ------------------------------------------------------------------------------------------ session

    async def open(self, *, env: dict[str, str] | None = None, startup_source: list[str] | None = None) -> None:
        """Open the shell session: source `startup_source`, enter the working directory, export `env`.

        The same is done after every restart of the shell. Raises SandboxError when it fails, SandboxLostError, and
        ValueError for an `env` that no program could be given.
        """
        self._env, self._sources = dict(env or {}), list(startup_source or [])
        check_env(self._env)
        try:
            await self._open_session()
        except Exception as error:
            raise await self._failure("the shell session cannot be opened", error) from error

    async def run(self, command: str, *, timeout: float) -> CommandResult:
        """Run `command` in the session. Never raises for what the command does, only for a lost sandbox.

        `timeout` in seconds. `timed_out` says that the command was ended by it; its output until then is in the result.
        """
        begin = time.monotonic()
        session: SessionState = "kept"
        if self._stale:  # a cancelled call took the shell with it, or none could be had the last time
            session = await self._restart()
            if session == "dead":
                return CommandResult("", 1, session="dead", seconds=time.monotonic() - begin)
        result = await self._run(command, timeout, session)
        output, omitted = limit_text(result.output, self._max_output_bytes + 256)
        return CommandResult(
            output,
            result.exit_code,
            result.timed_out,
            result.session,
            result.omitted + omitted,
            time.monotonic() - begin,
        )

    async def _run(self, command: str, timeout: float, session: SessionState) -> CommandResult:
        try:
            observed = await self._act(command, timeout)
        except asyncio.CancelledError:
            self._stale = True
            raise
        except SessionDoesNotExistError:  # nothing was run yet
            if session == "kept" and (session := await self._restart()) == "restarted":
                return await self._run(command, timeout, session)
            return CommandResult("", 1, session="dead")
        except Exception as error:
            return await self._explain(error, session)
        code = observed.exit_code
        await self._check_ended(code)
        if code is None or code < 0:  # some providers report a time-out as -1
            return CommandResult(observed.output, 124, True, _worse(session, await self._settle()))
        return CommandResult(observed.output, code, session=session, omitted=getattr(observed, "omitted", 0))

    async def _explain(self, error: Exception, session: SessionState) -> CommandResult:
        """The result of a command that ended in `error`, the session usable again. Raises SandboxLostError."""
        if isinstance(error, CommandTimedOut):
            state: SessionState = "kept" if await self._answers() else await self._restart()
            return CommandResult(error.output, 124, True, _worse(session, state), error.omitted)
        if isinstance(error, ShellExited):
            code = 124 if error.timed_out else error.exit_code
            return CommandResult(error.output, code, error.timed_out, await self._restart(), error.omitted)
        if isinstance(error, BashIncorrectSyntaxError):
            info: dict[str, Any] = error.extra_info
            return CommandResult(str(info.get("bash_stderr") or error), 2, session=session)
        if isinstance(error, TimeoutError):  # SWE-ReX's own, or a runtime that never answered
            return CommandResult("", 124, True, _worse(session, await self._settle()))
        logger.warning("sandbox %s: a command ended in %r", self.name, error)
        return CommandResult(f"{type(error).__name__}: {error}", 1, session=await self._restart())

    async def _settle(self) -> SessionState:
        """What became of a session whose command may still be running: it is interrupted, or the session replaced."""
        return "kept" if await self._recovers() else await self._restart()

    async def _act(self, command: str, timeout: float) -> Observation:
        action = BashAction(command=command, session=_SESSION, timeout=timeout, check="silent")
        async with asyncio.timeout(timeout + _GRACE):
            return await self.deployment.runtime.run_in_session(action)

    async def _check_ended(self, code: int | None) -> None:
        """Raise SandboxLostError when the sandbox ended meanwhile, whatever exit code its provider gave."""
        reason: str | None = getattr(self.deployment.runtime, "lost_reason", None)
        if reason:
            raise SandboxLostError(f"the sandbox is gone: {reason}")
        suspect = code is None or code < 0 or code in _SUSPECT
        if reason is None and suspect and not await self.is_alive():
            raise SandboxLostError(f"the sandbox is gone; its last command ended with {code}")

    async def _answers(self) -> bool:
        """Whether the session takes the next command."""
        nonce = secrets.token_hex(8)
        try:
            observed = await self._act(f"printf '%s\\n' {nonce}", 10.0)
        except Exception:
            logger.debug("sandbox %s: the session does not answer", self.name, exc_info=True)
            return False
        return observed.exit_code == 0 and nonce in observed.output

    async def _recovers(self) -> bool:
        """Whether a session that was left as it is after a time-out can be used once its command is interrupted."""
        try:
            async with asyncio.timeout(_GRACE):
                await self.deployment.runtime.run_in_session(BashInterruptAction(session=_SESSION))
        except Exception:
            logger.debug("sandbox %s: the session cannot be interrupted", self.name, exc_info=True)
            return False
        return await self._answers()

    async def _restart(self) -> SessionState:
        """Replace the session. Raises SandboxLostError when the sandbox is gone."""
        self._stale = True
        if not await self.is_alive(timeout=_GRACE):
            raise SandboxLostError("the sandbox is gone")
        try:
            async with asyncio.timeout(_SHELL_START):
                await self.deployment.runtime.close_session(CloseBashSessionRequest(session=_SESSION))
        except Exception:
            logger.debug("sandbox %s: the old session could not be closed", self.name, exc_info=True)
        try:
            await self._open_session()
        except Exception as error:
            logger.warning("sandbox %s: no new shell: %r", self.name, error)
            if not await self.is_alive(timeout=_GRACE):
                raise SandboxLostError(f"the sandbox is gone: {error}") from error
            return "dead"
        return "restarted"

    async def _open_session(self) -> None:
        request = CreateBashSessionRequest(session=_SESSION, startup_source=self._sources, startup_timeout=_SHELL_START)
        async with asyncio.timeout(_SHELL_START + _GRACE):
            await self.deployment.runtime.create_session(request)
        lines = [f"export {name}={shlex.quote(value)}" for name, value in self._env.items()]
        if self.workdir:
            lines.append(f"mkdir -p {shlex.quote(self.workdir)} && cd {shlex.quote(self.workdir)}")
        if lines:
            observed = await self._act("\n".join(lines), _SHELL_START)
            if observed.exit_code != 0:
                raise SandboxError(f"the shell cannot be set up: {observed.output.strip()[-500:]}")
        self._stale = False

    # ------------------------------------------------------------------------------------------ programs

    async def execute(
        self,
        command: str | list[str],
        *,
        timeout: float,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
    ) -> CommandResult:
        """Run `command` (a bash text, or argv) outside the session, stdin closed; `env` is added to the environment.

        `cwd` None is the working directory. A time-out is a result with exit code 124, as in `run`. Raises
        SandboxLostError, SandboxError when the runtime fails otherwise, and ValueError for an impossible `env`.
        """
        begin = time.monotonic()
        check_env(env or {})
        argv = ["bash", "-c", command] if isinstance(command, str) else list(command)
        if isinstance(command, str) and len(command.encode("utf-8", "replace")) > _LARGE_COMMAND:
            script = f"/tmp/.uni-agent-{secrets.token_hex(8)}.sh"  # noqa: S108 - a random name in the sandbox
            await self.write_bytes(script, command.encode("utf-8", "replace"))
            argv = ["bash", "-c", f"exec 9< {script}; rm -f -- {script}; . /dev/fd/9"]
        try:
            response = await self._execute(argv, timeout, cwd or self.workdir, env or {})
        except CommandTimeoutError as error:
            output, cut = limit_text(getattr(error, "output", ""), self._max_output_bytes + 256)
            omitted = cut + getattr(error, "omitted", 0)
            return CommandResult(output, 124, True, omitted=omitted, seconds=time.monotonic() - begin)
        except Exception as error:
            raise await self._failure("a command could not be run", error) from error
        code = response.exit_code
        await self._check_ended(code)
        output, cut = limit_text(response.stdout + response.stderr, self._max_output_bytes + 256)
        omitted = cut + getattr(response, "omitted", 0)
        timed_out = code is None or code < 0
        return CommandResult(
            output,
            124 if timed_out or code is None else code,
            timed_out,
            omitted=omitted,
            seconds=time.monotonic() - begin,
        )

    async def _execute(self, argv: list[str], timeout: float, cwd: str | None, env: dict[str, str]) -> CommandResponse:
        runtime = self.deployment.runtime
        command = Command(command=argv, timeout=timeout, cwd=cwd, env=env, merge_output_streams=True)
        if not isinstance(runtime, BinaryFiles):
            # SWE-ReX's own runtimes replace the environment and leave stdin open.
            wrapped = [
                "bash",
                "-c",
                'exec "$@" </dev/null',
                "bash",
                "env",
                *(f"{k}={v}" for k, v in env.items()),
                *argv,
            ]
            command = command.model_copy(update={"command": wrapped, "env": None})
        async with asyncio.timeout(timeout + _GRACE):
            return await runtime.execute(command)

    # ------------------------------------------------------------------------------------------ files

    async def read_bytes(self, path: str, *, timeout: float = 60.0) -> bytes:
        """The exact bytes of a file. Raises FileNotFoundError, IsADirectoryError, PermissionError."""
        runtime = self.deployment.runtime
        full = self._absolute(path)
        work = runtime.read_bytes(full) if isinstance(runtime, BinaryFiles) else read_in_chunks(self._script, full)
        return await self._transfer(work, f"{path!r} could not be read", timeout)

    async def write_bytes(self, path: str, data: bytes, *, mode: int | None = None, timeout: float = 60.0) -> None:
        """Write exact bytes, parents made; `path` may be relative to the working directory. Raises OSError."""
        runtime = self.deployment.runtime
        full = self._absolute(path)
        if isinstance(runtime, BinaryFiles):
            work = runtime.write_bytes(full, data, mode=mode)
        else:
            work = write_in_chunks(self._script, full, data, mode=mode)
        await self._transfer(work, f"{path!r} could not be written", timeout)

    async def write_tree(self, target: str, archive: bytes, *, timeout: float = 300.0) -> None:
        """Unpack a tar archive (bytes) at `target`, which is made when missing. One round trip where possible."""
        runtime = self.deployment.runtime
        full = self._absolute(target)
        work = (
            runtime.write_tree(full, archive)
            if isinstance(runtime, BinaryFiles)
            else unpack(self._script, full, archive)
        )
        await self._transfer(work, f"an archive could not be unpacked at {target!r}", timeout)

    async def _transfer(self, work: Awaitable[T], what: str, timeout: float) -> T:
        try:
            async with asyncio.timeout(timeout):
                return await work
        except (ConnectionError, TimeoutError) as error:
            raise await self._failure(what, error) from error
        except (OSError, SandboxError):
            raise
        except Exception as error:
            raise await self._failure(what, error) from error

    async def _script(self, text: str) -> tuple[int, str]:
        response = await self._execute(["bash", "-c", text], 120.0, None, {})
        return (-1 if response.exit_code is None else response.exit_code), response.stdout

    def _absolute(self, path: str) -> str:
        return posixpath.join(self.workdir, path) if self.workdir and not path.startswith("/") else path

    # ------------------------------------------------------------------------------------------ life

    async def is_alive(self, *, timeout: float = 10.0) -> bool:
        """Whether the sandbox answers."""
        try:
            async with asyncio.timeout(timeout + 1.0):
                return bool(await self.deployment.is_alive(timeout=timeout))
        except Exception as error:
            logger.debug("sandbox %s does not answer: %r", self.name, error)
            return False

    async def _failure(self, what: str, error: Exception) -> SandboxError:
        if isinstance(error, SandboxError):
            return error
        lost = not await self.is_alive(timeout=_GRACE)
        text = f"{what}: {type(error).__name__}: {error}"
        return SandboxLostError(f"the sandbox is gone; {text}") if lost else SandboxError(text)

    async def stop(self, *, timeout: float = 60.0) -> None:
        """Tear the sandbox down; idempotent, never raises for a sandbox that is gone already.

        A failed stop is tried once more; `stop_error` then says what is left. Runs to its end although cancelled, and
        raises the cancellation afterwards.
        """
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop(timeout), name=f"stop {self.name}")
        await finish(self._stopping)

    async def _stop(self, timeout: float) -> None:
        for _ in range(2):
            try:
                async with asyncio.timeout(timeout):
                    untyped: Any = self.deployment  # SWE-ReX leaves the parameters of `stop` open
                    await untyped.stop()
            except Exception as error:
                self.stop_error = f"{type(error).__name__}: {error}"
                logger.warning("sandbox %s could not be stopped: %s", self.name, self.stop_error)
            else:
                self.stop_error = ""
                break
        if self.on_stopped is not None:
            self.on_stopped(self)


def _worse(first: SessionState, second: SessionState) -> SessionState:
    return first if second == "kept" or first == "dead" else second
