"""From a pipeline to verl: the configuration of its trainer, its environment and its command line."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from uni_agent.config.dump import dump_yaml
from uni_agent.data.verl_rows import AGENT_NAME, write_verl_parquet
from uni_agent.errors import ConfigError, boundary
from uni_agent.model.config import VerlModelConfig
from uni_agent.optional import load
from uni_agent.training import verl_files
from uni_agent.training.config import GatewayRollout, InProcessRollout, TrainConfig

if TYPE_CHECKING:
    from uni_agent.pipeline import PipelineConfig
    from uni_agent.types import Task

PLUGIN = "uni_agent.training.plugin"
"""The module that verl imports in each of its processes."""
ADAPTER = "uni_agent.training.framework.AgentFrameworkRolloutAdapter"
LOOP = "uni_agent.training.agent_loop.UniAgentLoop"

_FOREVER = 1_000_000
_BASES = {"fsdp2": "ppo_trainer", "megatron": "ppo_megatron_trainer"}
_FULLY_ASYNC = "verl.experimental.fully_async_policy.fully_async_main"
_ESTIMATORS = {"grpo": "uni_agent_grpo", "turn_grpo": "uni_agent_turn_grpo"}


@dataclass(frozen=True, slots=True)
class Folders:
    """Where the files of a training run are, below its own folder."""

    run_dir: Path

    @property
    def pipeline(self) -> Path:
        """The resolved pipeline, which the workers read."""
        return self.run_dir / "resolved.yaml"

    @property
    def verl(self) -> Path:
        """What is written for verl: its configuration, the agent loops, the data."""
        return self.run_dir / "verl"

    @property
    def checkpoints(self) -> Path:
        """Verl's checkpoints, a folder for each saved step."""
        return self.run_dir / "checkpoints"

    @property
    def journal(self) -> Path:
        """What the workers record, until it is in the run's store."""
        return self.run_dir / "journal"

    @property
    def log(self) -> Path:
        """What the trainer prints."""
        return self.run_dir / "trainer.log"


@dataclass(frozen=True, slots=True)
class VerlCommand:
    """A training run as verl takes it.

    `config` is what is laid over verl's own defaults `base` (nested), `entry` the module that is run, `pipelines` are
    further agent loops by name, `environment` is what is added to the process's own.
    """

    folders: Folders
    config: dict[str, Any]
    entry: str
    base: str = "ppo_trainer"
    pipelines: dict[str, str] = field(default_factory=dict[str, str])
    environment: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def metrics(self) -> Path:
        """The file of verl's own logger, one line a step."""
        return Path(self.environment["VERL_FILE_LOGGER_PATH"])

    @property
    def argv(self) -> list[str]:
        """The command line."""
        return [
            sys.executable,
            "-m",
            self.entry,
            f"--config-path={self.folders.verl.absolute()}",
            "--config-name=train",
        ]

    @property
    def shell(self) -> str:
        """The command as a person would type it."""
        words = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " \\\n  ".join([*words, shlex.join(self.argv)])

    def files(self) -> dict[Path, str]:
        """The files that the command reads."""
        folder = self.folders.verl
        loops = [{"name": AGENT_NAME, "_target_": LOOP}]
        loops += [{"name": name, "_target_": LOOP, "pipeline": path} for name, path in self.pipelines.items()]
        return {
            folder / "train.yaml": yaml_text(self.config, self.base, folder.absolute()),
            folder / "agent_loops.yaml": dump_yaml(loops),
        }

    def write(self) -> None:
        """Write `files`. Raises ConfigError when they cannot be written."""
        with boundary(ConfigError, f"{self.folders.verl}: cannot be written"):
            self.folders.verl.mkdir(parents=True, exist_ok=True)
            for path, text in self.files().items():
                path.write_text(text, encoding="utf-8")

    def resolved(self) -> Any:
        """The whole of verl's configuration, defaults included, as Hydra composes it.

        Call `write` first. Raises ConfigError for a key or value that verl does not take, MissingExtraError without it.
        """
        from uni_agent.training.resolve import resolved_config

        return resolved_config(self.folders.verl, self.entry)


