"""Weights for standalone rollout servers (`separate_async`), whole, through Ray's object store: `uni_agent_ray`.

Each synchronisation has a token of its own, and all of one meet in an actor that the sender owns and whose handle
travels in verl's topology. Nothing has a name, so that two runs on one cluster cannot meet, and nothing is counted, so
that a worker which missed a round is not one behind for ever. Importing this module registers the engine.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator
from typing import Any, Final, cast
from uuid import uuid4

import ray

from uni_agent.errors import ConfigError, ModelError
from uni_agent.training.cpu.adapter import as_array
from uni_agent.training.cpu.exchange import Exchange

_base: Any = importlib.import_module("verl.checkpoint_engine.base")
_utils: Any = importlib.import_module("verl.workers.rollout.utils")
_ray = cast("Any", ray)

NAME: Final = "uni_agent_ray"
TIMEOUT_SECONDS: Final = 600.0


@_base.CheckpointEngineRegistry.register(NAME)
class RayCheckpointEngine(cast("type[Any]", _base.CheckpointEngine)):
    """verl's CheckpointEngine: the master puts all tensors once, every receiver takes them.

    `timeout` is how many seconds a receiver waits for the sender
    (`rollout.checkpoint_engine.engine_kwargs.uni_agent_ray.timeout`).
    """

    def __init__(self, bucket_size: int = 0, is_master: bool = False, timeout: float = TIMEOUT_SECONDS) -> None:
        del bucket_size  # nothing is sent in buckets
        if timeout <= 0:
            raise ConfigError(f"checkpoint_engine.engine_kwargs.{NAME}.timeout is {timeout}, not above 0")
        self._is_master = is_master
        self._timeout = timeout
        self._own: Any = None
        self._exchange: Any = None
        self._token = ""

    def prepare(self) -> dict[str, Any]:
        """The master brings the actor where the weights are exchanged; the others have nothing to say."""
        if not self._is_master:
            return {}
        if self._own is None:
            self._own = _ray.remote(Exchange).options(num_cpus=0, max_concurrency=1000).remote()
        return {"exchange": self._own}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any] | None]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Give every worker the actor and the token of this round."""
        exchange = next((one["exchange"] for one in metadata if one), None)
        if exchange is None:
            raise ModelError(f"checkpoint engine {NAME}: none of the training workers is the master")
        token = uuid4().hex

        def shares(count: int) -> dict[str, list[Any]]:
            return {"exchange": [exchange] * count, "token": [token] * count}

        return shares(actor_wg_world_size), shares(rollout_world_size)

    def init_process_group(self, exchange: Any, token: str) -> None:
        """Join the round."""
        self._exchange, self._token = exchange, token

    def finalize(self) -> None:
        """Let go of the round's weights, which frees them in the object store."""
        if self._is_master and self._exchange is not None:
            self._exchange.end.remote(self._token)

    async def send_weights(self, weights: Any, global_steps: int | None = None) -> None:
        """Put what `weights` yields. Every rank drains it, since it gathers shards; the master sends."""
        del global_steps
        tensors: dict[str, Any] = {}
        try:
            async for name, tensor in _utils.ensure_async_iterator(weights):
                if self._is_master:
                    tensors[name] = as_array(tensor)
            if self._is_master:
                await self._exchange.put.remote(self._token, [_ray.put(tensors)])
        except BaseException as error:
            if self._is_master:
                self._exchange.fail.remote(self._token, f"the sender failed: {type(error).__name__}: {error}")
            raise

    async def receive_weights(self, global_steps: int | None = None) -> AsyncGenerator[tuple[str, Any]]:
        """Yield name and tensor of all weights. Raises ModelError when the sender fails or stays away."""
        del global_steps
        torch: Any = importlib.import_module("torch")

        held, failure = await self._exchange.take.remote(self._token, self._timeout)
        if held is None:
            raise ModelError(f"checkpoint engine {NAME}: {failure}")
        tensors: dict[str, Any] = await held[0]
        for name, array in tensors.items():
            yield name, torch.from_numpy(array.copy())
