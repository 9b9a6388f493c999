"""The `train:` block: how the policy is trained. Reading it imports nothing of verl."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from uni_agent.config.base import Config, ConfigPath, part_tag
from uni_agent.data.config import DataConfig
from uni_agent.types import ExitClass, ExitReason

Fate = Literal["train", "mask", "drop"]
"""`train`: tokens and reward count · `mask`: the reward counts in its group, no token trains · `drop`: as if it never
was."""

Advantage = Literal["grpo", "turn_grpo"]
Device = Literal["cpu", "cuda", "npu"]
Backend = Literal["fsdp2", "megatron"]
Mode = Literal["sync", "colocate_async", "separate_async", "fully_async"]


def _rollout_tag(value: Any) -> str:
    """The member of `Rollout` that a raw value selects; `in_process` when it does not say."""
    return part_tag(value) or "in_process"


class InProcessRollout(Config):
    """Episodes run inside verl's agent loop workers: our own loop over verl's servers (white box)."""

    type: Literal["in_process"] = "in_process"
    """`in_process`"""
    workers: int = Field(default=1, ge=1)
    """Agent loop workers (`rollout.agent.num_workers`), each a process; `run.concurrency` is shared among them."""
    pipelines: dict[str, ConfigPath] = {}
    """Further pipelines by name: tasks whose `metadata.agent_name` is that name are rolled out by it. Its model and its
    `train:` block are those of this file."""


class GatewayRunner(Config):
    """One kind of agent behind the gateway."""

    runner_fqn: str = "uni_agent.training.framework.runner.run_task"
    """The async callable or class that works a session; the default runs the pipeline's own agent against it."""
    runner_kwargs: dict[str, Any] = {}
    """Keyword arguments of it."""
    dispatch_mode: Literal["inline_async", "ray_task"] = "inline_async"
    """In the framework's worker, or each session in a Ray task of its own."""
    max_concurrent_sessions: int = Field(default=0, ge=0)
    """Most sessions of this runner at once; 0: no limit but `run.concurrency`."""
    session_timeout: float = Field(default=14_400.0, gt=0)
    """Seconds for one session, from its start to its grade; past it the runner is cancelled."""
    trajectory_selection: Literal["all", "longest"] = "all"
    """Every trajectory of a session trains, or the one with the most trained tokens."""


class GatewayRollout(Config):
    """Episodes talk to a gateway over HTTP, whatever the agent is (black box)."""

    type: Literal["gateway"]
    """`gateway`"""
    gateway_count: int = Field(default=1, ge=1)
    """Gateways, each a Ray actor."""
    agent_runners: dict[str, GatewayRunner] = {"default": GatewayRunner()}
    """Runners by name. With several, a task's `metadata.agent_name` chooses."""
    use_reward_loop_worker: bool = True
    """Ask verl's reward worker where neither the episode nor the session came with a reward."""
    log_dir: str | None = None
    """Folder for logs of sessions; None: in the run's folder. "" writes none."""


Rollout = Annotated[
    Annotated[InProcessRollout, Tag("in_process")] | Annotated[GatewayRollout, Tag("gateway")],
    Discriminator(_rollout_tag),
]
"""Where episodes run, chosen by `type`."""


class FailureConfig(Config):
    """What becomes of a rollout that infrastructure ended after `run.retries` further attempts: never a reward of 0."""

    on_infra_failure: Literal["retry", "replace", "drop", "mask"] = "replace"
    """`retry`: the same sample again · `replace`: another sample of the same prompt · `drop`: the group goes without ·
    `mask`: a row that trains nothing and counts in no statistics."""
    budget: int | None = Field(default=None, ge=0)
    """Most retries or replacements of one worker in the whole run, beyond `run.retries`, after which failures are
    dropped; None: 4 for each rollout that fails."""
    per_rollout: int = Field(default=4, ge=0)
    """Most retries or replacements of one rollout."""


class OverlongConfig(Config):
    """A penalty that grows towards the end of the response budget (DAPO, arXiv 2503.14476, section 3.4)."""

    buffer: int = Field(ge=1)
    """Tokens before `max_response_tokens` in which the penalty grows from 0 to `penalty`."""
    penalty: float = Field(default=1.0, ge=0)
    """Subtracted from the score of a response that fills the budget."""


class CreditConfig(Config):
    """Which tokens get how much of an episode's advantage."""

    turn_discount: float = Field(default=1.0, ge=0, le=1)
    """Discount of a later turn's reward, per turn between (`turn_grpo`)."""
    thought_weight: float = Field(default=1.0, ge=0)
    """Loss weight of tokens of thoughts (reasoning and text before the first call)."""
    action_weight: float = Field(default=1.0, ge=0)
    """Loss weight of tokens of tool calls."""
    sample_weighting: Literal["sample", "chain"] = "sample"
    """`sample`: the chains of one sample share its weight · `chain`: each chain weighs as much as a sample."""
    max_staleness: int | None = Field(default=None, ge=0)
    """Spans that were sampled more than so many weight versions ago are masked; None: none are."""
    overlong: OverlongConfig | None = None
    """Penalty on long responses; null: none."""