@dataclass(slots=True)
class Keys:
    """Verl's keys, dotted: those that follow from a field of ours, and defaults that `overrides` may change."""

    fixed: dict[str, tuple[Any, str]] = field(default_factory=dict[str, tuple[Any, str]])
    defaults: dict[str, Any] = field(default_factory=dict[str, Any])

    def set(self, source: str, **keys: Any) -> None:
        """Keys (`__` for a dot) that follow from the field `source`."""
        for key, value in keys.items():
            self.fixed[key.replace("__", ".")] = (value, source)

    def default(self, keys: Mapping[str, Any]) -> None:
        """Keys with values that nobody stated."""
        self.defaults.update(keys)

    def merged(self, overrides: Mapping[str, Any], where: str = "train.overrides") -> dict[str, Any]:
        """Everything, nested.

        Raises ConfigError for an override that contradicts a field, and for one that verl does not know.
        """
        plain = json.loads(json.dumps(overrides))  # text from a YAML file remembers where it stood
        stated = dict(verl_files.flat(plain))
        verl_files.check_keys(stated, where)
        stated = {key.removeprefix("+"): value for key, value in stated.items()}
        fixed = dict(self._leaves())
        for key, value in stated.items():
            known = fixed.get(key)
            if known is not None and known[0] != value:
                raise ConfigError(
                    f"{where}.{key}: {value!r} disagrees with {known[1]}, which makes it {known[0]!r}: set {known[1]}"
                )
        flat = {**self.defaults, **{key: value for key, (value, _) in fixed.items() if value != {}}, **stated}
        nested: dict[str, Any] = {}
        for key, value in flat.items():
            _put(nested, key, value)
        return nested

    def _leaves(self) -> Iterator[tuple[str, tuple[Any, str]]]:
        for key, (value, source) in self.fixed.items():
            table = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
            if table:
                yield from ((name, (leaf, source)) for name, leaf in verl_files.flat(table, key))
            else:
                yield key, (value, source)


def verl_command(
    config: PipelineConfig, run_dir: Path, *, resume: bool = False, metrics: Path | None = None
) -> VerlCommand:
    """The trainer's command for `config`, its files in `run_dir`; nothing is written yet.

    `metrics` is the file of verl's own logger. Raises ConfigError for a pipeline that does not train and for overrides
    that contradict a field.
    """
    train, model = config.train, config.model
    if train is None or not isinstance(model, VerlModelConfig):
        raise ConfigError("train: there is no `train:` block in this pipeline")
    folders = Folders(run_dir.absolute())
    keys = Keys()
    _trainer_keys(keys, config, train, folders, resume=resume)
    _data_keys(keys, config, train, folders)
    _actor_keys(keys, train, model, config.run.seed if train.seed is None else train.seed)
    _rollout_keys(keys, config, train, model, folders)
    _path_keys(keys, train, folders)
    environment = {
        "VERL_USE_EXTERNAL_MODULES": with_plugin(os.environ.get("VERL_USE_EXTERNAL_MODULES", "")),
        "VERL_FILE_LOGGER_PATH": str((metrics or folders.verl / "metrics.jsonl").absolute()),
    }
    if train.device == "cpu":
        from uni_agent.training import cpu

        environment |= cpu.environment()
        keys.default(hydra_overrides(cpu.overrides(**_cpu_options(train))))
        if train.mode == "fully_async":
            # Its two parts are actors that ask for ten logical CPUs each, beside a rollout device of its own.
            keys.default(
                {"ray_kwargs.ray_init.num_cpus": 64, "ray_kwargs.ray_init.num_gpus": train.devices_per_node + 1}
            )
            keys.default({"actor_rollout_ref.rollout.checkpoint_engine.backend": "uni_agent_ray"})
    for name, value in environment.items():
        if name != "VERL_FILE_LOGGER_PATH":  # the trainer's own; the rest is for processes on other machines too
            keys.default({f"ray_kwargs.ray_init.runtime_env.env_vars.{name}": value})
    entry = _FULLY_ASYNC if train.mode == "fully_async" else "verl.trainer.main_ppo"
    pipelines = train.rollout.pipelines if isinstance(train.rollout, InProcessRollout) else {}
    return VerlCommand(
        folders,
        keys.merged(train.overrides),
        entry,
        base=_BASES[train.backend],
        pipelines={name: str(path.absolute()) for name, path in pipelines.items()},
        environment=environment,
    )


