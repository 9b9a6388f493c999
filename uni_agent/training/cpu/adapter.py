"""The training side of `rollout.name: uni_agent_cpu`: sends the policy's weights to the server's actor."""

from __future__ import annotations

import importlib
import os
from typing import Any, cast

import ray
import torch

from uni_agent.errors import ConfigError
from uni_agent.training.cpu.replica import NAME, server_name

_base: Any = importlib.import_module("verl.workers.rollout.base")
_utils: Any = importlib.import_module("verl.workers.rollout.utils")
_ray = cast("Any", ray)


class CpuServerAdapter(cast("type[Any]", _base.BaseRollout)):
    """One in each training process, and in each worker of a standalone replica; the leader of a replica speaks to it.

    A server is one process, so every process leads a replica of its own: replica and process have the same rank unless
    `replica_rank` says otherwise, as it does in standalone mode.
    """

    def __init__(
        self, config: Any, model_config: Any, device_mesh: Any = None, *args: Any, replica_rank: int = -1, **kwargs: Any
    ) -> None:
        base: Any = super()
        base.__init__(config, model_config, device_mesh, *args, **kwargs)
        self.replica_rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank
        self.is_leader_rank = True
        self._server: Any = None

    @property
    def _actor(self) -> Any:
        """The server, which starts after the training processes."""
        if self._server is None:
            self._server = _ray.get_actor(server_name("policy", self.replica_rank))
        return self._server

    async def resume(self, tags: list[str]) -> None:
        """Wake the server."""
        await self._actor.wake_up.remote(tags=tags)

    async def release(self) -> None:
        """Send the server to sleep."""
        await self._actor.sleep.remote()

    async def update_weights(
        self, weights: Any, global_steps: int | None = None, wire_format: str = "named_tensors", **kwargs: Any
    ) -> None:
        """Give the server the tensors that `weights` yields, as those of `global_steps`.

        The generator is drained in every process and to its end: it gathers shards, which waits for all. Raises
        ConfigError for what is not full named tensors.
        """
        tensors: dict[str, Any] = {}
        async for name, tensor in _utils.ensure_async_iterator(weights):
            tensors[name] = as_array(tensor)
        if wire_format != "named_tensors":
            raise ConfigError(f"rollout.name={NAME} takes full tensors, not checkpoint_engine's {wire_format!r}")
        if kwargs.get("peft_config") is not None:
            raise ConfigError(
                f"rollout.name={NAME} has no adapters: set actor_rollout_ref.model.lora.merge to true, so that LoRA is "
                "merged into the weights that are sent"
            )
        await self._actor.update_weights.remote(tensors, global_steps)


def as_array(tensor: Any) -> Any:
    """A copy of `tensor` as a numpy array; floats become float32, which the engine runs in.

    A copy, since the tensor may be the parameter itself, which verl changes back when LoRA was merged for sending.
    """
    detached: torch.Tensor = tensor.detach()
    dtype = torch.float32 if detached.is_floating_point() else detached.dtype
    return cast("Any", detached.to("cpu", dtype, copy=True).contiguous()).numpy()
