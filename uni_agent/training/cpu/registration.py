"""Tells verl of the CPU's parts, in every process of a run, as early as needed and as late as possible.

verl loads its plugins while it is itself being imported. The platform is registered there and then, since verl asks
for it soon after; the rest follows when verl imports the module that holds the registry, which many processes never do.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from uni_agent.errors import ConfigError
from uni_agent.optional import load

_ROLLOUT: Final = "uni_agent_cpu"
_CHECKPOINT: Final = "uni_agent_ray"
_ADAPTER: Final = "uni_agent.training.cpu.adapter.CpuServerAdapter"


def _replica(module: Any) -> None:
    def cls() -> Any:
        from uni_agent.training.cpu.replica import CpuReplica

        return CpuReplica

    module.RolloutReplicaRegistry.register(_ROLLOUT, cls)


def _adapter(module: Any) -> None:
    # verl has no function for this one: `get_rollout_class` looks into the module's dict, which names classes.
    module._ROLLOUT_REGISTRY[_ROLLOUT, "async"] = _ADAPTER


def _engines(_: Any) -> None:
    importlib.import_module("uni_agent.training.cpu.engine")


def _checkpoint(_: Any) -> None:
    # It may be what is just being imported, and have led here: then it goes on to register itself.
    importlib.import_module("uni_agent.training.cpu.checkpoint_engine")


@dataclass(frozen=True, slots=True)
class _Part:
    """Something told to the registry in verl's `module`, and how to see there that it was told."""

    module: str
    tell: Callable[[Any], None]
    told: Callable[[Any], bool]


_PARTS: Final[Mapping[str, _Part]] = {
    "rollout engine uni_agent_cpu": _Part(
        "verl.workers.rollout.replica", _replica, lambda m: _ROLLOUT in m.RolloutReplicaRegistry._registry
    ),
    "server adapter of uni_agent_cpu": _Part(
        "verl.workers.rollout.base", _adapter, lambda m: (_ROLLOUT, "async") in m._ROLLOUT_REGISTRY
    ),
    "FSDP2 engines for cpu": _Part(
        "verl.workers.engine.fsdp.transformer_impl",
        _engines,
        lambda _: all(
            "cpu" in importlib.import_module("verl.workers.engine.base").EngineRegistry._engines[kind]["fsdp2"]
            for kind in ("language_model", "value_model")
        ),
    ),
    "checkpoint engine uni_agent_ray": _Part(
        "verl.checkpoint_engine.base", _checkpoint, lambda m: _CHECKPOINT in m.CheckpointEngineRegistry._registry
    ),
}

_waiting: set[str] = set()


def register() -> None:
    """Register the CPU's parts with verl; calling it again changes nothing.

    Cheap: it imports the platform, and puts off the rest until verl imports what it belongs to. Raises
    MissingExtraError without verl.
    """
    wrapt: Any = load("wrapt", extra="train", needed_for="training with verl")
    from uni_agent.training.cpu.platform import register as register_platform

    register_platform()
    for name, part in _PARTS.items():
        if name not in _waiting:
            _waiting.add(name)
            wrapt.when_imported(part.module)(part.tell)


def registered(*, check: bool = True) -> dict[str, bool]:
    """Which parts verl knows, by name; imports all of verl that they belong to (seconds).

    With `check`, raises ConfigError that names what is missing and the cure: what verl's plugin loading does with a
    broken entry point is silence.
    """
    platform: Any = load("verl.plugin.platform", extra="train", needed_for="training with verl")
    found = {"platform cpu": platform.PlatformRegistry.get("cpu") is not None}
    for name, part in _PARTS.items():
        module = sys.modules.get(part.module) or importlib.import_module(part.module)
        found[name] = part.told(module)
    missing = [name for name, there in found.items() if not there]
    if check and missing:
        raise ConfigError(
            f"verl does not know: {', '.join(missing)}. Start it with VERL_USE_EXTERNAL_MODULES="
            "uni_agent.training.plugin in the environment, which every process of the run must have"
        )
    return found