def with_plugin(modules: str) -> str:
    """The value of VERL_USE_EXTERNAL_MODULES that has our plugin beside the user's own `modules`."""
    own = [name for name in modules.split(",") if name and name != PLUGIN]
    return ",".join([*own, PLUGIN])


def write_data(config: PipelineConfig, tasks: Sequence[Task], folders: Folders) -> tuple[int, int]:
    """Write the tables that verl reads; how many rows each has. Raises ConfigError and DataError."""
    train = config.train
    assert train is not None  # noqa: S101 - only training has data for verl
    folders.verl.mkdir(parents=True, exist_ok=True)
    rows = write_verl_parquet(
        tasks, folders.verl / "train.parquet", split="train", data_source=config.name, agent_name=agent_name(train)
    )
    if train.tasks_per_step > rows:
        raise ConfigError(
            f"train.tasks_per_step: {train.tasks_per_step} prompts a step, but data has only {rows} tasks"
        )
    if train.validation is None:
        return rows, 0
    checked = write_verl_parquet(
        train.validation.data.build().load(),
        folders.verl / "validation.parquet",
        split="validation",
        data_source=config.name,
        group_by=train.validation.group_by,
        agent_name=agent_name(train),
    )
    return rows, checked


def check_data(train: TrainConfig, tasks: Sequence[Task], held_out: Sequence[Task]) -> None:
    """Look at the tasks before anything is started. Raises ConfigError for what would end the training later."""
    if train.tasks_per_step > len(tasks):
        raise ConfigError(
            f"train.tasks_per_step: {train.tasks_per_step} prompts a step, but data has only {len(tasks)} tasks"
        )
    if train.validation is not None and not held_out:
        raise ConfigError("train.validation.data: holds no task")
    names = agent_names(train)
    key = train.validation.group_by if train.validation is not None else None
    for task in (*tasks, *held_out):
        name = task.metadata.get("agent_name")
        if name is None and isinstance(train.rollout, GatewayRollout) and len(names) > 1:
            raise ConfigError(
                f"task {task.id!r}: train.rollout.agent_runners has several, so metadata.agent_name has to say which: "
                f"{', '.join(names)}"
            )
        if name is not None and name not in names:
            raise ConfigError(f"task {task.id!r}: metadata.agent_name {name!r} is none of {', '.join(names)}")
    for task in held_out:
        if key is not None and key not in task.metadata:
            raise ConfigError(f"train.validation.group_by: task {task.id!r} has no metadata {key!r}")


def agent_names(train: TrainConfig) -> list[str]:
    """The names that a task's `metadata.agent_name` may have: agent loops, or runners."""
    if isinstance(train.rollout, GatewayRollout):
        return list(train.rollout.agent_runners)
    return [AGENT_NAME, *train.rollout.pipelines]


def agent_name(train: TrainConfig) -> str:
    """The `agent_name` of rows whose task names none: our agent loop, or the first runner."""
    if isinstance(train.rollout, GatewayRollout):
        return next(iter(train.rollout.agent_runners))
    return AGENT_NAME


def yaml_text(config: Mapping[str, Any], base: str = "ppo_trainer", folder: Path | None = None) -> str:
    """A file for Hydra: `config` over verl's own defaults `base`. Hydra's own files go to `folder`."""
    # By its folder: `pkg://` would import all of verl to find it.
    hydra: dict[str, Any] = {
        "searchpath": [f"file://{verl_files.verl_folder() / 'trainer' / 'config'}"],
        "output_subdir": None,
    }
    if folder is not None:
        hydra["run"] = {"dir": str(folder)}
    return dump_yaml({"hydra": hydra, "defaults": [base, "_self_"], **config})


