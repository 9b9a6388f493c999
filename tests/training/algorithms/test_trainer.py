"""Our trainers over verl's own code and a real TransferQueue: advantages, padding, metrics, names of settings."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("verl") is None or importlib.util.find_spec("transfer_queue") is None:
    pytest.skip("verl and TransferQueue are not installed", allow_module_level=True)

import torch

from uni_agent.training import algorithms, trainer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

POLICY = Path(__file__).parents[3] / "uni_agent" / "assets" / "quickstart_policy"
REWARDS = [1.0, 0.0, 0.0, 1.0]
CHAINS = [1, 3, 1, 2]


@pytest.fixture(scope="module")
def v1() -> Any:
    algorithms.register()
    trainer.register()
    return importlib.import_module("verl.trainer.ppo.v1")


@pytest.fixture(scope="module")
def queue(v1: Any) -> Iterator[Any]:
    """TransferQueue in a Ray of its own."""
    ray: Any = importlib.import_module("ray")
    tq: Any = importlib.import_module("transfer_queue")
    omegaconf: Any = importlib.import_module("omegaconf")
    ray.init(
        address="local",
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=200_000_000,
        namespace=f"algorithms-{uuid.uuid4().hex}",
    )
    storage = {"total_storage_size": 1000, "num_data_storage_units": 1}
    tq.init(omegaconf.OmegaConf.create({"backend": {"storage_backend": "SimpleStorage", "SimpleStorage": storage}}))
    yield tq
    tq.close()
    ray.shutdown()


def compose(*overrides: str) -> Any:
    hydra: Any = importlib.import_module("hydra")
    verl: Any = importlib.import_module("verl")
    folder = str(Path(verl.__file__).parent / "trainer" / "config")
    common = [
        f"actor_rollout_ref.model.path={POLICY}",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
        "actor_rollout_ref.rollout.n=4",
        "trainer.n_gpus_per_node=1",
        "data.max_response_length=10",
    ]
    with hydra.initialize_config_dir(folder, version_base=None):
        return hydra.compose("ppo_trainer", overrides=[*common, *overrides])


def made(v1: Any, *overrides: str, mode: str = "sync", step: int = 6) -> Any:
    """A trainer as far as it needs no workers."""
    config = compose(f"trainer.v1.trainer_mode=uni_agent_{mode}", "algorithm.adv_estimator=uni_agent_grpo", *overrides)
    cls = v1.get_trainer_cls(config.trainer.v1.trainer_mode)

    class Idle(cls):
        def _build_replay_buffer(self) -> Any:
            return None

    one = Idle(config)
    one.global_steps = step
    one._get_n_gpus_for_throughput = lambda: 1
    return one


def side(sample: int, chain: int, *, trusted: bool = True) -> dict[str, Any]:
    last = chain == CHAINS[sample] - 1
    return {
        "trusted": trusted,
        "exit_reason": "finished" if sample else "max_step_limit",
        "attempts": 1 + (sample == 2),
        "turns": [[chain, 0, 2]],
        "segments": [["thought", chain, 0, 1], ["action", chain, 1, 2]],
        "turn_scores": [],
        "weight_spans": [["4" if sample == 3 else "5", 0, 2]],
        "chain": chain,
        "chains": CHAINS[sample],
        "metrics": {"turns": 2.0, "tokens_sampled": 2.0, "seconds_model": float(sample)} if last else {},
    }


def rows(*, known: bool = True, untrusted: int | None = None) -> tuple[list[str], list[dict[str, Any]], list[Any]]:
    """Keys, tags and fields of TRN-01's batch: one prompt, 4 samples, 7 chains."""
    keys: list[str] = []
    tags: list[dict[str, Any]] = []
    fields: list[dict[str, Any]] = []
    for sample, count in enumerate(CHAINS):
        for chain in range(count):
            keys.append(f"p_{sample}_{chain}")
            tags.append(
                {
                    "status": "success",
                    "prompt_len": 2,
                    "response_len": 3,
                    "seq_len": 5,
                    "min_global_steps": 4,
                    "max_global_steps": 5,
                }
            )
            mask = torch.tensor([0, 0, 0] if sample == untrusted else [1, 1, 0])
            extra: dict[str, Any] = {"min_global_steps": 4, "reward_extra_info": {}}
            if known:
                extra["uni_agent"] = side(sample, chain, trusted=sample != untrusted)
            fields.append(
                {
                    "uid": "p",
                    "prompts": torch.tensor([1, 2]),
                    "responses": torch.tensor([3, 4, 5]),
                    "input_ids": torch.tensor([1, 2, 3, 4, 5]),
                    "position_ids": torch.arange(5),
                    "response_mask": mask,
                    "loss_mask": mask.clone(),
                    "rm_scores": torch.tensor([0.0, 0.0, REWARDS[sample]]),
                    "rollout_log_probs": torch.zeros(3),
                    "old_log_probs": torch.zeros(3),
                    "num_turns": 2,
                    "extra_fields": extra,
                }
            )
    return keys, tags, fields


