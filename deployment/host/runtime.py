"""SWE-ReX's runtime interface over the programs and files of one host sandbox."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from swerex.exceptions import (
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
)
from swerex.runtime.abstract import (
    AbstractRuntime,
    Action,
    BashAction,
    BashObservation,
    CloseBashSessionResponse,
    CloseResponse,
    CloseSessionRequest,
    CloseSessionResponse,
    Command,
    CommandResponse,
    CreateBashSessionResponse,
    CreateSessionRequest,
    CreateSessionResponse,
    IsAliveResponse,
    Observation,
    ReadFileRequest,
    ReadFileResponse,
    UploadRequest,
    UploadResponse,
    WriteFileRequest,
    WriteFileResponse,
)

from uni_agent.deployment.aio import PipeReader, finish
from uni_agent.deployment.errors import CommandTimedOut
from uni_agent.deployment.host.launch import Launcher, check_regular, open_shell
from uni_agent.deployment.output import DEFAULT_MAX_OUTPUT_BYTES, HeadTail
from uni_agent.deployment.processes import kill_tree
from uni_agent.deployment.shell import BASH_ARGV, PipeShell

logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 1 << 30
"""Larger files are not read into this process: a sandbox could offer one of any size."""


class CappedObservation(BashObservation):
    """SWE-ReX's observation, with the bytes that were cut from the middle of `output`."""

    omitted: int = 0


class CappedResponse(CommandResponse):
    """SWE-ReX's response, with the bytes that were cut from the middle of both streams together."""

    omitted: int = 0


@dataclass(frozen=True, slots=True)
class _Finished:
    stdout: HeadTail
    stderr: HeadTail
    exit_code: int