def _cpu_options(train: TrainConfig) -> dict[str, Any]:
    """What the CPU's sampler has to be told: verl tells a custom one nothing of filtered and refilled groups."""
    stated = dict(verl_files.flat(train.overrides))
    filters = "algorithm.filter_groups."
    return {
        "mode": "sync" if train.mode == "fully_async" else train.mode,
        "processes": train.devices_per_node,
        "reference": train.kl_coefficient > 0,
        "train_batch_size": train.tasks_per_step,
        "filter_groups_metric": stated.get(f"{filters}metric", "reward") if stated.get(f"{filters}enable") else None,
        "max_inflight_gen_batches": stated.get(f"{filters}max_inflight_gen_batches", 1),
        "refill_failed_groups": bool(stated.get("trainer.v1.sampler.sync_refill_failed_groups")),
    }


def _fully_async_defaults() -> dict[str, Any]:
    """What verl's fully asynchronous trainer adds to its other defaults (dotted).

    Its file cannot lie below another: it has a search path of its own, which Hydra takes of the first file alone.
    """
    content = verl_files.read("experimental/fully_async_policy/config/fully_async_ppo_trainer.yaml")
    return {key: value for key, value in verl_files.flat(content) if key.split(".")[0] not in ("hydra", "defaults")}


def hydra_overrides(texts: Sequence[str]) -> dict[str, Any]:
    """Hydra's overrides (`+key=value`) as dotted keys with values. Raises MissingExtraError without Hydra."""
    parser = load("hydra.core.override_parser.overrides_parser", extra="train", needed_for="training")
    parsed = parser.OverridesParser.create().parse_overrides(list(texts))
    return {override.key_or_group: override.value() for override in parsed}


def _trainer_keys(keys: Keys, config: PipelineConfig, train: TrainConfig, folders: Folders, *, resume: bool) -> None:
    keys.set("train.steps", trainer__total_training_steps=train.steps)
    keys.set("train.device", trainer__device=train.device)
    keys.set("train.nodes", trainer__nnodes=train.nodes)
    keys.set("train.devices_per_node", trainer__n_gpus_per_node=train.devices_per_node)
    keys.set("train.loggers", trainer__logger=list(dict.fromkeys([*train.loggers, "file"])))
    keys.set("run.output_dir", trainer__default_local_dir=str(folders.checkpoints))
    keys.set("--resume", trainer__resume_mode="auto" if resume else "disable")
    keys.set("train.checkpoint.every", trainer__save_freq=train.checkpoint.every or train.steps)
    keys.set("train.checkpoint.keep", trainer__max_actor_ckpt_to_keep=train.checkpoint.keep)
    checked = train.validation
    keys.set(
        "train.validation",
        trainer__test_freq=checked.every if checked else -1,
        trainer__val_before_train=bool(checked and checked.before),
    )
    if train.mode == "separate_async":
        updates = train.tasks_per_step // (train.mini_batch_tasks or train.tasks_per_step)
        keys.set("train.mini_batch_tasks", trainer__v1__separate_async__parameter_sync_step=updates)
    if train.mode != "fully_async":
        keys.set("train.mode", trainer__use_v1=True, trainer__v1__trainer_mode=f"uni_agent_{train.mode}")
        keys.set("train.mode", transfer_queue__enable=True)
    else:
        keys.default(_fully_async_defaults())
        keys.set(
            "train.mode",
            trainer__use_v1=False,
            actor_rollout_ref__hybrid_engine=False,
            actor_rollout_ref__actor__use_rollout_log_probs=True,
            # The older entry counts prompts one by one, in samples.
            data__gen_batch_size=1,
            rollout__n=train.samples_per_task or config.run.samples_per_task,
            rollout__total_rollout_steps=train.steps * train.tasks_per_step,
        )
        keys.default({"rollout.nnodes": 1, "rollout.n_gpus_per_node": 1})
    keys.set("train.advantage", algorithm__adv_estimator=_ESTIMATORS[train.advantage])
    keys.set("train.normalize_by_std", algorithm__norm_adv_by_std_in_grpo=train.normalize_by_std)
    keys.default(
        {
            "trainer.total_epochs": _FOREVER,
            "trainer.project_name": "uni_agent",
            "trainer.experiment_name": config.name,
        }
    )


