"""What is registered with verl, the sampler, the exchange of weights, and the settings of a run."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import subprocess
import sys
from typing import Any

import pytest

if importlib.util.find_spec("verl") is None:
    pytest.skip("verl is not installed", allow_module_level=True)

from uni_agent.errors import ConfigError, ModelError
from uni_agent.training.cpu import environment, overrides, register, registered
from uni_agent.training.cpu.settings import Mode


def buffer(name: str, refill: Any = None, **sampler_kwargs: Any) -> Any:
    """A sampler made as `PPOTrainer._build_replay_buffer` makes a custom one."""
    sampler: Any = importlib.import_module("uni_agent.training.cpu.sampler")
    return getattr(sampler, name)(
        trainer_mode="sync",
        trainer_config={},
        max_off_policy_threshold=8,
        max_off_policy_strategy="drop",
        sampler_kwargs=sampler_kwargs,
        refill_fn=refill,
    )


@pytest.mark.slow
def test_registering_twice_is_registering_once_and_verl_knows_all_parts() -> None:
    register()
    register()
    found = registered()
    assert len(found) == 5
    assert all(found.values())


@pytest.mark.slow
def test_a_process_without_the_plugin_is_told_what_is_missing() -> None:
    code = "from uni_agent.training.cpu import registered; registered()"
    env = {key: value for key, value in os.environ.items() if not key.startswith("VERL_")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "verl does not know: platform cpu, rollout engine uni_agent_cpu" in done.stderr
    assert "VERL_USE_EXTERNAL_MODULES=uni_agent.training.plugin" in done.stderr


def test_the_platform_has_what_verl_asks_of_a_device() -> None:
    register()
    torch: Any = importlib.import_module("torch")
    registry: Any = importlib.import_module("verl.plugin.platform").PlatformRegistry
    platform = registry.get("cpu")()
    module = platform.device_module
    assert (platform.device_name, platform.current_device()) == ("cpu", torch.device("cpu"))
    assert not platform.is_platform_available()  # nobody trains on the CPU unasked
    free, total = module.mem_get_info()
    assert 0 < free <= total
    assert module.memory_allocated() == module.max_memory_reserved() == 0
    state = module.get_rng_state()
    drawn = torch.rand(3)
    module.set_rng_state(state)
    assert torch.equal(torch.rand(3), drawn)
    module.empty_cache()
    with platform.nvtx_range("step"):
        pass


@pytest.mark.parametrize("name", ["CpuReplayBuffer", "CpuReplayBufferAsync"])
def test_a_sampler_is_verls_with_another_interval(name: str) -> None:
    assert buffer(name).poll_interval == 0.05
    made = buffer(name, poll_interval=0.5)
    assert made.poll_interval == 0.5
    assert (made.max_off_policy_threshold, made.filter_groups_metric, made.sync_refill_failed_groups) == (
        8,
        None,
        False,
    )


def test_filtering_and_refilling_are_those_of_the_built_in_sampler() -> None:
    made = buffer("CpuReplayBuffer", print, filter_groups_metric="acc", train_batch_size=4, max_inflight_gen_batches=2)
    found = (made.filter_groups_metric, made.train_batch_size, made.gen_batch_size, made.max_inflight_gen_batches)
    assert found == ("acc", 4, 1, 2)
    refilling = buffer("CpuReplayBuffer", print, sync_refill_failed_groups=True)
    assert (refilling.sync_refill_failed_groups, refilling.gen_batch_size) == (True, 1)
    assert buffer("CpuReplayBufferAsync", print, filter_groups_metric="reward").filter_groups_metric == "reward"


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"poll_intervall": 1}, "poll_intervall"),
        ({"poll_interval": 0}, "poll_interval"),
        ({"poll_interval": "fast"}, "poll_interval"),
        ({"filter_groups_metric": 3}, "filter_groups_metric"),
        ({"filter_groups_metric": "acc"}, "train_batch_size"),
        ({"sync_refill_failed_groups": "yes"}, "sync_refill_failed_groups"),
    ],
)
def test_settings_that_a_sampler_cannot_use_are_refused(kwargs: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        buffer("CpuReplayBuffer", print, **kwargs)


def composed(*more: str) -> Any:
    """verl's own configuration under the overrides: a key that it has not is an error."""
    hydra: Any = importlib.import_module("hydra")
    folder = importlib.import_module("verl.trainer").__path__[0] + "/config"
    with hydra.initialize_config_dir(config_dir=folder, version_base=None):
        return hydra.compose(config_name="ppo_trainer", overrides=list(more))


