"""The settings: `rollout.custom.agent_framework`, and what of verl's own configuration the framework reads."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from pydantic import Field

from uni_agent.config.base import Config
from uni_agent.config.load import from_data
from uni_agent.errors import ConfigError
from uni_agent.gateway.config import GatewayConfig, SamplingOverrides
from uni_agent.model.config import VerlModelConfig
from uni_agent.pipeline import PipelineConfig, RunConfig
from uni_agent.tokens.config import AnyRendererConfig, RendererConfig
from uni_agent.training.config import FailureConfig, Fate, GatewayRollout, GatewayRunner, TrainConfig
from uni_agent.training.pipelines import load_pipeline
from uni_agent.types import ExitReason

_log = logging.getLogger(__name__)

CUSTOM = "actor_rollout_ref.rollout.custom"
LOG_VARIABLE = "UNI_AGENT_LOG_DIR"


class RunnerConfig(GatewayRunner):
    """One kind of agent behind the gateway, under Uni-Agent's own names."""

    tool_config_path: str | None = None
    """A file of the runner's own; it reads the path from its session."""


class AgentFrameworkConfig(Config):
    """`actor_rollout_ref.rollout.custom.agent_framework`, under Uni-Agent's names."""

    gateway_count: int = Field(default=1, ge=1)
    """Gateways, each a Ray actor."""
    framework_class_fqn: str | None = None
    """A subclass of `uni_agent.training.framework.worker.FrameworkWorker`; None: that class itself."""
    enable_last_assistant_rollback: bool | None = None
    """Accepted for old configurations: sampled tokens are never rolled back here, whatever it says."""
    mask_unfinished_episode: bool = False
    """Train nothing on episodes that the agent did not end itself."""
    use_reward_loop_worker: bool = True
    """Ask verl's reward worker where neither the runner nor the session came with a reward."""
    log_dir: str | None = None
    """Folder for logs of sessions; None: `UNI_AGENT_LOG_DIR`, or else a folder of the run. "" writes none."""
    agent_runners: dict[str, RunnerConfig] = Field(default={"default": RunnerConfig()}, min_length=1)
    """Runners by name. One serves every row; with several, a row's `agent_name` chooses."""
    gateway: GatewayConfig = GatewayConfig()
    """The gateways themselves: journal, limits, thinking. Sampling and window are the trainer's."""

    def runner(self, name: str | None) -> tuple[str, RunnerConfig]:
        """The runner of a row whose `agent_name` is `name`. Raises ConfigError that lists the runners."""
        if len(self.agent_runners) == 1:
            return next(iter(self.agent_runners.items()))
        found = self.agent_runners.get(name or "")
        if found is None:
            known = ", ".join(sorted(self.agent_runners))
            raise ConfigError(
                f"agent_name {name!r} of a row is none of {CUSTOM}.agent_framework.agent_runners: {known}"
            )
        return cast(str, name), found


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkSettings:
    """All that the worker goes by, as picklable data.

    `concurrency` 0: no limit. `logprobs` says whether records must have them, `experts` the same of routed experts.
    `run` is `custom.uni_agent` as it is. `log_dir` "": no logs.
    """

    framework: AgentFrameworkConfig
    model_path: str
    engine: str
    sampling: SamplingOverrides
    val_sampling: SamplingOverrides
    n: int = 1
    val_n: int = 1
    logprobs: bool = True
    experts: bool = False
    prompt_length: int
    response_length: int
    max_context: int
    renderer: AnyRendererConfig = RendererConfig()
    chat_template: str | None = None
    failures: FailureConfig = FailureConfig()
    exits: Mapping[ExitReason, Fate] = field(default_factory=dict[ExitReason, Fate])
    concurrency: int = 0
    retries: int = RunConfig().retries
    reward_retries: int = RunConfig().reward_retries
    run: Mapping[str, Any] = field(default_factory=dict[str, Any])
    log_dir: str = ""