def put(tq: Any, keys: list[str], tags: list[Any], fields: list[Any], *, pad_to: int = 1) -> Any:
    utils: Any = importlib.import_module("verl.utils.tensordict_utils")
    padding: Any = importlib.import_module("verl.trainer.ppo.padding_utils")
    tq.kv_batch_put(
        keys=keys, partition_id="train", fields=utils.list_of_dict_to_tensordict(fields), tags=[dict(t) for t in tags]
    )
    batch = tq.KVBatchMeta(keys=keys, tags=tags, partition_id="train")
    batch = padding.upsample_batch_to_divisible_size(batch, pad_to, 0)
    if len(batch.keys) > len(keys):  # old_log_probs are computed for padding too
        extra = batch.keys[len(keys) :]
        zeros = [{"old_log_probs": torch.zeros(1)} for _ in extra]
        tq.kv_batch_put(keys=extra, partition_id="train", fields=utils.list_of_dict_to_tensordict(zeros))
    return batch


def step(one: Any, tq: Any, batch: Any) -> tuple[list[list[float]], dict[str, Any]]:
    """Advantages as they are in the queue afterwards, and the step's metrics."""
    metrics: dict[str, Any] = {}
    one._compute_advantage(batch, metrics)
    found = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["advantages"])["advantages"]
    advantages = [row.tolist() for row in found.unbind()]
    one._compute_metrics(batch, metrics, {"step": 1.0, "gen": 1.0}, global_steps=one.global_steps, epoch=0)
    tq.kv_clear(keys=batch.keys, partition_id="train")
    return advantages, metrics


@pytest.mark.parametrize("mode", trainer.MODES)
def test_verl_sees_its_own_mode_and_settings(v1: Any, mode: str) -> None:
    more: list[str] = []
    if mode == "separate_async":
        more = [
            "actor_rollout_ref.rollout.nnodes=1",
            "actor_rollout_ref.rollout.n_gpus_per_node=1",
            "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl",
            "data.train_batch_size=8",
            "actor_rollout_ref.actor.ppo_mini_batch_size=2",
            "trainer.v1.separate_async.parameter_sync_step=4",
        ]
    one = made(v1, *more, mode=mode)
    assert one.trainer_mode == one.config.trainer.v1.trainer_mode == mode
    assert isinstance(one, v1.get_trainer_cls(mode))
    assert one.parameter_sync_step == (4 if mode == "separate_async" else 1)


def test_registering_again_changes_nothing(v1: Any) -> None:
    names = [f"uni_agent_{mode}" for mode in trainer.MODES]
    before = [v1.get_trainer_cls(name) for name in names]
    algorithms.register()
    trainer.register()
    assert [v1.get_trainer_cls(name) for name in names] == before


