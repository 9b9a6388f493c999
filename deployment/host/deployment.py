"""One sandbox on this machine, from its folder to the end of its last process."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path

from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
from swerex.exceptions import DeploymentNotStartedError
from swerex.runtime.abstract import AbstractRuntime, IsAliveResponse

from uni_agent.deployment.aio import finish
from uni_agent.deployment.base import SandboxSpec
from uni_agent.deployment.environment import check_env, host_environment
from uni_agent.deployment.forwarder import Forwarder
from uni_agent.deployment.host.box import Box
from uni_agent.deployment.host.bwrap import FORBIDDEN, HOME, RUN_DIR, Layout, prepare_workdir, python_prefix
from uni_agent.deployment.host.config import HostConfig
from uni_agent.deployment.host.launch import DirectLauncher, Launcher
from uni_agent.deployment.host.runtime import HostRuntime
from uni_agent.deployment.processes import wait_process
from uni_agent.errors import ConfigError

logger = logging.getLogger(__name__)

MARK = "UNI_AGENT_SANDBOX_ID"
NET_SOCKET = "UNI_AGENT_NET_SOCKET"


class HostDeployment(AbstractDeployment):
    """A SWE-ReX deployment. `workdir` and `tool_install_dir` are paths as the sandbox sees them, set by `start`."""

    def __init__(self, config: HostConfig, spec: SandboxSpec) -> None:
        self.logger = logger
        self._config = config
        self._spec = spec
        self._hooks = CombinedDeploymentHook()
        self._layout: Layout | None = None
        self._launcher: Launcher | None = None
        self._runtime: AbstractRuntime | None = None
        self._forwarder: Forwarder | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._mark = uuid.uuid4().hex
        self.workdir = _workdir_of(config, spec)
        self.tool_install_dir = ""
        try:
            check_env(spec.env)
        except ValueError as error:
            raise ConfigError(f"task env: {error}") from error

    def __del__(self) -> None:
        """SWE-ReX's would start a `stop` on whatever loop is running: stopping is its owner's duty here."""

    def add_hook(self, hook: DeploymentHook) -> None:
        """SWE-ReX's hooks, told of each step of the start."""
        self._hooks.add_hook(hook)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Whether a program can be run in the sandbox."""
        return await self.runtime.is_alive(timeout=timeout)

    @property
    def runtime(self) -> AbstractRuntime:
        """The runtime. Raises DeploymentNotStartedError."""
        if self._runtime is None:
            raise DeploymentNotStartedError
        return self._runtime

    async def start(self) -> None:
        """Make the folder, the forwarder when the spec allows origins, and the sandbox. Raises ConfigError, OSError."""
        self._config.check()
        if not self._config.isolated:
            logger.warning(
                "NO ISOLATION: sandbox %r runs with all rights of this user on this machine "
                "(deployment.isolation: none)",
                self._spec.name,
            )
        self._hooks.on_custom_step("Making the sandbox's folder")
        self._layout = self._make_folder()
        home = HOME if self._config.isolated else str(self._layout.home)
        self.tool_install_dir = self._config.tool_install_dir or f"{home}/.uni-agent/bin"
        if not self.workdir:
            self.workdir = str(self._layout.work)
        await self._start_forwarder()
        self._hooks.on_custom_step("Starting the sandbox")
        self._launcher = self._make_launcher()
        await self._launcher.start()
        self._runtime = self._make_runtime(self._launcher, self._env(home))

    async def stop(self) -> None:
        """Kill every process of the sandbox and remove its folder; runs to the end under cancellation, idempotent."""
        if self._stopping is None or (self._stopping.done() and self._failed()):
            self._stopping = asyncio.get_running_loop().create_task(self._stop(), name=f"stop {self._spec.name}")
        await finish(self._stopping)

    def _failed(self) -> bool:
        return self._stopping is not None and (self._stopping.cancelled() or self._stopping.exception() is not None)

    async def _stop(self) -> None:
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await runtime.close()
        if self._launcher is not None:
            await self._launcher.stop()
        if self._forwarder is not None:
            await self._forwarder.close()
        if self._layout is not None:
            await _remove(self._layout.folder)

    # ------------------------------------------------------------------------------------------ parts

    def _make_folder(self) -> Layout:
        parent = self._config.root or Path(tempfile.gettempdir())
        parent.mkdir(parents=True, exist_ok=True)
        # A short name: the forwarder's socket lies in it, and paths of sockets are limited to 107 bytes.
        folder = tempfile.mkdtemp(prefix=f"{self._spec.name[:20]}-".replace("/", "_"), dir=parent)
        layout = Layout(Path(folder).resolve())
        self._layout = layout
        layout.make()
        if self._config.isolated:
            prepare_workdir(layout, self.workdir)
        elif self.workdir:
            Path(self.workdir).mkdir(parents=True, exist_ok=True)
        return layout

    async def _start_forwarder(self) -> None:
        if self._spec.allow and self._layout is not None:
            self._forwarder = Forwarder(self._spec.allow)
            await self._forwarder.start(self._layout.run / "net.sock")

    def _make_launcher(self) -> Launcher:
        assert self._layout is not None  # noqa: S101 - made just before
        limits = self._config.limits.pairs()
        if not self._config.isolated:
            return DirectLauncher((MARK, self._mark), limits)
        binds = [str(path) for path in self._config.read_only_binds]
        network = self._config.network == "host"
        return Box(self._layout, self.workdir, network=network, read_only_binds=binds, limits=limits)

    def _make_runtime(self, launcher: Launcher, env: dict[str, str]) -> AbstractRuntime:
        cap = self._config.max_output_bytes
        if self._config.shell == "pipe":
            return HostRuntime(launcher, workdir=self.workdir, env=env, max_output_bytes=cap)
        from uni_agent.deployment.host.swerex_shell import SwerexShellRuntime

        # The session is not started by the launcher, so it needs the mark itself to be found again.
        env = {**env, MARK: self._mark}
        return SwerexShellRuntime(launcher, workdir=self.workdir, env=env, max_output_bytes=cap)

    def _env(self, home: str) -> dict[str, str]:
        assert self._layout is not None  # noqa: S101 - made just before
        env = host_environment(self._config.env) | {"HOME": home}
        if self._config.isolated:
            env |= {"PATH": _inside_path(env["PATH"]), "USER": "agent", "LOGNAME": "agent", "SHELL": "/bin/bash"}
        else:
            env |= {"TMPDIR": str(self._layout.tmp)}
        if self._forwarder is not None:
            env[NET_SOCKET] = f"{RUN_DIR if self._config.isolated else self._layout.run}/net.sock"
        return env | dict(self._spec.env)


def _inside_path(path: str) -> str:
    """The entries of the host's PATH that exist inside, the base Python's first."""
    prefix = python_prefix()
    kept = [entry for entry in path.split(":") if entry.startswith(("/usr/", "/bin", "/sbin"))]
    return ":".join([*([f"{prefix}/bin"] if prefix else []), *(kept or ["/usr/local/bin", "/usr/bin", "/bin"])])


def _workdir_of(config: HostConfig, spec: SandboxSpec) -> str:
    """The working directory as the sandbox sees it; "" for a fresh folder of the host. Raises ConfigError."""
    if spec.workdir is None:
        return "/workspace" if config.isolated else ""
    workdir = os.path.normpath(spec.workdir)
    if not workdir.startswith("/") or workdir.startswith("//"):
        raise ConfigError(f"workdir {spec.workdir!r} is not an absolute path")
    taken = [*FORBIDDEN, *map(str, config.read_only_binds), *([prefix] if (prefix := python_prefix()) else [])]
    if config.isolated and any(workdir == path or workdir.startswith(path + "/") for path in taken):
        raise ConfigError(
            f"workdir {spec.workdir!r} is a read-only place of a host sandbox; choose another, like /workspace"
        )
    if config.isolated and any(path.startswith(workdir.rstrip("/") + "/") for path in (*taken, HOME) if workdir != "/"):
        raise ConfigError(f"workdir {spec.workdir!r} would hide a folder that the sandbox needs")
    return workdir


async def _remove(folder: Path) -> None:
    """Remove `folder` as agents leave it: very deep, without permissions. Raises OSError when something stays."""
    quoted = ("--", str(folder))
    if await _quiet("rm", "-rf", "--one-file-system", *quoted) != 0:  # folders without permissions
        await _quiet("chmod", "-R", "u+rwX", *quoted)
        if await _quiet("rm", "-rf", "--one-file-system", *quoted) != 0:
            await asyncio.to_thread(shutil.rmtree, folder)


async def _quiet(*argv: str) -> int:
    null = subprocess.DEVNULL
    process = subprocess.Popen(argv, stdin=null, stdout=null, stderr=null)  # noqa: ASYNC220 - waited for without a thread
    return await wait_process(process)
