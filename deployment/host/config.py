"""Configuration of sandboxes on this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from uni_agent.config.base import Config, ConfigPath
from uni_agent.deployment.base import BaseDeployConfig, SandboxSpec
from uni_agent.errors import ConfigError

if TYPE_CHECKING:
    from uni_agent.deployment.host.deployment import HostDeployment


class HostLimits(Config):
    """Limits on each program of a sandbox, as `ulimit` sets them. None leaves the host's own."""

    memory_mb: int | None = Field(default=None, ge=16)
    """Address space of one process, in MiB."""
    processes: int | None = Field(default=None, ge=8)
    """Processes and threads of the sandbox. Needs isolation, and a user other than root, whom the kernel does
    not hold to it."""
    file_mb: int | None = Field(default=None, ge=1)
    """Size of one written file, in MiB."""
    open_files: int | None = Field(default=None, ge=16)
    """Open descriptors of one process."""
    cpu_seconds: int | None = Field(default=None, ge=1)
    """Processor time of one process."""

    def pairs(self) -> list[tuple[int, int]]:
        """(resource, value) as `resource.setrlimit` takes them."""
        import resource

        scaled = [
            (resource.RLIMIT_AS, self.memory_mb and self.memory_mb << 20),
            (resource.RLIMIT_NPROC, self.processes),
            (resource.RLIMIT_FSIZE, self.file_mb and self.file_mb << 20),
            (resource.RLIMIT_NOFILE, self.open_files),
            (resource.RLIMIT_CPU, self.cpu_seconds),
        ]
        return [(kind, value) for kind, value in scaled if value is not None]


class HostConfig(BaseDeployConfig):
    """Sandboxes on this machine, no engine and no image needed: a fresh folder and a namespace for each rollout."""

    type: Literal["host"] = "host"
    isolation: Literal["auto", "bwrap", "none"] = "auto"
    """`bwrap` isolates with bubblewrap, as does `auto`; `none` runs agents as plain processes with this user's
    rights."""
    shell: Literal["pipe", "swerex"] = "pipe"
    """`pipe` is this package's shell; `swerex` is SWE-ReX's own terminal session (slow; needs `isolation: none`)."""
    network: Literal["none", "host"] = "none"
    """`host` shares this machine's network, with all that listens on it. Without isolation it is always the host's."""
    root: ConfigPath | None = None
    """Where the sandboxes' folders are made; None uses the system's temporary folder."""
    read_only_binds: list[ConfigPath] = []
    """Host folders that sandboxes see at the same path, read-only."""
    env: list[str] = []
    """Names of this process's environment variables that are passed on, beside PATH, locale and time zone."""
    max_output_bytes: int = Field(default=1 << 20, ge=1024)
    """Output of one command that is kept: its head and its tail."""
    limits: HostLimits = HostLimits()
    """Limits on programs."""

    @model_validator(mode="after")
    def _coherent(self) -> HostConfig:
        if self.isolation == "none":
            if self.limits.processes is not None:
                raise ValueError(
                    "limits.processes needs isolation: without it, it would count all of this user's processes"
                )
            if self.read_only_binds:
                raise ValueError("read_only_binds needs isolation: without it, everything of the host is visible")
        elif self.shell == "swerex":
            raise ValueError("shell: swerex needs isolation: none (SWE-ReX's session starts its bash itself)")
        for path in self.read_only_binds:
            if not path.is_absolute() or len(path.parts) < 2 or ".." in path.parts:
                raise ValueError(f"read_only_binds: {str(path)!r} is not an absolute path below /")
        return self

    @property
    def isolated(self) -> bool:
        """Whether bubblewrap is used."""
        return self.isolation != "none"

    def build(self, spec: SandboxSpec) -> HostDeployment:
        """A sandbox that is not started yet. Raises ConfigError when a host sandbox cannot give what `spec` asks."""
        from uni_agent.deployment.host.deployment import HostDeployment

        return HostDeployment(self, spec)

    def check(self) -> None:
        """Raise ConfigError when bubblewrap is wanted and does not run here, or a bound folder is missing."""
        for path in self.read_only_binds:
            if not path.exists():
                raise ConfigError(f"deployment.read_only_binds: {str(path)!r} does not exist")
        if self.limits.processes is not None and os.geteuid() == 0:
            raise ConfigError(
                "deployment.limits.processes: the kernel does not hold root to a number of processes; "
                "run as another user, or leave the limit out"
            )
        if not self.isolated:
            return
        from uni_agent.deployment.host.bwrap import probe

        problem = probe()
        if problem:
            raise ConfigError(
                "deployment.type host: bubblewrap cannot isolate sandboxes on this machine, so nothing is run. "
                f"It said: {problem}\nAllow unprivileged user namespaces, use another deployment, or set "
                "isolation: none to run without isolation: agents then have all rights of this user."
            )