def read_settings(config: Any) -> FrameworkSettings:
    """The settings in verl's configuration, a DictConfig or plain data.

    Raises ConfigError that names the key: unknown ones come with what was probably meant.
    """
    plain = _plain(config)
    rollout: dict[str, Any] = _at(plain, "actor_rollout_ref.rollout") or {}
    run: dict[str, Any] = _at(plain, f"{CUSTOM}.uni_agent") or {}
    train = from_data(TrainConfig, run["train"], f"{CUSTOM}.uni_agent.train") if run.get("train") else None
    pipeline = load_pipeline(Path(str(run["pipeline"]))) if run.get("pipeline") else None
    if train is None and pipeline is not None:
        train = pipeline.train
    framework = _framework(plain, train)
    prompt, response = int(rollout.get("prompt_length") or 512), int(rollout.get("response_length") or 512)
    window = min(prompt + response, int(rollout.get("max_model_len") or prompt + response))
    limits: dict[str, Any] = {}
    if pipeline is not None:
        limits = {name: getattr(pipeline.run, name) for name in ("concurrency", "retries", "reward_retries")}
    validation: dict[str, Any] = rollout.get("val_kwargs") or {}
    return FrameworkSettings(
        framework=framework,
        model_path=_model_path(plain),
        engine=str(rollout.get("name") or ""),
        sampling=_sampling(rollout),
        val_sampling=_sampling(validation),
        n=int(rollout.get("n") or 1),
        val_n=int(validation.get("n") or 1),
        logprobs=bool(rollout.get("calculate_log_probs", True)),
        experts=bool(rollout.get("enable_rollout_routing_replay", False)),
        prompt_length=prompt,
        response_length=response,
        max_context=window,
        renderer=_renderer(plain, pipeline),
        chat_template=_at(plain, "actor_rollout_ref.model.custom_chat_template"),
        failures=train.failures if train is not None else FailureConfig(),
        exits=train.exits if train is not None else {},
        run=run,
        log_dir=_log_dir(framework, run),
        **limits,
    )


def _framework(plain: Mapping[str, Any], train: TrainConfig | None) -> AgentFrameworkConfig:
    stated: dict[str, Any] = dict(_at(plain, f"{CUSTOM}.agent_framework") or {})
    if train is not None and isinstance(train.rollout, GatewayRollout):
        stated = _filled(stated, train.rollout.model_dump(mode="json"))
    framework = from_data(AgentFrameworkConfig, stated, f"{CUSTOM}.agent_framework")
    if framework.enable_last_assistant_rollback:
        _log.warning(
            "agent_framework.enable_last_assistant_rollback: sampled tokens are never rolled back here; the setting "
            "does nothing and can be taken out"
        )
    return framework


def _filled(stated: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """`stated`, with what only `ours`, the `train.rollout` block, says; of runners too, where both have one."""
    shared = {key: value for key, value in ours.items() if key in AgentFrameworkConfig.model_fields}
    filled = {**shared, **stated}
    runners: Any = filled["agent_runners"]
    if isinstance(runners, Mapping):
        known: Mapping[str, Mapping[str, Any]] = ours["agent_runners"]
        filled["agent_runners"] = {
            name: {**known.get(name, {}), **runner} if isinstance(runner, Mapping) else runner
            for name, runner in cast("Mapping[str, Any]", runners).items()
        }
    return filled


def _renderer(plain: Mapping[str, Any], pipeline: PipelineConfig | None) -> AnyRendererConfig:
    """The pipeline's, or else what verl's own keys say.

    Images are refused: a record of a trajectory with images needs the tensors of the model's processor, which no
    gateway has.
    """
    if pipeline is not None and isinstance(pipeline.model, VerlModelConfig):
        given = pipeline.model.renderer
        return given.model_copy(update={"media": "none"}) if isinstance(given, RendererConfig) else given
    return RendererConfig(
        tool_parser=str(_at(plain, "actor_rollout_ref.rollout.multi_turn.format") or "auto"),
        template_kwargs=_at(plain, "data.apply_chat_template_kwargs") or {},
        media="none",
    )


def _sampling(stated: Mapping[str, Any]) -> SamplingOverrides:
    """Every number is fixed: what a client asks for would change the policy that the trainer believes in."""
    return SamplingOverrides(
        temperature=float(stated.get("temperature", 1.0)),
        top_p=float(stated.get("top_p", 1.0)),
        top_k=int(stated.get("top_k", -1)),
        min_p=0.0,
        repetition_penalty=1.0,
    )


def _log_dir(framework: AgentFrameworkConfig, run: Mapping[str, Any]) -> str:
    if framework.log_dir is not None:
        return framework.log_dir
    named = os.environ.get(LOG_VARIABLE)
    if named is not None:
        return named
    return os.path.join(run["run_dir"], "sessions") if run.get("run_dir") else ""  # noqa: PTH118 - a text travels


def _model_path(plain: Mapping[str, Any]) -> str:
    for key in ("actor_rollout_ref.model.tokenizer_path", "actor_rollout_ref.model.path"):
        if found := _at(plain, key):
            return str(found)
    raise ConfigError("actor_rollout_ref.model.path is not set: the gateway needs the model's tokenizer and template")


def _plain(config: Any) -> dict[str, Any]:
    if isinstance(config, dict):
        return cast("dict[str, Any]", config)
    from omegaconf import OmegaConf

    return cast("dict[str, Any]", OmegaConf.to_container(config, resolve=True))


def _at(data: Any, path: str) -> Any:
    """The value at a dotted path; None where there is none."""
    for key in path.split("."):
        if not isinstance(data, Mapping):
            return None
        data = cast("Mapping[str, Any]", data).get(key)
    return data