class HostRuntime(AbstractRuntime):
    """Sessions, programs and files of one sandbox. Also offers BinaryFiles.

    When the agent has killed the launcher of its own sandbox, the next session or program starts the sandbox again over
    the same folders: files are kept, processes are not.
    """

    def __init__(
        self,
        launcher: Launcher,
        *,
        workdir: str,
        env: Mapping[str, str],
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
    ) -> None:
        self.logger = logger
        self.workdir = workdir
        self._launcher = launcher
        self._env = dict(env)
        self._max_output_bytes = max_output_bytes
        self._sessions: dict[str, PipeShell] = {}
        self._restarting = asyncio.Lock()
        self._closed = False

    @property
    def lost_reason(self) -> str:
        """Why the sandbox is gone for good; "" while it can be used."""
        return "the runtime is closed" if self._closed else ""

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Whether a program can be run."""
        if self._closed:
            return IsAliveResponse(is_alive=False, message=self.lost_reason)
        try:
            response = await self.execute(Command(command=["true"], timeout=timeout or 30.0))
        except (OSError, CommandTimedOut) as error:
            return IsAliveResponse(is_alive=False, message=str(error))
        return IsAliveResponse(is_alive=response.exit_code == 0)

    # ------------------------------------------------------------------------------------------ sessions

    async def create_session(self, request: CreateSessionRequest) -> CreateSessionResponse:
        """Open a shell. Raises SessionExistsError, ShellExited, CommandTimedOut."""
        known = self._sessions.get(request.session)
        if known is not None and not known.closed:
            raise SessionExistsError(f"session {request.session!r} already exists")
        await self._revive()
        # swe-rex's default of one second is too short for a busy machine.
        timeout = max(30.0, request.startup_timeout)
        process = await open_shell(self._launcher, BASH_ARGV, env=self._env, cwd=self.workdir)
        shell = PipeShell(process, max_output_bytes=self._max_output_bytes)
        await shell.start(timeout=timeout)
        self._sessions[request.session] = shell
        output = ""
        for path in request.startup_source:
            result = await shell.run(f"source {_quoted_path(path)}", timeout=timeout)
            output += result.output
        return CreateBashSessionResponse(output=output)

    async def run_in_session(self, action: Action) -> Observation:
        """Run a command. Raises CommandTimedOut, ShellExited, SessionDoesNotExistError, NonZeroExitCodeError."""
        shell = self._sessions.get(action.session)
        if shell is None or shell.closed:
            raise SessionDoesNotExistError(f"session {action.session!r} does not exist")
        if not isinstance(action, BashAction):
            await shell.interrupt()
            return BashObservation(exit_code=0)
        if action.is_interactive_command or action.is_interactive_quit or action.expect:
            raise ValueError("a shell over pipes has no terminal for interactive programs (shell: swerex has one)")
        result = await shell.run(action.command, timeout=action.timeout)
        if action.check == "raise" and result.exit_code != 0:
            raise NonZeroExitCodeError(_failure(action.error_msg, result.exit_code, result.output))
        code = None if action.check == "ignore" else result.exit_code
        return CappedObservation(output=result.output, exit_code=code, omitted=result.omitted)

    async def close_session(self, request: CloseSessionRequest) -> CloseSessionResponse:
        """Kill the shell. Raises SessionDoesNotExistError."""
        shell = self._sessions.pop(request.session, None)
        if shell is None:
            raise SessionDoesNotExistError(f"session {request.session!r} does not exist")
        await finish(shell.close())
        return CloseBashSessionResponse()

    async def _revive(self) -> None:
        async with self._restarting:
            if self._launcher.ended and not self._closed:
                self.logger.warning("%s; starting it again", self._launcher.ended)
                await self._launcher.stop()
                async with asyncio.timeout(60.0):
                    await self._launcher.start()

    # ------------------------------------------------------------------------------------------ programs

    async def execute(self, command: Command) -> CommandResponse:
        """Run a program with stdin closed.

        `env` is added to the sandbox's environment, `cwd` is relative to the working directory. A program that does not
        exist gives exit code 127. Raises CommandTimedOut with all of its processes killed.
        """
        text = command.command
        argv = ["bash", "-c", text if isinstance(text, str) else " ".join(text)] if command.shell else _argv(text)
        done = await self._collect(
            argv,
            cwd=self._absolute(command.cwd or "."),
            env=command.env or {},
            timeout=command.timeout,
            merge=command.merge_output_streams,
        )
        if command.check and done.exit_code != 0:
            raise NonZeroExitCodeError(
                _failure(command.error_msg, done.exit_code, done.stdout.text() + done.stderr.text())
            )
        return CappedResponse(
            stdout=done.stdout.text(),
            stderr=done.stderr.text(),
            exit_code=done.exit_code,
            omitted=done.stdout.omitted + done.stderr.omitted,
        )

    async def _collect(
        self,
        argv: list[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        timeout: float | None,
        merge: bool = True,
        stdin: int | None = None,
    ) -> _Finished:
        await self._revive()
        out, err = HeadTail(self._max_output_bytes), HeadTail(self._max_output_bytes)
        own_stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) if stdin is None else stdin
        out_read, out_write = os.pipe()
        err_read, err_write = (-1, out_write) if merge else os.pipe()
        readers = [PipeReader(out_read, out.feed)] + ([] if merge else [PipeReader(err_read, err.feed)])
        try:
            for reader in readers:
                os.set_blocking(reader.fd, False)
                reader.begin()
            try:
                child = await self._launcher.spawn(
                    argv, env={**self._env, **env}, cwd=cwd, stdin=own_stdin, stdout=out_write, stderr=err_write
                )
            finally:
                for fd in {own_stdin, out_write, err_write} - {stdin}:
                    os.close(fd)
            try:
                async with asyncio.timeout(timeout):
                    code = await child.wait()
            except TimeoutError:
                kill_tree(child.pid)
                async with asyncio.timeout(30.0):
                    await child.wait()
                for reader in readers:
                    reader.drain()
                message = f"the command timed out after {timeout:g} s"
                raise CommandTimedOut(
                    message, output=out.text() + err.text(), omitted=out.omitted + err.omitted
                ) from None
            except asyncio.CancelledError:
                kill_tree(child.pid)
                raise
            for reader in readers:
                reader.drain()
        except (ConnectionError, TimeoutError):
            raise
        except OSError as error:  # what a shell would say of a program that cannot be run
            (out if merge else err).feed(f"{argv[0]}: {error.strerror or error}\n".encode("utf-8", "replace"))
            return _Finished(out, err, 127 if isinstance(error, FileNotFoundError) else 126)
        finally:
            for reader in readers:
                reader.pause()
                os.close(reader.fd)
        return _Finished(out, err, code)

    # ------------------------------------------------------------------------------------------ files

    def _absolute(self, path: str) -> str:
        return os.path.normpath(os.path.join(self.workdir, path)) if not path.startswith("/") else path  # noqa: PTH118

    async def read_bytes(self, path: str) -> bytes:
        """The bytes of a regular file of at most MAX_FILE_BYTES. Raises OSError."""
        await self._revive()
        fd = await self._launcher.open_file(self._absolute(path), write=False)
        size = check_regular(fd, path)
        if size > MAX_FILE_BYTES:
            os.close(fd)
            raise OSError(27, "File too large", path)
        return await asyncio.to_thread(_read_all, fd, path)

    async def write_bytes(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        """Write exactly `data`, parents made. Raises OSError."""
        await self._revive()
        fd = await self._launcher.open_file(self._absolute(path), write=True, mode=mode)
        check_regular(fd, path)
        await asyncio.to_thread(_write_all, fd, data)

    async def write_tree(self, target: str, archive: bytes) -> None:
        """Unpack a tar archive at `target`. Raises OSError with what tar said."""
        memory = os.memfd_create("archive", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(memory), "wb") as file:
                file.write(archive)
            os.lseek(memory, 0, os.SEEK_SET)
            script = 'mkdir -p -- "$1" && exec tar -xpf - --no-same-owner -C "$1"'
            argv = ["bash", "-c", script, "bash", self._absolute(target)]
            done = await self._collect(argv, cwd=self.workdir, env={}, timeout=None, stdin=memory)
        finally:
            os.close(memory)
        if done.exit_code != 0:
            raise OSError(5, f"tar ended with {done.exit_code}: {done.stdout.text().strip()[-500:]}", target)

    async def read_file(self, request: ReadFileRequest) -> ReadFileResponse:
        """The text of a file; line ends are kept. Raises OSError, UnicodeDecodeError."""
        data = await self.read_bytes(request.path)
        return ReadFileResponse(content=data.decode(request.encoding or "utf-8", request.errors or "strict"))

    async def write_file(self, request: WriteFileRequest) -> WriteFileResponse:
        """Write a text as UTF-8. Raises OSError."""
        await self.write_bytes(request.path, request.content.encode())
        return WriteFileResponse()

    async def upload(self, request: UploadRequest) -> UploadResponse:
        """Copy a file or folder of this machine in; permissions and links are kept. Raises OSError."""
        data, mode = await asyncio.to_thread(_pack, Path(request.source_path))
        if mode is None:
            await self.write_tree(request.target_path, data)
        else:
            await self.write_bytes(request.target_path, data, mode=mode)
        return UploadResponse()

    async def close(self) -> CloseResponse:
        """Close every session; idempotent."""
        self._closed = True
        sessions, self._sessions = self._sessions, {}
        for shell in sessions.values():
            await finish(shell.close())
        return CloseResponse()


def _argv(command: str | list[str]) -> list[str]:
    return [command] if isinstance(command, str) else list(command)


def _quoted_path(path: str) -> str:
    import shlex

    return '"$HOME"' + shlex.quote(path[1:]) if path.startswith("~/") else shlex.quote(path)


def _failure(error_msg: str, code: int, output: str) -> str:
    text = f"the command failed with exit code {code}: {output[-2000:]!r}"
    return f"{error_msg}: {text}" if error_msg else text


def _read_all(fd: int, path: str) -> bytes:
    with os.fdopen(fd, "rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise OSError(27, "File too large", path)
    return data


def _write_all(fd: int, data: bytes) -> None:
    with os.fdopen(fd, "wb") as file:
        file.write(data)


def _pack(source: Path) -> tuple[bytes, int | None]:
    """A file's bytes and permissions, or a folder as a tar archive and None."""
    if not source.is_dir():
        return source.read_bytes(), source.stat().st_mode & 0o777
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(source, arcname=".")
    return buffer.getvalue(), None
