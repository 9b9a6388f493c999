"""The recipes say what the published ones say, in keys that verl has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.training.conftest import ROOT
from uni_agent.cli import main
from uni_agent.config.load import load_config
from uni_agent.pipeline import PipelineConfig
from uni_agent.training.command import verl_command

FOLDER = ROOT / "configs/recipes"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
SUITES = "pkg://uni_agent/data/suites"


def here(name: str) -> list[str]:
    """What a user of a recipe brings: a model, tasks, and held-out tasks where it validates."""
    found = ["model.path=pkg://uni_agent/assets/quickstart_policy", f"data.path={SUITES}/shell_basics_heldout.jsonl"]
    train = load_config(PipelineConfig, FOLDER / f"{name}.yaml").config.train
    if train is not None and train.validation is not None:
        found.append(f"train.validation.data.path={SUITES}/shell_basics.jsonl")
    return found


ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
MEGATRON, ASYNC, MODEL = f"{ACTOR}.megatron", "async_training", "actor_rollout_ref.model"
ALL: dict[str, Any] = {
    "trainer.device": "cuda",
    "algorithm.adv_estimator": "uni_agent_grpo",
    "algorithm.use_kl_in_reward": False,
    f"{ACTOR}.strategy": "megatron",
    f"{ACTOR}.use_kl_loss": False,
    f"{ACTOR}.clip_ratio_c": 10.0,
    f"{ACTOR}.entropy_coeff": 0.0,
    f"{ACTOR}.loss_agg_mode": "token-mean",
    f"{ACTOR}.ppo_epochs": 1,
    f"{ACTOR}.optim.lr": 1e-6,
    f"{ACTOR}.optim.weight_decay": 0.1,
    f"{ACTOR}.optim.lr_decay_style": "constant",
    f"{MEGATRON}.use_mbridge": True,
    f"{ROLLOUT}.mode": "async",
    f"{ROLLOUT}.calculate_log_probs": True,
    f"{ROLLOUT}.temperature": 1.0,
    f"{ROLLOUT}.top_p": 1.0,
    f"{ROLLOUT}.top_k": -1,
    f"{ROLLOUT}.gpu_memory_utilization": 0.7,
    f"{ROLLOUT}.enable_chunked_prefill": True,
    f"{ROLLOUT}.free_cache_engine": True,
    f"{ROLLOUT}.multi_turn.enable": True,
    f"{ROLLOUT}.agent.num_workers": 8,
}


def sizes(
    *, train: tuple[int, int], batch: tuple[int, int, int], window: tuple[int, int], packed: int
) -> dict[str, Any]:
    """(machines, devices of each), (prompts, rollouts of each, prompts of an update), (prompt, response), tokens."""
    return {
        "trainer.nnodes": train[0],
        "trainer.n_gpus_per_node": train[1],
        "data.train_batch_size": batch[0],
        f"{ROLLOUT}.n": batch[1],
        f"{ACTOR}.ppo_mini_batch_size": batch[2],
        f"{ROLLOUT}.prompt_length": window[0],
        f"{ROLLOUT}.response_length": window[1],
        f"{ROLLOUT}.max_model_len": sum(window),
        f"{ACTOR}.ppo_max_token_len_per_gpu": packed,
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu": packed,
    }


def parallel(*, tp: int, pp: int, cp: int, gen_tp: int, ep: int = 1) -> dict[str, Any]:
    """Over how many devices the model lies, for training and for sampling."""
    return {
        f"{MEGATRON}.tensor_model_parallel_size": tp,
        f"{MEGATRON}.pipeline_model_parallel_size": pp,
        f"{MEGATRON}.context_parallel_size": cp,
        f"{MEGATRON}.expert_model_parallel_size": ep,
        "actor_rollout_ref.ref.megatron.tensor_model_parallel_size": tp,
        "actor_rollout_ref.ref.megatron.context_parallel_size": cp,
        f"{ROLLOUT}.tensor_model_parallel_size": gen_tp,
    }


def loss(mode: str, low: float, high: float) -> dict[str, Any]:
    """The policy loss and its clip range."""
    return {
        f"{ACTOR}.policy_loss.loss_mode": mode,
        f"{ACTOR}.clip_ratio_low": low,
        f"{ACTOR}.clip_ratio_high": high,
    }


def fully_async(*, sampling: tuple[int, int], prompts: int, sync: int) -> dict[str, Any]:
    """(machines, devices of each) that sample, prompts in all, updates between two handovers of weights."""
    return {
        "rollout.nnodes": sampling[0],
        "rollout.n_gpus_per_node": sampling[1],
        "rollout.total_rollout_steps": prompts,
        "actor_rollout_ref.hybrid_engine": False,
        f"{ASYNC}.staleness_threshold": 1.0,
        f"{ASYNC}.trigger_parameter_sync_step": sync,
        f"{ASYNC}.require_batches": 1,
        f"{ASYNC}.partial_rollout": True,
    }


DENSE_4B: dict[str, Any] = {
    **parallel(tp=4, pp=1, cp=2, gen_tp=2),
    **loss("vanilla", 0.2, 0.28),
    "trainer.test_freq": 10,
    "trainer.save_freq": 10,
    "trainer.val_before_train": False,
    f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.max_num_batched_tokens": 139264,
    f"{ROLLOUT}.val_kwargs.temperature": 1.0,
    f"{ACTOR}.optim.lr_decay_steps": 2000,
    f"{MEGATRON}.param_offload": False,
    f"{MEGATRON}.override_transformer_config.apply_rope_fusion": False,
    f"{MEGATRON}.override_transformer_config.recompute_granularity": "full",
    f"{ACTOR}.optim.override_optimizer_config.optimizer_cpu_offload": True,
    "actor_rollout_ref.nccl_timeout": 9600,
}
MOE_CODER: dict[str, Any] = {
    **parallel(tp=4, pp=2, cp=4, ep=8, gen_tp=4),
    **loss("gspo", 4e-4, 4e-4),
    f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.enable_rollout_routing_replay": True,
    f"{MEGATRON}.router_replay.mode": "R3",
    f"{MEGATRON}.expert_tensor_parallel_size": 1,
    f"{MEGATRON}.param_offload": True,
    f"{MEGATRON}.optimizer_offload": True,
    f"{MEGATRON}.override_transformer_config.moe_router_dtype": "fp32",
    f"{MEGATRON}.override_transformer_config.moe_token_dispatcher_type": "alltoall",
    "algorithm.rollout_correction.bypass_mode": False,
    "algorithm.rollout_correction.rollout_is": "token",
    "algorithm.rollout_correction.rollout_is_threshold": 2.0,
}
SEPARATE_9B: dict[str, Any] = {
    **sizes(train=(1, 4), batch=(64, 8, 16), window=(4096, 131072), packed=135168),
    **parallel(tp=4, pp=1, cp=1, gen_tp=4),
    **loss("vanilla", 0.2, 0.28),
    "trainer.v1.trainer_mode": "uni_agent_separate_async",
    "trainer.v1.separate_async.parameter_sync_step": 4,
    "trainer.v1.separate_async.num_warmup_batches": 1,
    "trainer.val_before_train": True,
    "algorithm.rollout_correction.bypass_mode": True,
    f"{ACTOR}.use_rollout_log_probs": True,
    f"{MEGATRON}.use_remove_padding": False,
    f"{MEGATRON}.param_offload": True,
    f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.nnodes": 1,
    f"{ROLLOUT}.n_gpus_per_node": 4,
    f"{ROLLOUT}.max_num_batched_tokens": 135168,
    f"{ROLLOUT}.checkpoint_engine.backend": "nccl",
    f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes": 2048,
}
RUNNER = f"{ROLLOUT}.custom.agent_framework.agent_runners.default"

PUBLISHED: dict[str, dict[str, Any]] = {
    "dense_vllm_sync": {
        **DENSE_4B,
        **sizes(train=(8, 8), batch=(32, 8, 16), window=(8192, 131072), packed=69632),
        "trainer.v1.trainer_mode": "uni_agent_sync",
    },
    "dense_colocate_async": {
        **DENSE_4B,
        **sizes(train=(4, 8), batch=(32, 8, 16), window=(8192, 131072), packed=69632),
        "trainer.v1.trainer_mode": "uni_agent_colocate_async",
        "trainer.v1.colocate_async.num_warmup_batches": 1,
    },
    "dense_sglang_sync": {
        **sizes(train=(1, 8), batch=(16, 8, 16), window=(4096, 65536), packed=69632),
        **parallel(tp=8, pp=1, cp=1, gen_tp=8),
        **loss("vanilla", 0.2, 0.28),
        "trainer.v1.trainer_mode": "uni_agent_sync",
        "trainer.max_actor_ckpt_to_keep": 2,
        f"{ACTOR}.optim.clip_grad": 1.0,
        f"{ACTOR}.optim.lr_decay_steps": 20480,
        f"{MEGATRON}.vanilla_mbridge": True,
        f"{ROLLOUT}.name": "sglang",
        f"{ROLLOUT}.engine_kwargs.sglang.mamba_scheduler_strategy": "no_buffer",
        f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes": 1024,
        f"{MODEL}.mtp.enable_rollout": True,
        f"{MODEL}.mtp.speculative_algorithm": "NEXTN",
        f"{MODEL}.mtp.speculative_num_steps": 3,
        f"{MODEL}.mtp.speculative_num_draft_tokens": 4,
    },
    "moe_router_replay": {
        **MOE_CODER,
        **sizes(train=(8, 8), batch=(64, 8, 16), window=(8192, 131072), packed=34816),
        "trainer.v1.trainer_mode": "uni_agent_colocate_async",
        "trainer.v1.colocate_async.num_warmup_batches": 1,
        "trainer.test_freq": -1,
        "trainer.save_freq": 10,
        f"{MODEL}.use_fused_kernels": True,
        f"{ACTOR}.optim.lr_decay_steps": 2000,
    },
    "moe_fully_async": {
        **MOE_CODER,
        **sizes(train=(4, 8), batch=(0, 16, 8), window=(8192, 131072), packed=34816),
        **fully_async(sampling=(12, 8), prompts=10_000, sync=4),
        "algorithm.rollout_correction.rollout_rs": "seq_mean_k1",
        "algorithm.rollout_correction.rollout_rs_threshold": "0.999_1.001",
        f"{ACTOR}.optim.lr_decay_steps": 10_000,
    },
    "search_fully_async": {
        **sizes(train=(4, 8), batch=(0, 8, 16), window=(2048, 129024), packed=65536),
        **parallel(tp=4, pp=2, cp=2, ep=8, gen_tp=4),
        **loss("gspo", 0.2, 0.28),
        **fully_async(sampling=(4, 8), prompts=200_000, sync=8),
        f"{ROLLOUT}.name": "sglang",
        f"{ACTOR}.optim.lr_decay_steps": 200_000,
        f"{MEGATRON}.override_transformer_config.moe_enable_deepep": True,
        f"{MEGATRON}.override_transformer_config.moe_token_dispatcher_type": "flex",
        f"{MEGATRON}.override_transformer_config.recompute_num_layers": 2,
        "algorithm.rollout_correction.bypass_mode": True,
    },
    "dense_separate_async": {
        **SEPARATE_9B,
        f"{ACTOR}.use_dynamic_bsz": False,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": 1,
        f"{MEGATRON}.override_transformer_config.recompute_granularity": "full",
    },
    "blackbox_gateway": {
        **SEPARATE_9B,
        f"{ACTOR}.use_dynamic_bsz": True,
        f"{ROLLOUT}.custom.agent_framework.gateway_count": 1,
        f"{ROLLOUT}.custom.agent_framework.use_reward_loop_worker": False,
        f"{RUNNER}.dispatch_mode": "ray_task",
        f"{RUNNER}.max_concurrent_sessions": 32,
        f"{RUNNER}.trajectory_selection": "longest",
    },
}


def at(config: Mapping[str, Any], key: str) -> Any:
    for step in key.split("."):
        config = config[step]
    return config


def test_every_recipe_is_compared_with_its_publication() -> None:
    assert sorted(PUBLISHED) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_complete_but_for_the_model_and_the_data(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["check", str(FOLDER / f"{name}.yaml"), *(word for text in here(name) for word in ("-o", text))])
    told = capsys.readouterr()
    assert (code, told.err) == (0, "")


@pytest.mark.slow
@pytest.mark.usefixtures("verl_installed")
@pytest.mark.parametrize("name", NAMES)
def test_verl_takes_a_recipe_with_its_published_values(name: str, tmp_path: Path) -> None:
    loaded = load_config(PipelineConfig, FOLDER / f"{name}.yaml", here(name))
    command = verl_command(loaded.config, tmp_path)
    command.write()
    whole = command.resolved()
    expected = {**ALL, **PUBLISHED[name]}
    assert {key: at(whole, key) for key in expected} == expected
    devices = at(whole, "trainer.nnodes") * at(whole, "trainer.n_gpus_per_node")
    lengths = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    assert devices % math.prod(at(whole, f"{MEGATRON}.{length}") for length in lengths) == 0
    _builds(whole["actor_rollout_ref"])


def _builds(settings: dict[str, Any]) -> None:
    """Verl makes its own records of the parts: a key that they lack is an error there, not in Hydra."""
    omegaconf: Any = import_module("omegaconf")
    convert: Any = import_module("verl.utils.config").omega_conf_to_dataclass
    for part in ("actor", "rollout"):
        convert(omegaconf.OmegaConf.create(settings[part]))