def test_registering_loads_neither_verl_nor_torch() -> None:
    code = (
        "import sys; from uni_agent.training import algorithms, trainer; algorithms.register(); trainer.register();"
        "assert not {'verl', 'torch', 'ray'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ, timeout=60)


@pytest.mark.parametrize("loss", algorithms.LOSSES)
@pytest.mark.parametrize("estimator", algorithms.ESTIMATORS)
def test_verls_configuration_takes_the_names(v1: Any, estimator: str, loss: str) -> None:
    config = compose(
        "trainer.v1.trainer_mode=uni_agent_sync",
        f"algorithm.adv_estimator={estimator}",
        f"actor_rollout_ref.actor.policy_loss.loss_mode={loss}",
    )
    utils: Any = importlib.import_module("verl.utils.config")
    core: Any = importlib.import_module("verl.trainer.ppo.core_algos")
    with pytest.warns(UserWarning, match="Disabled critic"):
        needs = importlib.import_module("verl.trainer.ppo.utils").need_critic(config)
    utils.validate_config(config=config, use_reference_policy=False, use_critic=needs)
    actor = utils.omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    algorithm = utils.omega_conf_to_dataclass(config.algorithm)
    assert callable(core.get_policy_loss_fn(actor.policy_loss.loss_mode))
    assert callable(core.get_adv_estimator_fn(algorithm.adv_estimator))


def test_trn_01_one_group_of_four_samples(v1: Any, queue: Any) -> None:
    one = made(
        v1,
        "algorithm.norm_adv_by_std_in_grpo=false",
        "+actor_rollout_ref.rollout.custom={uni_agent: {train: {credit: {sample_weighting: chain}}}}",
    )
    advantages, metrics = step(one, queue, put(queue, *rows()))
    assert advantages == [[v, v, 0.0] for v in (0.5, -0.5, -0.5, -0.5, -0.5, 0.5, 0.5)]
    assert metrics["uni_agent/samples"] == 4
    assert metrics["uni_agent/chains"] == 7
    assert metrics["uni_agent/groups"] == 1
    assert metrics["uni_agent/groups_short"] == metrics["uni_agent/groups_without_gradient"] == 0
    assert metrics["uni_agent/exit_reason/finished"] == 0.75
    assert metrics["uni_agent/exit_reason/max_step_limit"] == 0.25
    assert metrics["uni_agent/tokens/sampled"] == 8
    assert metrics["uni_agent/retries"] == 1
    assert metrics["uni_agent/seconds/model/mean"] == 1.5
    assert metrics["uni_agent/seconds/model/p95"] == pytest.approx(2.85)
    assert metrics["uni_agent/staleness/token_mean"] == pytest.approx(2 / 7)
    assert metrics["uni_agent/staleness/token_max"] == 1
    assert metrics["uni_agent/credit/tokens_thought"] == 0.5


def test_trn_04_padding_to_four_ranks_changes_neither_advantages_nor_metrics(v1: Any, queue: Any) -> None:
    plain, metrics = step(made(v1), queue, put(queue, *rows()))
    batch = put(queue, *rows(), pad_to=4)
    assert len(batch.keys) == 8
    added = queue.kv_batch_get(
        keys=batch.keys[7:], partition_id="train", select_fields=["uid", "response_mask", "loss_mask", "rm_scores"]
    )
    assert added.pop("uid").tolist() != ["p"]
    assert not any(added[name].values().any() for name in ("response_mask", "loss_mask", "rm_scores"))
    padded, others = step(made(v1), queue, batch)
    assert padded == [*plain, [0.0]]
    ours = {name: value for name, value in metrics.items() if name.startswith("uni_agent/")}
    assert {name: value for name, value in others.items() if name.startswith("uni_agent/")} == ours
    for name in ("critic/score/mean", "critic/advantages/mean", "response_length/mean", "training/num_turns/mean"):
        assert others[name] == metrics[name]


def test_an_untrusted_sample_is_in_no_statistics(v1: Any, queue: Any) -> None:
    one = made(v1, "algorithm.norm_adv_by_std_in_grpo=false")
    advantages, metrics = step(one, queue, put(queue, *rows(untrusted=1)))
    assert advantages[1:4] == [[0.0] * 3] * 3
    # Scores 1, 0 and 1, in 4 chains of 3 samples.
    assert [advantages[i][0] for i in (0, 4, 5, 6)] == pytest.approx([4 / 9, -8 / 9, 2 / 9, 2 / 9])
    assert metrics["uni_agent/untrusted_samples"] == 1
    assert metrics["uni_agent/untrusted_rows"] == 3
    assert metrics["uni_agent/groups_short"] == 1


@pytest.mark.parametrize("estimator", ["uni_agent_grpo", "uni_agent_turn_grpo", "grpo"])
def test_rows_of_another_agent_loop_are_trained_all_the_same(v1: Any, queue: Any, estimator: str) -> None:
    one = made(v1, f"algorithm.adv_estimator={estimator}", "algorithm.norm_adv_by_std_in_grpo=false")
    advantages, metrics = step(one, queue, put(queue, *rows(known=False), pad_to=4))
    assert [row[0] > 0 for row in advantages[:7]] == [True, False, False, False, False, True, True]
    assert metrics["uni_agent/samples"] == 4
    assert "uni_agent/turns" not in metrics


def test_credit_comes_from_the_runs_settings(v1: Any, queue: Any) -> None:
    credit = "{max_staleness: 0, overlong: {buffer: 10, penalty: 1.0}}"
    one = made(v1, f"+actor_rollout_ref.rollout.custom={{uni_agent: {{train: {{credit: {credit}}}}}}}")
    advantages, metrics = step(one, queue, put(queue, *rows()))
    assert advantages[5:] == [[0.0] * 3] * 2
    assert metrics["uni_agent/credit/tokens_stale"] == pytest.approx(4 / 14)
    assert metrics["uni_agent/credit/overlong_penalty"] == pytest.approx(0.3)
