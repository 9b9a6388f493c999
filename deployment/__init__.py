"""Where agents run: deployment configurations, started sandboxes, and the shells and files in them."""

if not __name__.startswith("uni_agent."):
    raise ImportError(f"import uni_agent.{__name__}")

from uni_agent.deployment.base import BaseDeployConfig, SandboxSpec
from uni_agent.deployment.config import DeployConfig, PluginDeployConfig
from uni_agent.deployment.dummy import DummyConfig, DummyDeployment
from uni_agent.deployment.errors import CommandTimedOut, ShellExited
from uni_agent.deployment.host.config import HostConfig, HostLimits
from uni_agent.deployment.sandbox import CommandResult, Sandbox
from uni_agent.deployment.start import SandboxRegistry, start_sandbox

__all__ = [
    "BaseDeployConfig",
    "CommandResult",
    "CommandTimedOut",
    "DeployConfig",
    "DummyConfig",
    "DummyDeployment",
    "HostConfig",
    "HostLimits",
    "PluginDeployConfig",
    "Sandbox",
    "SandboxRegistry",
    "SandboxSpec",
    "ShellExited",
    "start_sandbox",
]
