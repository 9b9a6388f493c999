"""The platform `cpu` of verl 0.9.1, which brings platforms for accelerators only.

Imported by `uni_agent.training.cpu.register`, and through it in every process of a run; `VERL_PLATFORM=cpu` chooses it.
A training process counts as one logical GPU of Ray, because verl places its workers by that resource.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Generator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final, cast

torch: Any = importlib.import_module("torch")
_verl: Any = importlib.import_module("verl.plugin.platform")
_Base = cast("type[Any]", _verl.PlatformBase)

NAME: Final = "cpu"


def _nothing(*_: Any, **__: Any) -> None:
    """Stands for whatever has no meaning without an accelerator."""


def _zero(*_: Any, **__: Any) -> int:
    """Bytes on an accelerator."""
    return 0


def _memory(*_: Any, **__: Any) -> tuple[int, int]:
    """Free and total bytes of main memory, as `torch.cuda.mem_get_info`."""
    page = os.sysconf("SC_PAGE_SIZE")
    return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")


def _name(*_: Any) -> str:
    """What is told of the device."""
    return "CPU"


def _rng_state(*_: Any) -> Any:
    """Of torch's one generator, whatever device is named."""
    return torch.get_rng_state()


def _set_rng_state(state: Any, *_: Any) -> None:
    """The counterpart."""
    torch.set_rng_state(state)


def _yes() -> bool:
    """The device is there."""
    return True


def device_module() -> ModuleType:
    """A copy of `torch.cpu` with the calls that verl makes on every device module and `torch.cpu` lacks.

    verl measures memory on it (`utils/memory_utils.py`, `workers/engine_workers.py`, `utils/profiler/performance.py`),
    empties caches and saves random states. What is measured there is 0, so that its metrics say nothing is on a device.
    """
    module = ModuleType("uni_agent.training.cpu.device")
    for name in dir(torch.cpu):
        if not name.startswith("__"):
            setattr(module, name, getattr(torch.cpu, name))
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(module, name, _zero)
    for name in (
        "empty_cache",
        "ipc_collect",
        "reset_peak_memory_stats",
        "reset_accumulated_memory_stats",
        "set_per_process_memory_fraction",
    ):
        setattr(module, name, _nothing)
    extra: dict[str, Any] = {
        "mem_get_info": _memory,
        "get_device_name": _name,
        "get_rng_state": _rng_state,
        "set_rng_state": _set_rng_state,
        "is_available": _yes,
    }
    for name, value in extra.items():
        setattr(module, name, value)
    return module


class CpuPlatform(_Base):
    """What verl asks of a platform, for processes without an accelerator."""

    device_name = NAME
    vendor_name = NAME
    device_module = device_module()

    def is_available(self) -> bool:
        """Always."""
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Never found by itself: a machine that has lost its GPUs must not train on the CPU unasked."""
        del use_smi_check
        return False

    def current_device(self) -> Any:
        """The device and no index: verl passes it on to torch, where 0 would mean an accelerator."""
        return torch.device(NAME)

    def device_count(self) -> int:
        """One for each process."""
        return 1

    def set_device(self, device_index: int) -> None:
        """Nothing to choose."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Nothing runs ahead."""

    def manual_seed(self, seed: int) -> None:
        """Seed torch's generator."""
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed torch's generator."""
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """No allocator to set."""

    def empty_cache(self) -> None:
        """No cache to empty."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """None to compare with."""
        del device_index
        return None, None

    def communication_backend_name(self) -> str:
        """`gloo`; in a training worker the process group is made here.

        verl joins the name to `cpu:gloo,cpu:gloo` (`utils/distributed.py`), which torch refuses as a duplicate device.
        It does so before it looks whether there is a group already, and then takes the one it finds: this is the only
        seam. `WG_BACKEND=ray` marks workers, whose rank and rendezvous verl has put into the environment.
        """
        if os.environ.get("WG_BACKEND") == "ray" and not torch.distributed.is_initialized():
            torch.distributed.init_process_group(
                "gloo",
                rank=int(os.environ.get("RANK", "0")),
                world_size=int(os.environ.get("WORLD_SIZE", "1")),
                init_method=os.environ.get("DIST_INIT_METHOD"),
            )
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """The variable that Ray sets for its logical GPUs."""
        return "CUDA_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        """`GPU`: verl counts it before it starts (`single_controller/ray/base.py`); the run declares logical ones."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """None."""
        return []

    def is_ipc_supported(self) -> bool:
        """No handles to share between processes."""
        return False

    @contextmanager
    def nvtx_range(self, msg: str) -> Generator[None]:
        """No profiler of ranges."""
        del msg
        yield

    def profiler_start(self) -> None:
        """No profiler."""

    def profiler_stop(self) -> None:
        """No profiler."""

    def cudart(self) -> None:
        """No such runtime."""


def register() -> None:
    """Tell verl's `PlatformRegistry`; a second call changes nothing."""
    if _verl.PlatformRegistry.get(NAME) is not CpuPlatform:
        _verl.PlatformRegistry.register(platform=NAME)(CpuPlatform)