def _data_keys(keys: Keys, config: PipelineConfig, train: TrainConfig, folders: Folders) -> None:
    seed = config.run.seed if train.seed is None else train.seed
    validation = "train.parquet" if train.validation is None else "validation.parquet"
    keys.set("data", data__train_files=str(folders.verl / "train.parquet"))
    keys.set("train.validation.data", data__val_files=str(folders.verl / validation))
    # The fully asynchronous trainer takes its batches from a queue: the loader's size has to be 0.
    size = 0 if train.mode == "fully_async" else train.tasks_per_step
    keys.set("train.tasks_per_step", data__train_batch_size=size)
    keys.set("train.max_prompt_tokens", data__max_prompt_length=train.max_prompt_tokens)
    keys.set("train.max_response_tokens", data__max_response_length=train.max_response_tokens)
    keys.set("train.seed", data__seed=seed)
    # Prompts are rendered by our own renderer, with the tools; verl's length filter would use another one.
    keys.set("agent", data__return_raw_chat=True, data__filter_overlong_prompts=False)
    keys.default({"data.shuffle": True, "data.dataloader_num_workers": 0})


def _actor_keys(keys: Keys, train: TrainConfig, model: VerlModelConfig, seed: int | None) -> None:
    actor = "actor_rollout_ref__actor__"
    keys.set("train.seed", **{f"{actor}data_loader_seed": seed})
    keys.set("train.backend", **{f"{actor}strategy": train.backend})
    keys.set("model.path", actor_rollout_ref__model__path=str(model.path.absolute()))
    keys.set("train.learning_rate", **{f"{actor}optim__lr": train.learning_rate})
    keys.set(
        "train.mini_batch_tasks", **{f"{actor}ppo_mini_batch_size": train.mini_batch_tasks or train.tasks_per_step}
    )
    keys.set("train.policy_loss", **{f"{actor}policy_loss__loss_mode": train.policy_loss})
    keys.set("train.loss_aggregation", **{f"{actor}loss_agg_mode": train.loss_aggregation})
    keys.set("train.clip_low", **{f"{actor}clip_ratio": train.clip_low, f"{actor}clip_ratio_low": train.clip_low})
    keys.set("train.clip_high", **{f"{actor}clip_ratio_high": train.clip_high})
    keys.set(
        "train.kl_coefficient",
        **{f"{actor}use_kl_loss": train.kl_coefficient > 0, f"{actor}kl_loss_coef": train.kl_coefficient},
    )
    keys.set("train.entropy_coefficient", **{f"{actor}entropy_coeff": train.entropy_coefficient})
    keys.set(
        "train.micro_batch",
        **{
            f"{actor}ppo_micro_batch_size_per_gpu": train.micro_batch,
            "actor_rollout_ref__rollout__log_prob_micro_batch_size_per_gpu": train.micro_batch,
            "actor_rollout_ref__ref__log_prob_micro_batch_size_per_gpu": train.micro_batch,
        },
    )
    # `hf_model`: the folder that an engine serves as it is.
    contents = ["model", "optimizer", "extra", "hf_model"]
    keys.default({"actor_rollout_ref.actor.checkpoint.save_contents": contents})


