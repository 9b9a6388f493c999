"""What a run on the CPU needs beside the registered parts: environment variables and overrides of verl's config."""

from __future__ import annotations

from typing import Final, Literal

from uni_agent.errors import ConfigError

Mode = Literal["sync", "colocate_async", "separate_async"]

_OBJECT_STORE_BYTES: Final = 500_000_000
_RAY_CPUS: Final = 12  # for all but the training processes, with room
_FLOAT32: Final = "{param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}"


def environment() -> dict[str, str]:
    """Variables of the run's first process, which the others inherit.

    One thread for each process: there are about 20 of them. Nothing is looked up in the hub, nothing is reported.
    """
    return {
        "VERL_PLATFORM": "cpu",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
        "TQ_NUM_THREADS": "1",  # TransferQueue's default of 8 makes it warn at every call on a small machine
    }


def overrides(
    mode: Mode = "sync",
    *,
    processes: int = 1,
    rollout_processes: int = 1,
    reference: bool = False,
    critic: bool = False,
    poll_interval: float = 0.05,
    train_batch_size: int | None = None,
    filter_groups_metric: str | None = None,
    max_inflight_gen_batches: int = 1,
    refill_failed_groups: bool = False,
) -> list[str]:
    """Hydra overrides of `verl.trainer.main_ppo` for a run on the CPU; those given later win.

    `processes` train; in `separate_async`, `rollout_processes` servers sample beside them. `reference` and `critic` add
    what their models need. `poll_interval` is in seconds. The rest are the values of `data.train_batch_size`,
    `algorithm.filter_groups.metric` (None: no filtering), its `max_inflight_gen_batches`, and
    `trainer.v1.sampler.sync_refill_failed_groups`, of which verl tells a custom sampler nothing. Raises ConfigError for
    numbers that make no run.
    """
    if processes < 1 or rollout_processes < 1:
        raise ConfigError("a run on the CPU needs at least one training process and one rollout process")
    separate = mode == "separate_async"
    gpus = processes + (rollout_processes if separate else 0)
    found = [
        "trainer.device=cpu",
        f"trainer.v1.trainer_mode={mode}",
        "trainer.nnodes=1",
        f"trainer.n_gpus_per_node={processes}",
        "data.return_raw_chat=true",
        "data.dataloader_num_workers=0",
        *_actor(),
        *(_model("actor_rollout_ref.ref", "fsdp_config") if reference else ()),
        *(_model("critic", "fsdp") if critic else ()),
        *_rollout(),
        "reward.num_workers=1",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        # Ray counts logical resources only: verl asks for as many GPUs as processes, and for more CPUs than there are.
        f"ray_kwargs.ray_init.num_cpus={_RAY_CPUS + 4 * gpus}",
        f"+ray_kwargs.ray_init.num_gpus={gpus}",
        "+ray_kwargs.ray_init.include_dashboard=false",
        f"+ray_kwargs.ray_init.object_store_memory={_OBJECT_STORE_BYTES}",
        *_sampler(mode, poll_interval, train_batch_size, filter_groups_metric, max_inflight_gen_batches),
    ]
    if refill_failed_groups:
        found.append("+trainer.v1.sampler.sampler_kwargs.sync_refill_failed_groups=true")
    if separate:
        found += [
            f"actor_rollout_ref.rollout.nnodes={rollout_processes}",
            "actor_rollout_ref.rollout.n_gpus_per_node=1",
            "actor_rollout_ref.rollout.checkpoint_engine.backend=uni_agent_ray",
        ]
    return found


def _actor() -> list[str]:
    """One float32 model, attention of torch, nothing compiled."""
    return [
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "actor_rollout_ref.model.use_remove_padding=false",
        "actor_rollout_ref.model.enable_gradient_checkpointing=false",
        "actor_rollout_ref.actor.use_torch_compile=false",
        *_model("actor_rollout_ref.actor", "fsdp_config"),
    ]


def _model(role: str, engine: str) -> list[str]:
    """FSDP2 in float32 for `role`, whose engine's settings stand under `engine`."""
    return [
        f"{role}.strategy=fsdp2",
        f"{role}.{engine}.use_torch_compile=false",
        f"+{role}.{engine}.mixed_precision={_FLOAT32}",
    ]


def _rollout() -> list[str]:
    """Our server, of one process, and one worker that runs episodes."""
    return [
        "actor_rollout_ref.rollout.name=uni_agent_cpu",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        "actor_rollout_ref.rollout.calculate_log_probs=true",
        "actor_rollout_ref.rollout.load_format=auto",
        "actor_rollout_ref.rollout.agent.num_workers=1",
    ]


def _sampler(
    mode: Mode, poll_interval: float, train_batch_size: int | None, metric: str | None, inflight: int
) -> list[str]:
    key = "trainer.v1.sampler"
    found = [
        f"{key}.custom_sampler.path=pkg://uni_agent.training.cpu.sampler",
        f"{key}.custom_sampler.name={'CpuReplayBuffer' if mode == 'sync' else 'CpuReplayBufferAsync'}",
        f"+{key}.sampler_kwargs.poll_interval={poll_interval}",
    ]
    if metric is None:
        return found
    if mode == "sync":
        if train_batch_size is None:
            raise ConfigError(
                "filtering groups in sync mode needs train_batch_size, the value of data.train_batch_size"
            )
        found.append(f"+{key}.sampler_kwargs.train_batch_size={train_batch_size}")
        found.append(f"+{key}.sampler_kwargs.max_inflight_gen_batches={inflight}")
    return [*found, f"+{key}.sampler_kwargs.filter_groups_metric={metric}"]