@pytest.mark.parametrize("mode", ["sync", "colocate_async", "separate_async"])
def test_overrides_are_keys_of_verls_configuration(mode: Mode) -> None:
    config = composed(
        *overrides(
            mode,
            processes=2,
            reference=True,
            critic=True,
            train_batch_size=4,
            filter_groups_metric="acc",
            refill_failed_groups=True,
        )
    )
    assert config.trainer.v1.trainer_mode == mode
    assert config.actor_rollout_ref.ref.strategy == config.critic.strategy == "fsdp2"
    assert config.actor_rollout_ref.ref.fsdp_config.mixed_precision.param_dtype == "fp32"
    assert config.ray_kwargs.ray_init.num_gpus == (3 if mode == "separate_async" else 2)
    sampler: Any = importlib.import_module("uni_agent.training.cpu.sampler")
    kwargs = config.trainer.v1.sampler.sampler_kwargs
    assert sampler.options(kwargs, sync=mode == "sync")["filter_groups_metric"] == "acc"


def test_numbers_that_make_no_run_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        overrides(processes=0)
    with pytest.raises(ConfigError, match="train_batch_size"):
        overrides(filter_groups_metric="acc")
    assert environment()["VERL_PLATFORM"] == "cpu"


@pytest.mark.slow
def test_a_process_may_begin_with_any_of_our_modules() -> None:
    """As one does that unpickles a class of ours: verl is imported from within, and its plugin reaches back."""
    env = {**os.environ, **environment(), "VERL_USE_EXTERNAL_MODULES": "uni_agent.training.cpu.plugin"}
    for name in ("checkpoint_engine", "engine"):
        code = f"import uni_agent.training.cpu.{name}; from uni_agent.training.cpu import registered; registered()"
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def exchange() -> Any:
    return importlib.import_module("uni_agent.training.cpu.exchange").Exchange()


async def test_weights_are_taken_by_all_whoever_comes_first_and_let_go_of() -> None:
    held = exchange()
    early = asyncio.ensure_future(held.take("a", 5))
    await asyncio.sleep(0)
    await held.put("a", ["weights"])
    assert await early == (["weights"], None)
    assert await held.take("a", 5) == (["weights"], None)
    await held.end("a")
    assert (await held.take("a", 5))[0] is None
    await held.put("b", ["newer"])
    assert await held.take("b", 5) == (["newer"], None)


async def test_nobody_waits_for_a_sender_that_failed_or_stays_away() -> None:
    held = exchange()
    early = asyncio.ensure_future(held.take("a", 5))
    await asyncio.sleep(0)
    await held.fail("a", "the sender failed: ValueError")
    assert await early == (None, "the sender failed: ValueError")
    assert await held.take("b", 0.01) == (None, "the sender has sent nothing for 0.01 s")


def test_the_topology_brings_all_workers_to_the_masters_exchange() -> None:
    module: Any = importlib.import_module("uni_agent.training.cpu.checkpoint_engine")
    engine = module.RayCheckpointEngine
    first, second = (engine.build_topology(2, 3, [{}, {"exchange": "actor"}, None]) for _ in range(2))
    assert first[0]["exchange"] + first[1]["exchange"] == ["actor"] * 5
    tokens = {*first[0]["token"], *first[1]["token"]}
    assert len(tokens) == 1
    assert tokens.isdisjoint(second[0]["token"])
    with pytest.raises(ModelError, match="master"):
        engine.build_topology(1, 1, [{}, {}])
    assert engine(bucket_size=1).prepare() == {}  # a receiver has nothing to say
