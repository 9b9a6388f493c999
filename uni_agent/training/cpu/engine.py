"""verl's FSDP2 engines, registered for the device `cpu`; upstream registers them for accelerators only.

FSDP1 is not among them: with parameters on the CPU torch refuses its `sync_module_states=True`, which verl always sets.
Importing this module registers the engines.
"""

from __future__ import annotations

import importlib
from typing import Any

from uni_agent.errors import ConfigError

_fsdp: Any = importlib.import_module("verl.workers.engine.fsdp.transformer_impl")
_base: Any = importlib.import_module("verl.workers.engine.base")

BACKEND = "fsdp2"


def _on_cpu(base: Any, name: str) -> type[Any]:
    """`base`, an engine class of verl, without the offloading that needs an accelerator."""

    def build(self: Any, module: Any) -> Any:
        config = self.engine_config
        if config.offload_policy:
            raise ConfigError("fsdp_config.offload_policy is true: on the CPU there is nowhere to offload from")
        # verl wraps a model that only runs forward (the reference) with CPUOffloadPolicy(pin_memory=True), and pinning
        # asks for an accelerator. Wrapped as a trained one it lies in main memory just the same. The field is one of
        # EngineConfig's mutable ones.
        forward_only = config.forward_only
        config.forward_only = False
        try:
            return base._build_fsdp_module(self, module)
        finally:
            config.forward_only = forward_only

    return type(name, (base,), {"_build_fsdp_module": build, "__doc__": f"{base.__name__} on the CPU."})


CpuLanguageModelEngine = _on_cpu(_fsdp.FSDPEngineWithLMHead, "CpuLanguageModelEngine")
CpuValueModelEngine = _on_cpu(_fsdp.FSDPEngineWithValueHead, "CpuValueModelEngine")


for _kind, _cls in (("language_model", CpuLanguageModelEngine), ("value_model", CpuValueModelEngine)):
    _base.EngineRegistry.register(_kind, [BACKEND], device="cpu")(_cls)
