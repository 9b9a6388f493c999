"""A scripted deployment in memory: for tests of what lies above it, and for benchmarks without any sandbox."""

from __future__ import annotations

import asyncio
import io
import logging
import posixpath
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr
from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import DeploymentHook
from swerex.exceptions import (
    DeploymentNotStartedError,
    DeploymentStartupError,
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

from uni_agent.config.base import Config, load_object
from uni_agent.deployment.aio import finish
from uni_agent.deployment.base import BaseDeployConfig, SandboxSpec
from uni_agent.deployment.errors import CommandTimedOut, ProviderBusyError, ShellExited

logger = logging.getLogger(__name__)


class DummyReply(Config):
    """What one command gives."""

    output: str = ""
    """stdout and stderr."""
    exit_code: int = 0
    """Its exit code; that of the shell for `shell_exits`."""
    seconds: float = 0.0
    """How long it takes."""
    fault: Literal["none", "timeout", "shell_exits"] = "none"
    """`timeout`: the command runs into its timeout; `shell_exits`: the session ends with it."""
    sandbox_state: Literal["running", "terminated", "timed_out"] = "running"
    """What becomes of the sandbox meanwhile; ended ones keep the exit code, as some providers do."""


Responder = Callable[[str], DummyReply | str | None]
"""Command → reply; a text is an output with exit code 0, None falls back to the canned replies."""


@dataclass(slots=True)
class DummyBackend:
    """The pretended provider behind all sandboxes of one configuration: what exists, and what it was asked."""

    live: int = 0
    creating: int = 0
    peak_creating: int = 0
    starts: int = 0
    stops: int = 0
    refused: int = 0


class DummyConfig(BaseDeployConfig):
    """Sandboxes that are not there: canned replies, files in memory, and faults on request."""

    type: Literal["dummy"] = "dummy"
    replies: dict[str, str | DummyReply] = {}
    """Command text, exactly, to its output or reply."""
    default: str | DummyReply = ""
    """The reply to any other command."""
    responder: str | None = None
    """A Python function `package.module:name` that maps a command to a reply, tried first."""
    start_delay: float = Field(default=0.0, ge=0)
    """Seconds that the pretended provider needs to create a sandbox."""
    fail_starts: int = Field(default=0, ge=0)
    """How many starts fail, counted over all sandboxes, before one succeeds."""
    fail_stops: int = Field(default=0, ge=0)
    """How many stops fail before one succeeds."""
    max_creating: int | None = None
    """More sandboxes than this being created at once are refused, as by a provider's rate limit."""
    fail_sessions_after: int | None = None
    """How many sessions one sandbox gives; None for any number."""

    _backend: DummyBackend = PrivateAttr(default_factory=DummyBackend)

    @property
    def backend(self) -> DummyBackend:
        """The counters that all sandboxes of this configuration share."""
        return self._backend

    def build(self, spec: SandboxSpec) -> DummyDeployment:
        """A sandbox that is not started yet. Raises ConfigError for a responder that cannot be loaded."""
        return DummyDeployment(self, spec, load_object(self.responder) if self.responder else None)


class DummyDeployment(AbstractDeployment):
    """`respond` may replace what the configuration says about commands."""

    def __init__(self, config: DummyConfig, spec: SandboxSpec, respond: Responder | None = None) -> None:
        self.logger = logger
        self.config = config
        self.spec = spec
        self.workdir = spec.workdir or "/workspace"
        self.tool_install_dir = config.tool_install_dir or "/opt/uni-agent/bin"
        self._respond = respond
        self._runtime: DummyRuntime | None = None
        self._creation: asyncio.Task[None] | None = None

    def __del__(self) -> None:
        """SWE-ReX's would start a `stop` on whatever loop is running."""

    def add_hook(self, hook: DeploymentHook) -> None:
        """Nothing happens that a hook could be told of."""

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Whether the pretended sandbox runs."""
        return await self.runtime.is_alive(timeout=timeout)

    @property
    def runtime(self) -> DummyRuntime:
        """The runtime. Raises DeploymentNotStartedError."""
        if self._runtime is None:
            raise DeploymentNotStartedError
        return self._runtime

    async def start(self) -> None:
        """Create it. As with a real provider, creation goes on when the caller is cancelled; `stop` awaits it."""
        backend, config = self.config.backend, self.config
        backend.starts += 1
        if config.max_creating is not None and backend.creating >= config.max_creating:
            backend.refused += 1
            raise ProviderBusyError("429: too many sandboxes are being created")
        backend.creating += 1
        backend.peak_creating = max(backend.peak_creating, backend.creating)
        fails = backend.starts - backend.refused <= config.fail_starts
        loop = asyncio.get_running_loop()
        self._creation = loop.create_task(self._create(fails), name=f"create {self.spec.name}")
        await asyncio.shield(self._creation)

    async def _create(self, fails: bool) -> None:
        backend = self.config.backend
        try:
            if self.config.start_delay:
                await asyncio.sleep(self.config.start_delay)
            if fails:
                raise DeploymentStartupError("this start was told to fail")
            backend.live += 1
            self._runtime = DummyRuntime(self.config, self.workdir, self._respond)
        finally:
            backend.creating -= 1

    async def stop(self) -> None:
        """Delete it; a second call does nothing. Raises ConnectionError while `fail_stops` says so."""
        if self._creation is not None and not self._creation.done():
            await finish(asyncio.wait([self._creation]))
        if self._creation is not None and not self._creation.cancelled():
            self._creation.exception()  # retrieved: the starter was told, or is gone
        if self._runtime is None:
            return
        self.config.backend.stops += 1
        if self.config.backend.stops <= self.config.fail_stops:
            raise ConnectionError("503: this stop was told to fail")
        self.config.backend.live -= 1
        self._runtime = None


class DummyRuntime(AbstractRuntime):
    """Sessions are names, files a dictionary (`files`: absolute path → bytes), `commands` what was run, in order."""

    def __init__(self, config: DummyConfig, workdir: str, respond: Responder | None = None) -> None:
        self.logger = logger
        self.files: dict[str, bytes] = {}
        self.commands: list[str] = []
        self.lost_reason = ""
        self._config = config
        self._workdir = workdir
        self._respond = respond
        self._sessions: set[str] = set()
        self._opened = 0

    def end(self, reason: str) -> None:
        """Let the sandbox be gone from now on."""
        self.lost_reason = reason

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Whether the sandbox has not ended."""
        return IsAliveResponse(is_alive=not self.lost_reason, message=self.lost_reason)

    async def create_session(self, request: CreateSessionRequest) -> CreateSessionResponse:
        """Open a session. Raises SessionExistsError, ShellExited when no more are to be had."""
        self._check()
        if request.session in self._sessions:
            raise SessionExistsError(f"session {request.session!r} already exists")
        limit = self._config.fail_sessions_after
        if limit is not None and self._opened >= limit:
            raise ShellExited("no more sessions are to be had", exit_code=1)
        self._opened += 1
        self._sessions.add(request.session)
        return CreateBashSessionResponse()

    async def run_in_session(self, action: Action) -> Observation:
        """Answer a command by the script."""
        self._check()
        if action.session not in self._sessions:
            raise SessionDoesNotExistError(f"session {action.session!r} does not exist")
        if not isinstance(action, BashAction):
            return BashObservation(exit_code=0)
        reply = await self._reply(action.command, action.timeout)
        if reply.fault == "shell_exits":
            self._sessions.discard(action.session)
            raise ShellExited("the shell exited", exit_code=reply.exit_code, output=reply.output)
        return BashObservation(output=reply.output, exit_code=reply.exit_code)

    async def close_session(self, request: CloseSessionRequest) -> CloseSessionResponse:
        """Forget a session. Raises SessionDoesNotExistError."""
        if request.session not in self._sessions:
            raise SessionDoesNotExistError(f"session {request.session!r} does not exist")
        self._sessions.discard(request.session)
        return CloseBashSessionResponse()

    async def execute(self, command: Command) -> CommandResponse:
        """Answer a command by the script; an argv is joined with spaces."""
        self._check()
        text = command.command if isinstance(command.command, str) else " ".join(command.command)
        reply = await self._reply(text, command.timeout)
        return CommandResponse(stdout=reply.output, exit_code=reply.exit_code)

    async def _reply(self, command: str, timeout: float | None) -> DummyReply:
        self.commands.append(command)
        found = self._respond(command) if self._respond is not None else None
        if found is None:
            found = self._config.replies.get(command, self._config.default)
        reply = found if isinstance(found, DummyReply) else DummyReply(output=found)
        late = reply.fault == "timeout" or (timeout is not None and reply.seconds > timeout)
        if seconds := (timeout or 0.0) if late else reply.seconds:
            await asyncio.sleep(seconds)
        if reply.sandbox_state != "running":
            self.end(f"the sandbox is {reply.sandbox_state}")
        if late:
            raise CommandTimedOut("the command timed out", output=reply.output)
        return reply

    def _check(self) -> None:
        if self.lost_reason:
            raise ConnectionError(self.lost_reason)

    # ------------------------------------------------------------------------------------------ files

    def _absolute(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self._workdir, path))

    async def read_bytes(self, path: str) -> bytes:
        """A file of the dictionary. Raises FileNotFoundError, IsADirectoryError."""
        self._check()
        full = self._absolute(path)
        if full in self.files:
            return self.files[full]
        if any(name.startswith(full.rstrip("/") + "/") for name in self.files):
            raise IsADirectoryError(21, "Is a directory", path)
        raise FileNotFoundError(2, "No such file or directory", path)

    async def write_bytes(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        """Put a file into the dictionary; modes are not kept."""
        self._check()
        self.files[self._absolute(path)] = data

    async def write_tree(self, target: str, archive: bytes) -> None:
        """Put the regular files of a tar archive into the dictionary."""
        self._check()
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for member in tar:
                content = tar.extractfile(member)
                if content is not None:
                    self.files[self._absolute(posixpath.join(target, member.name))] = content.read()

    async def read_file(self, request: ReadFileRequest) -> ReadFileResponse:
        """A file as text."""
        data = await self.read_bytes(request.path)
        return ReadFileResponse(content=data.decode(request.encoding or "utf-8", request.errors or "strict"))

    async def write_file(self, request: WriteFileRequest) -> WriteFileResponse:
        """Put a text into the dictionary, as UTF-8."""
        await self.write_bytes(request.path, request.content.encode())
        return WriteFileResponse()

    async def upload(self, request: UploadRequest) -> UploadResponse:
        """Copy a file or folder of this machine into the dictionary."""
        for inner, data in await asyncio.to_thread(_files_of, Path(request.source_path)):
            await self.write_bytes(posixpath.join(request.target_path, inner).rstrip("/"), data)
        return UploadResponse()

    async def close(self) -> CloseResponse:
        """End every session."""
        self._sessions.clear()
        return CloseResponse()


def _files_of(source: Path) -> list[tuple[str, bytes]]:
    if source.is_file():
        return [("", source.read_bytes())]
    return [(path.relative_to(source).as_posix(), path.read_bytes()) for path in source.rglob("*") if path.is_file()]


def dummy_sandbox(respond: Responder | None = None, **options: Any) -> DummyDeployment:
    """A deployment for a test, not started: `respond` answers commands, `options` are DummyConfig's."""
    return DummyDeployment(DummyConfig(**options), SandboxSpec(name="dummy"), respond)