def _rollout_keys(
    keys: Keys, config: PipelineConfig, train: TrainConfig, model: VerlModelConfig, folders: Folders
) -> None:
    rollout = "actor_rollout_ref__rollout__"
    sampling, checked = model.sampling, train.validation
    keys.set(
        "train.engine", **{f"{rollout}name": train.engine or ("uni_agent_cpu" if train.device == "cpu" else "vllm")}
    )
    keys.set("train.samples_per_task", **{f"{rollout}n": train.samples_per_task or config.run.samples_per_task})
    for name in ("temperature", "top_p", "top_k"):
        keys.set(f"model.sampling.{name}", **{f"{rollout}{name}": getattr(sampling, name)})
    window = train.max_prompt_tokens + train.max_response_tokens
    keys.set("model.max_context", **{f"{rollout}max_model_len": min(model.max_context or window, window)})
    temperature = sampling.temperature if checked is None or checked.temperature is None else checked.temperature
    keys.set("train.validation.temperature", **{f"{rollout}val_kwargs__temperature": temperature})
    for name in ("top_p", "top_k"):
        own = getattr(checked, name, None)
        value = getattr(sampling, name) if own is None else own
        keys.set(f"train.validation.{name}", **{f"{rollout}val_kwargs__{name}": value})
    keys.set("train.validation.temperature", **{f"{rollout}val_kwargs__do_sample": temperature > 0})
    keys.set(
        "train.validation.samples_per_task", **{f"{rollout}val_kwargs__n": checked.samples_per_task if checked else 1}
    )
    keys.set("train", **{f"{rollout}calculate_log_probs": True})
    parser = getattr(model.renderer, "tool_parser", "auto")
    if parser not in ("auto", "none"):
        keys.set("model.renderer.tool_parser", **{f"{rollout}multi_turn__format": parser})
    custom = f"{rollout}custom__uni_agent__"
    keys.set("run.output_dir", **{f"{custom}pipeline": str(folders.pipeline), f"{custom}run_dir": str(folders.run_dir)})
    keys.set("train", **{f"{custom}train": train.model_dump(mode="json", exclude={"overrides", "validation"})})
    keys.default(
        {
            "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
            "actor_rollout_ref.rollout.multi_turn.enable": True,
            "reward.num_workers": 1,
            "critic.enable": False,
        }
    )


def _path_keys(keys: Keys, train: TrainConfig, folders: Folders) -> None:
    """White box: our agent loop in verl's workers. Black box: our manager in place of verl's."""
    agent = "actor_rollout_ref__rollout__agent__"
    rollout = train.rollout
    if isinstance(rollout, InProcessRollout):
        keys.set("train.rollout.type", **{f"{agent}agent_loop_manager_class": None})
        keys.set("train.rollout.workers", **{f"{agent}num_workers": rollout.workers})
        keys.set(
            "train.rollout.type",
            **{
                f"{agent}agent_loop_config_path": str(folders.verl / "agent_loops.yaml"),
                f"{agent}default_agent_loop": AGENT_NAME,
            },
        )
        return
    if train.mode == "fully_async":
        raise ConfigError("train.mode: fully_async runs verl's agent loops only; use train.rollout.type in_process")
    framework = "actor_rollout_ref__rollout__custom__agent_framework__"
    keys.set("train.rollout.type", **{f"{agent}agent_loop_manager_class": ADAPTER})
    keys.set("train.rollout.gateway_count", **{f"{framework}gateway_count": rollout.gateway_count})
    keys.set(
        "train.rollout.use_reward_loop_worker", **{f"{framework}use_reward_loop_worker": rollout.use_reward_loop_worker}
    )
    log_dir = str(folders.run_dir / "sessions") if rollout.log_dir is None else rollout.log_dir
    keys.set("train.rollout.log_dir", **{f"{framework}log_dir": log_dir})
    for name, runner in rollout.agent_runners.items():
        for option, value in runner.model_dump(mode="json").items():
            keys.set(
                f"train.rollout.agent_runners.{name}.{option}", **{f"{framework}agent_runners__{name}__{option}": value}
            )


def _put(nested: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    node: Any = nested
    for step in path:
        node = cast("dict[str, Any]", node).setdefault(step, {})
        if not isinstance(node, dict):
            raise ConfigError(f"overrides: {step!r} is given a value of its own, but {key} stands below it")
    table = cast("dict[str, Any]", node)
    if table.get(last) and isinstance(table[last], dict):
        below = str(next(iter(table[last])))
        raise ConfigError(f"overrides: {key!r} is given a value of its own, but {key}.{below} stands below it")
    table[last] = value


def process_environment(command: VerlCommand) -> dict[str, str]:
    """The whole environment of the trainer's process."""
    return {**os.environ, **command.environment}
