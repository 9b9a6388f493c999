"""From a pipeline to verl's configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.training.conftest import pipeline_text
from uni_agent.config.load import from_data
from uni_agent.errors import ConfigError
from uni_agent.pipeline import PipelineConfig
from uni_agent.training.command import VerlCommand, check_data, verl_command, with_plugin
from uni_agent.training.resolve import resolved_config

pytestmark = pytest.mark.usefixtures("verl_installed")


def command(run_dir: Path, *, resume: bool = False, **train: Any) -> VerlCommand:
    return verl_command(from_data(PipelineConfig, pipeline_text(**train)), run_dir, resume=resume)


def at(config: Mapping[str, Any], key: str) -> Any:
    for step in key.split("."):
        config = config[step]
    return config


@pytest.mark.parametrize(
    ("train", "key", "value"),
    [
        ({"steps": 7}, "trainer.total_training_steps", 7),
        ({"tasks_per_step": 8}, "data.train_batch_size", 8),
        ({"samples_per_task": 5}, "actor_rollout_ref.rollout.n", 5),
        ({}, "actor_rollout_ref.rollout.n", 2),  # run.samples_per_task
        ({"tasks_per_step": 8, "mini_batch_tasks": 4}, "actor_rollout_ref.actor.ppo_mini_batch_size", 4),
        ({"learning_rate": 3e-4}, "actor_rollout_ref.actor.optim.lr", 3e-4),
        ({"advantage": "turn_grpo"}, "algorithm.adv_estimator", "uni_agent_turn_grpo"),
        ({"policy_loss": "uni_agent_action"}, "actor_rollout_ref.actor.policy_loss.loss_mode", "uni_agent_action"),
        ({"mode": "colocate_async"}, "trainer.v1.trainer_mode", "uni_agent_colocate_async"),
        ({"kl_coefficient": 0.01}, "actor_rollout_ref.actor.use_kl_loss", True),
        ({}, "actor_rollout_ref.rollout.name", "uni_agent_cpu"),
        ({"device": "cuda"}, "actor_rollout_ref.rollout.name", "vllm"),
        ({}, "actor_rollout_ref.rollout.max_model_len", 768),
        (
            {"overrides": {"actor_rollout_ref.actor.optim.weight_decay": 0.5}},
            "actor_rollout_ref.actor.optim.weight_decay",
            0.5,
        ),
        ({"overrides": {"actor_rollout_ref": {"actor": {"grad_clip": 2}}}}, "actor_rollout_ref.actor.grad_clip", 2),
    ],
)
def test_a_field_becomes_the_key_that_verl_reads(tmp_path: Path, train: dict[str, Any], key: str, value: Any) -> None:
    assert at(command(tmp_path, **train).config, key) == value


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        ({"actor_rollout_ref.rollout.n": 9}, "train.samples_per_task"),
        ({"actor_rollout_ref": {"actor": {"optim": {"lr": 1.0}}}}, "train.learning_rate"),
        ({"data.train_batch_size": 3}, "train.tasks_per_step"),
        ({"actor_rollout_ref.rollout.temperature": 0.2}, "model.sampling.temperature"),
        ({"trainer.resume_mode": "auto"}, "--resume"),
    ],
)
def test_an_override_that_contradicts_a_field_is_refused_by_name(
    tmp_path: Path, overrides: dict[str, Any], field: str
) -> None:
    with pytest.raises(ConfigError, match=r"train\.overrides\.") as refused:
        command(tmp_path, overrides=overrides)
    assert f"set {field}" in str(refused.value)


def test_an_override_that_says_the_same_is_fine(tmp_path: Path) -> None:
    assert command(tmp_path, overrides={"actor_rollout_ref.rollout.n": 2}).config


def test_names_of_the_agent_framework_stay_where_their_users_have_them(tmp_path: Path) -> None:
    rollout = {"type": "gateway", "gateway_count": 3, "agent_runners": {"shell": {"max_concurrent_sessions": 4}}}
    config = command(tmp_path, rollout=rollout).config
    framework = at(config, "actor_rollout_ref.rollout.custom.agent_framework")
    assert framework["gateway_count"] == 3
    assert framework["agent_runners"]["shell"]["max_concurrent_sessions"] == 4
    assert at(config, "actor_rollout_ref.rollout.agent.agent_loop_manager_class").endswith(
        "AgentFrameworkRolloutAdapter"
    )
    with pytest.raises(ConfigError, match=r"gateway_count: 4 disagrees with train\.rollout\.gateway_count"):
        key = "actor_rollout_ref.rollout.custom.agent_framework.gateway_count"
        command(tmp_path, rollout=rollout, overrides={key: 4})


def test_filtering_of_groups_reaches_the_sampler_of_the_cpu(tmp_path: Path) -> None:
    overrides = {"algorithm.filter_groups.enable": True, "algorithm.filter_groups.metric": "reward"}
    config = command(tmp_path, overrides=overrides).config
    assert at(config, "trainer.v1.sampler.sampler_kwargs.filter_groups_metric") == "reward"
    assert at(config, "trainer.v1.sampler.sampler_kwargs.train_batch_size") == 4
    with pytest.raises(KeyError):
        at(command(tmp_path).config, "trainer.v1.sampler.sampler_kwargs.filter_groups_metric")


def test_a_resumed_run_looks_for_its_checkpoint_and_a_new_one_does_not(tmp_path: Path) -> None:
    assert at(command(tmp_path).config, "trainer.resume_mode") == "disable"
    assert at(command(tmp_path, resume=True).config, "trainer.resume_mode") == "auto"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"type": "openai_compatible", "model": "m"}}, "needs `model: {type: verl"),
        ({"train": {"steps": 1, "exits": {"sandbox_error": "train"}}}, "says nothing about the model"),
        ({"train": {"steps": 1, "tasks_per_step": 6, "mini_batch_tasks": 4}}, "does not divide"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_starts(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_data(PipelineConfig, {**pipeline_text(), **change})


def test_sampling_that_the_trainer_cannot_compute_is_refused() -> None:
    text = pipeline_text()
    text["model"]["sampling"]["repetition_penalty"] = 1.1
    with pytest.raises(ConfigError, match="repetition_penalty"):
        from_data(PipelineConfig, text)


def test_what_is_wrong_with_the_tasks_is_said_before_anything_starts() -> None:
    config = from_data(PipelineConfig, pipeline_text(tasks_per_step=61))
    tasks = config.data.build().load()
    assert config.train is not None
    with pytest.raises(ConfigError, match="only 60 tasks"):
        check_data(config.train, tasks, [])
    validation = {"data": pipeline_text()["data"], "group_by": "colour"}
    train = from_data(PipelineConfig, pipeline_text(validation=validation)).train
    assert train is not None
    with pytest.raises(ConfigError, match="holds no task"):
        check_data(train, tasks, [])
    with pytest.raises(ConfigError, match=r"group_by: task 'shell-basics-01-create' has no metadata 'colour'"):
        check_data(train, tasks, tasks)
    check_data(train.model_copy(update={"validation": None}), tasks, [])


def test_a_task_chooses_its_agent_by_name(tmp_path: Path) -> None:
    config = from_data(PipelineConfig, pipeline_text())
    tasks = config.data.build().load()
    named = [tasks[0].model_copy(update={"metadata": {**tasks[0].metadata, "agent_name": "careful"}}), *tasks[1:]]
    assert config.train is not None
    with pytest.raises(ConfigError, match=r"'careful' is none of uni_agent"):
        check_data(config.train, named, [])
    other = tmp_path / "careful.yaml"
    made = command(tmp_path, rollout={"type": "in_process", "pipelines": {"careful": str(other)}})
    loops = yaml.safe_load(made.files()[tmp_path / "verl" / "agent_loops.yaml"])
    assert [(loop["name"], loop.get("pipeline")) for loop in loops] == [("uni_agent", None), ("careful", str(other))]
    runners: dict[str, Any] = {"type": "gateway", "agent_runners": {"a": {}, "b": {}}}
    several = from_data(PipelineConfig, pipeline_text(rollout=runners)).train
    assert several is not None
    with pytest.raises(ConfigError, match=r"metadata\.agent_name has to say which: a, b"):
        check_data(several, tasks, [])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"trainer.tset_freq": 5}, r"trainer\.tset_freq: verl's configuration has no such key.*test_freq"),
        ({"actor_rollout_ref.rollout.custom.uni_agent.train.credit.max_staleness": 2}, "disagrees with train"),
        ({"transfer_queue.enable": False}, r"disagrees with train\.mode"),
        ({"+actor_rollout_ref.rollout.agent.agent_loop_manager_class": "x.Y"}, r"disagrees with train\.rollout\.type"),
    ],
)
def test_an_override_that_would_be_lost_is_refused(tmp_path: Path, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        command(tmp_path, overrides=overrides)


def test_a_key_that_verls_files_do_not_name_is_written_with_a_plus(tmp_path: Path) -> None:
    key = "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype"
    assert at(command(tmp_path, overrides={f"+{key}": "bf16"}).config, key) == "bf16"


def test_options_of_a_runner_may_be_given_where_its_users_have_them(tmp_path: Path) -> None:
    key = "actor_rollout_ref.rollout.custom.agent_framework.agent_runners.default.runner_kwargs.report_reward"
    config = command(tmp_path, rollout={"type": "gateway"}, overrides={key: True}).config
    assert at(config, key) is True


def test_the_users_own_modules_stay() -> None:
    assert with_plugin("") == "uni_agent.training.plugin"
    assert with_plugin("mine.losses") == "mine.losses,uni_agent.training.plugin"
    assert with_plugin(with_plugin("a")) == with_plugin("a")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "colocate_async", "separate_async", "fully_async"])
def test_verl_takes_the_configuration(tmp_path: Path, mode: str) -> None:
    held_out = {"type": "jsonl", "path": "pkg://uni_agent/data/suites/shell_basics_heldout.jsonl"}
    made = command(tmp_path, mode=mode, validation={"data": held_out, "group_by": "kind"})
    made.write()
    whole = resolved_config(made.folders.verl, made.entry)
    assert at(whole, "actor_rollout_ref.rollout.custom.uni_agent.run_dir") == str(tmp_path)
    assert at(whole, "actor_rollout_ref.rollout.response_length") == 512
    assert json.dumps(whole)
    loops = yaml.safe_load((made.folders.verl / "agent_loops.yaml").read_text())
    assert [loop["name"] for loop in loops] == ["uni_agent"]


def test_a_value_in_place_of_a_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'algorithm' is given a value of its own, but algorithm\."):
        command(tmp_path, overrides={"algorithm": "nothing"})


def test_what_verl_refuses_is_a_configuration_error(tmp_path: Path) -> None:
    made = command(tmp_path, overrides={"trainer.project_name": "${nowhere}"})
    made.write()
    with pytest.raises(ConfigError, match=r"verl does not take this configuration.*nowhere"):
        resolved_config(made.folders.verl)
