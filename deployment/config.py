"""The union of all deployment configurations. A new backend is one folder and one line here."""

from __future__ import annotations

from typing import Annotated

from pydantic import Discriminator, Tag
from swerex.deployment.abstract import AbstractDeployment

from uni_agent.config.base import PluginConfig, load_object, part_tag
from uni_agent.deployment.base import BaseDeployConfig, SandboxSpec
from uni_agent.deployment.dummy import DummyConfig
from uni_agent.deployment.host.config import HostConfig
from uni_agent.errors import ConfigError


class PluginDeployConfig(PluginConfig):
    """A deployment that this package does not ship.

    The class is a BaseDeployConfig (built as `Class(**options)` and asked for everything), or a SWE-ReX
    AbstractDeployment (built as `Class(**options)` for each sandbox; image, environment and allow-list of the task
    are then its own affair).
    """

    startup_timeout: float = 180.0
    """Seconds for the sandbox to come up."""
    startup_attempts: int = 3
    """How often a failed start is tried before the rollout ends as sandbox_error."""
    tool_install_dir: str | None = None
    """Where tool scripts are installed in the sandbox; None picks the deployment's own place."""

    def build(self, spec: SandboxSpec) -> AbstractDeployment:
        """A deployment that is not started yet. Raises ConfigError when the class does not fit."""
        cls = self._load()
        if issubclass(cls, BaseDeployConfig):
            return self._config(cls).build(spec)
        try:
            return cls(**self.options)
        except TypeError as error:
            raise ConfigError(f"deployment.options do not fit {self.type}: {error}") from error

    def check(self) -> None:
        """Raise ConfigError when the class cannot be loaded, its options do not fit, or its own check fails."""
        cls = self._load()
        if issubclass(cls, BaseDeployConfig):
            self._config(cls).check()

    def _load(self) -> type[BaseDeployConfig] | type[AbstractDeployment]:
        cls = load_object(self.type)
        if isinstance(cls, type) and issubclass(cls, BaseDeployConfig | AbstractDeployment):
            return cls
        raise ConfigError(
            f"deployment.type {self.type!r} is neither a BaseDeployConfig nor a SWE-ReX AbstractDeployment"
        )

    def _config(self, cls: type[BaseDeployConfig]) -> BaseDeployConfig:
        try:
            return cls(**self.options)
        except ValueError as error:
            raise ConfigError(f"deployment.options do not fit {self.type}: {error}") from error


DeployConfig = Annotated[
    Annotated[HostConfig, Tag("host")]
    | Annotated[DummyConfig, Tag("dummy")]
    | Annotated[PluginDeployConfig, Tag("plugin")],
    Discriminator(part_tag),
]
"""Where sandboxes run, selected by `type`."""
