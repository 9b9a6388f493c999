"""The union of deployments, plug-ins, and what configurations refuse."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, Literal

import pytest
from pydantic import TypeAdapter, ValidationError
from swerex.deployment.dummy import DummyDeployment as SwerexDummy

from uni_agent.deployment import (
    BaseDeployConfig,
    DeployConfig,
    DummyConfig,
    DummyDeployment,
    HostConfig,
    PluginDeployConfig,
    Sandbox,
    SandboxSpec,
)
from uni_agent.errors import ConfigError

ADAPTER: TypeAdapter[Any] = TypeAdapter(DeployConfig)
SPEC = SandboxSpec(name="x")


class OwnConfig(BaseDeployConfig):
    type: Literal["own"] = "own"
    answer: str = ""

    def build(self, spec: SandboxSpec) -> DummyDeployment:
        return DummyConfig(default=self.answer).build(spec)


def test_type_selects_the_member() -> None:
    assert isinstance(ADAPTER.validate_python({"type": "host"}), HostConfig)
    assert isinstance(ADAPTER.validate_python({"type": "dummy", "default": "x"}), DummyConfig)
    plugin = ADAPTER.validate_python({"type": f"{__name__}:OwnConfig", "options": {"answer": "a"}})
    assert isinstance(plugin, PluginDeployConfig)
    assert ADAPTER.validate_python(plugin) is plugin
    for raw in ({}, {"type": "nope"}, {"type": "host", "unknown": 1}, {"type": "host", "isolation": "some"}):
        with pytest.raises(ValidationError):
            ADAPTER.validate_python(raw)


async def test_plugins_are_config_classes_or_swerex_deployments() -> None:
    plugin = PluginDeployConfig(type=f"{__name__}:OwnConfig", options={"answer": "42"})
    plugin.check()
    deployment: Any = plugin.build(SPEC)
    await deployment.start()
    sandbox = Sandbox(deployment)
    await sandbox.open()
    assert (await sandbox.run("x", timeout=5)).output == "42"
    foreign = PluginDeployConfig(type="swerex.deployment.dummy:DummyDeployment")
    assert isinstance(foreign.build(SPEC), SwerexDummy)


@pytest.mark.parametrize(
    ("reference", "options", "said"),
    [
        ("no_such_module:X", {}, "cannot import"),
        ("json:dumps", {}, "neither a BaseDeployConfig"),
        ("json:JSONEncoder", {}, "neither a BaseDeployConfig"),
        ("OWN", {"wrong": 1}, "do not fit"),
    ],
)
def test_plugins_that_do_not_fit_name_the_fault(reference: str, options: dict[str, Any], said: str) -> None:
    plugin = PluginDeployConfig(type=reference.replace("OWN", f"{__name__}:OwnConfig"), options=options)
    with pytest.raises(ConfigError, match=said):
        plugin.check()
    with pytest.raises(ConfigError, match=said):
        plugin.build(SPEC)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"shell": "swerex"}, "needs isolation: none"),
        ({"isolation": "none", "limits": {"processes": 100}}, "needs isolation"),
        ({"isolation": "none", "read_only_binds": ["/opt"]}, "needs isolation"),
        ({"read_only_binds": ["/"]}, "not an absolute path below /"),
    ],
)
def test_host_options_that_do_not_go_together(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        HostConfig.model_validate(fields)


def test_missing_binds_are_found_by_check() -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        HostConfig.model_validate({"read_only_binds": ["/no/such/folder"]}).check()


def test_importing_deployments_loads_no_servers() -> None:
    heavy = "'fastapi', 'uvicorn', 'pexpect', 'bashlex', 'torch', 'aiohttp', 'requests', 'modal'"
    code = f"import sys, uni_agent.deployment; print(sorted({{{heavy}}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_top_level_name_is_refused() -> None:
    code = "import sys; sys.path.insert(0, '.'); import deployment"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "uni_agent.deployment" in done.stderr
