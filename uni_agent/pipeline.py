"""The whole configuration tree, made of the seams' own unions. Nothing is built here."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from uni_agent.config.base import Config, ConfigPath
from uni_agent.config.load import override
from uni_agent.data.config import DataConfig
from uni_agent.deployment.config import DeployConfig
from uni_agent.errors import ConfigError
from uni_agent.harness.config import HarnessConfig, InteractionHarnessConfig
from uni_agent.interaction.config import InteractionConfig
from uni_agent.model.config import ModelConfig, VerlModelConfig
from uni_agent.reward.config import RewardConfig
from uni_agent.tools.config import ToolConfig
from uni_agent.training.config import TrainConfig
from uni_agent.types import Task

RESERVED_OVERRIDES = frozenset({"model", "data", "run", "train", "name", "extends"})
"""Top-level keys that a task may not override: they belong to the run, and all rollouts share them."""


class RunConfig(Config):
    """How the rollouts of a run are carried out."""

    concurrency: int = Field(default=8, ge=1)
    """Rollouts in flight at once."""
    start_concurrency: int = Field(default=16, ge=1)
    """Sandboxes that start at once; waiting for a place is not part of any time limit of the agent."""
    samples_per_task: int = Field(default=1, ge=1)
    """Rollouts of each task (the group size of GRPO)."""
    retries: int = Field(default=2, ge=0)
    """Further attempts of a rollout that infrastructure ended; the last one counts as it is."""
    reward_retries: int = Field(default=1, ge=0)
    """Further gradings of a rollout whose grading failed; the episode itself is not repeated for it."""
    seed: int | None = 0
    """Seeds sampling, per task, sample and turn; null: not reproducible."""
    output_dir: ConfigPath = Field(default="runs", validate_default=True)  # pyright: ignore[reportAssignmentType]
    """Folder that gets one folder per run."""
    progress: Literal["auto", "rich", "plain", "none"] = "auto"
    """How progress is shown; `auto`: a board on a terminal, plain lines elsewhere."""


class PipelineConfig(Config):
    """One YAML: what is done, by whom, where, how it is graded, and (with `train`) how it is learned from."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][\w.-]*$")
    """Names the run; part of its folder's name."""
    data: DataConfig
    """Where the tasks come from."""
    model: ModelConfig
    """What the agents talk to."""
    agent: HarnessConfig = InteractionHarnessConfig()
    """Who acts in the sandbox."""
    tools: list[ToolConfig] = []
    """Tools that the agent may call."""
    deployment: DeployConfig
    """Where sandboxes run."""
    reward: RewardConfig
    """How a finished episode is graded."""
    interaction: InteractionConfig = InteractionConfig()
    """Limits and rules of an episode."""
    run: RunConfig = RunConfig()
    """How rollouts are carried out."""
    train: TrainConfig | None = None
    """How the policy is trained, with `model.type: verl`; null evaluates."""

    @model_validator(mode="after")
    def _trainable(self) -> Self:
        if self.train is None:
            return self
        if not isinstance(self.model, VerlModelConfig):
            raise ValueError(
                "train: needs `model: {type: verl, path: …}`, whose weights are trained; "
                "with another model, remove the `train:` block to evaluate"
            )
        if self.model.sampling.repetition_penalty != 1.0 or self.model.sampling.min_p:
            raise ValueError(
                "model.sampling: repetition_penalty and min_p change what is sampled and not what the trainer "
                "computes; leave them out to train"
            )
        if (self.train.samples_per_task or self.run.samples_per_task) < 2:
            raise ValueError(
                "train.samples_per_task: a group of one has nothing to be better than, so nothing is learned; "
                "give at least 2"
            )
        if self.model.overrides:
            raise ValueError("model.overrides: is for an evaluation; move its keys to train.overrides")
        return self

    def for_task(self, task: Task) -> PipelineConfig:
        """This configuration with the task's overrides merged in. Raises ConfigError that names task and key."""
        if not task.overrides:
            return self
        reserved = sorted(RESERVED_OVERRIDES & task.overrides.keys())
        if reserved:
            raise ConfigError(
                f"task {task.id!r}: overrides.{reserved[0]} is reserved: set it in the YAML, for all tasks"
            )
        folder = Path(task.base_dir) if task.base_dir else None
        return override(self, task.overrides, f"task {task.id!r}: overrides", folder=folder)
