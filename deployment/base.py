"""What a deployment configuration is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from swerex.deployment.abstract import AbstractDeployment

from uni_agent.config.base import Config


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What one rollout asks of its sandbox, beside the deployment's configuration.

    `name` is unique per attempt and safe in file names. `image` and `workdir` None mean the deployment's own. `allow`
    are origins (`http://host:port`) that the sandbox may reach although it has no network otherwise.
    """

    name: str
    image: str | None = None
    workdir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    allow: Sequence[str] = ()


class BaseDeployConfig(Config):
    """Base of every member of `DeployConfig`; members add `type: Literal[...]`."""

    startup_timeout: float = 180.0
    """Seconds for the sandbox to come up."""
    startup_attempts: int = 3
    """How often a failed start is tried before the rollout ends as sandbox_error."""
    tool_install_dir: str | None = None
    """Where tool scripts are installed in the sandbox; None picks the deployment's own place."""

    @abstractmethod
    def build(self, spec: SandboxSpec) -> AbstractDeployment:
        """A deployment that is not started yet. Imports the backend here, not at module level."""

    def check(self) -> None:
        """Raise ConfigError when this machine cannot run the deployment (missing program, key, kernel feature)."""