class ValidationConfig(Config):
    """Evaluation while training, on tasks that are not trained on."""

    data: DataConfig
    """Where the tasks come from."""
    every: int = Field(default=10, ge=1)
    """Steps between evaluations; the last step is always evaluated."""
    before: bool = True
    """Also evaluate the policy before the first step."""
    samples_per_task: int = Field(default=1, ge=1)
    """Rollouts of each task."""
    temperature: float | None = Field(default=None, ge=0)
    """Softmax temperature; None: that of training."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Nucleus mass kept; None: that of training."""
    top_k: int | None = Field(default=None, ge=-1)
    """Most likely tokens kept, -1 for all; None: that of training."""
    group_by: str | None = None
    """Key of the tasks' metadata by which success is reported; None: all together."""


class CheckpointConfig(Config):
    """When checkpoints are written, in the run's folder."""

    every: int | None = Field(default=None, ge=1)
    """Steps between checkpoints; the last step is always saved. None: only the last."""
    keep: int | None = Field(default=2, ge=1)
    """How many are kept; None: all. With 1 there is none for a moment: verl removes the old before it names the new."""


class TrainConfig(Config):
    """How the policy is trained with verl. `overrides` reaches every key that has no field here."""

    steps: int = Field(ge=1)
    """Training steps (`trainer.total_training_steps`)."""
    tasks_per_step: int = Field(default=16, ge=1)
    """Prompts of one step (`data.train_batch_size`)."""
    samples_per_task: int | None = Field(default=None, ge=1)
    """Rollouts of each prompt, the size of a group (`rollout.n`); None: `run.samples_per_task`."""
    mini_batch_tasks: int | None = Field(default=None, ge=1)
    """Prompts of one optimiser step (`actor.ppo_mini_batch_size`); None: all of the step."""
    micro_batch: int = Field(default=4, ge=1)
    """Sequences of one forward pass on a device (`ppo_micro_batch_size_per_gpu`)."""
    learning_rate: float = Field(default=1e-6, gt=0)
    """Learning rate of the actor."""
    mode: Mode = "sync"
    """Which of verl's trainers: rollouts and updates in turn, or overlapping."""
    device: Device = "cuda"
    """What trains. `cpu` is for tests, demonstrations and laptops."""
    nodes: int = Field(default=1, ge=1)
    """Machines that train."""
    devices_per_node: int = Field(default=1, ge=1)
    """Devices of each (`trainer.n_gpus_per_node`); on `cpu`, processes that train."""
    backend: Backend = "fsdp2"
    """How the policy is trained over devices (`actor.strategy`). Mixtures that replay routes need `megatron`."""
    engine: str | None = None
    """Rollout engine (`rollout.name`): `vllm`, `sglang`, …; None: `vllm`, and on `cpu` our own, which is exact."""
    max_prompt_tokens: int = Field(default=1024, ge=1)
    """Tokens of the prompt (`data.max_prompt_length`); what is behind them is context of the response."""
    max_response_tokens: int = Field(default=3072, ge=1)
    """Tokens of an episode after its prompt (`data.max_response_length`)."""
    advantage: Advantage = "grpo"
    """`grpo`: the episode's reward in its group · `turn_grpo`: rewards of turns, each for what came before it."""
    normalize_by_std: bool = True
    """Divide by the group's standard deviation."""
    policy_loss: str = "vanilla"
    """verl's name of the policy loss, or `uni_agent_action`: one importance ratio for each action."""
    loss_aggregation: Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean"] = "token-mean"
    """How token losses become one (`actor.loss_agg_mode`)."""
    clip_low: float = Field(default=0.2, ge=0)
    """Lower clip range of the importance ratio."""
    clip_high: float = Field(default=0.2, ge=0)
    """Upper clip range."""
    kl_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the KL loss against the first policy; 0 loads no reference model."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus."""
    credit: CreditConfig = CreditConfig()
    """Which tokens get how much of the advantage."""
    failures: FailureConfig = FailureConfig()
    """What becomes of rollouts that infrastructure ended."""
    exits: dict[ExitReason, Fate] = {}
    """How an ending trains, where it is not the default: endings that say something about the model train (masked where
    `interaction.mask_abnormal_exit_traj` says so), the others are dropped, which `failures` decides."""
    rollout: Rollout = InProcessRollout()
    """Where episodes run."""
    validation: ValidationConfig | None = None
    """Evaluation while training; null: none."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When checkpoints are written."""
    loggers: list[str] = ["console"]
    """verl's loggers (`wandb`, `tensorboard`, …); the run's own store is always written."""
    seed: int | None = None
    """Seeds the order of tasks and the optimiser; None: `run.seed`."""
    overrides: dict[str, Any] = {}
    """Any of verl's own keys, dotted (`actor_rollout_ref.actor.optim.weight_decay: 0.1`) or nested. A key that a field
    here sets to another value is an error."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for reason, fate in self.exits.items():
            if fate != "drop" and reason.exit_class in (ExitClass.INFRASTRUCTURE, ExitClass.OPERATOR):
                raise ValueError(
                    f"exits.{reason}: {fate!r} would train on a rollout that says nothing about the model; "
                    "only `drop` is possible"
                )
        mini = self.mini_batch_tasks
        if mini is not None and self.tasks_per_step % mini:
            raise ValueError(f"mini_batch_tasks: {mini} does not divide tasks_per_step, {self.tasks_per_step}")
        if self.mode == "fully_async" and self.credit != CreditConfig():
            raise ValueError("credit: verl's fully_async trainer knows nothing of it; use another mode")
        return self
