"""Sandboxes on this host of which a part never comes up, always the same ones."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from swerex.deployment.abstract import AbstractDeployment
from swerex.exceptions import DeploymentStartupError

from uni_agent.deployment import HostConfig, SandboxSpec
from uni_agent.deployment.base import BaseDeployConfig


class FlakyHostConfig(BaseDeployConfig):
    """A host sandbox, or, for `failing` of the names, one whose start fails each time."""

    failing: float = 0.3
    """Share of sandboxes that do not start."""
    root: str | None = None
    """Folder of the sandboxes."""

    def build(self, spec: SandboxSpec) -> AbstractDeployment:
        """The deployment, not started."""
        options: dict[str, Any] = {} if self.root is None else {"root": self.root}
        host = HostConfig(type="host", isolation="none", env=["TMPDIR"], **options).build(spec)
        draw = int.from_bytes(blake2b(spec.name.encode(), digest_size=8).digest(), "big") / 2**64
        if draw < self.failing:

            async def refuse() -> None:
                raise DeploymentStartupError("this sandbox never comes up")

            host.start = refuse
        return host

    def check(self) -> None:
        """Nothing is needed."""
