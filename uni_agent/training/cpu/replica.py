"""`rollout.name: uni_agent_cpu`: verl's replica whose server is ours, an actor of Ray without a port."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, cast

import ray

from uni_agent.errors import ConfigError
from uni_agent.training.cpu.server import RolloutServer, ServerConfig

_replica: Any = importlib.import_module("verl.workers.rollout.replica")
_fs: Any = importlib.import_module("verl.utils.fs")
_ray = cast("Any", ray)

NAME = "uni_agent_cpu"
_MOST_BATCH = 64


def server_name(kind: str, replica_rank: int, suffix: str = "") -> str:
    """The name of a server's actor. Names are unique in a job: several runs may share one cluster and namespace."""
    job = _ray.get_runtime_context().get_job_id()
    return f"uni_agent_cpu_server_{kind}_{replica_rank}{suffix}_{job}"


def server_config(config: Any, model_path: str, replica_rank: int) -> ServerConfig:
    """What verl's RolloutConfig says of a server. Raises ConfigError for parallelism, which one process has not."""
    for key in ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size"):
        if getattr(config, key) != 1:
            raise ConfigError(f"actor_rollout_ref.rollout.{key} must be 1 with rollout.name={NAME}")
    kwargs: dict[str, Any] = dict(config.engine_kwargs or {})
    options: dict[str, Any] = dict(kwargs.get(NAME) or {})
    return ServerConfig(
        model=Path(_fs.copy_to_local(model_path)),
        prompt_length=config.prompt_length,
        response_length=config.response_length,
        max_context=config.max_model_len,
        max_batch=int(options.pop("max_batch", min(config.max_num_seqs, _MOST_BATCH))),
        repetition_penalty=getattr(config, "repetition_penalty", 1.0),
        ignore_eos=config.ignore_eos,
        seed=config.seed + replica_rank,
        options=options,
    )


class CpuReplica(cast("type[Any]", _replica.RolloutReplica)):
    """One server actor; its address is its name, which the load balancer takes as an id."""

    async def launch_servers(self) -> None:
        """Start the actor and wait until its model is loaded."""
        kind = "reward" if self.is_reward_model else "teacher" if self.is_teacher_model else "policy"
        name = server_name(kind, self.replica_rank, self.name_suffix)
        config = server_config(self.config, self.model_config.path, self.replica_rank)
        actor: Any = _ray.remote(RolloutServer)
        server = actor.options(name=name, num_cpus=1, max_concurrency=self.max_concurrency).remote(config)
        await server.start.remote()
        self.servers = [server]
        self._server_handle = server
        self._server_address = name
