"""Our loop inside verl's agent loop workers: one sample in, trajectories out. Imported by verl's processes only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

from uni_agent.data.verl_rows import task_of
from uni_agent.engine.base import SamplingParams
from uni_agent.engine.verl import VerlBackend
from uni_agent.errors import ConfigError
from uni_agent.model.config import VerlModelConfig
from uni_agent.training.outcome import Outcome, turn_rewards
from uni_agent.training.samples import Sample
from uni_agent.training.worker import RolloutWorker, worker_of
from uni_agent.trajectory.verl import agent_loop_fields
from uni_agent.types import Task

SETTINGS = "uni_agent"
"""Our key in verl's free dict `actor_rollout_ref.rollout.custom`."""


class CreditedOutput(AgentLoopOutput):
    """An AgentLoopOutput whose reward may stand at several tokens: what a turn earned at its end, the rest at the end.

    verl's v1 trainer reads it as `rm_scores`; the older ones only take the sum.
    """

    def as_dict(self) -> dict[str, Any]:
        """The record for TransferQueue, as the parent makes it."""
        record = super().as_dict()
        side = self.extra_fields.get(SETTINGS)
        if side and side.get("turn_scores") and self.reward_score is not None:
            scores = torch.zeros(len(self.response_ids), dtype=torch.float32)
            for position, value in turn_rewards(side, self.reward_score, len(self.response_ids)).items():
                scores[position] = value
            record["rm_scores"] = scores
        return record


class UniAgentLoop(AgentLoopBase):
    """verl's agent loop over a pipeline's own agent, tools, sandbox and reward.

    The entry of verl's agent loop list may bring the pipeline itself (`pipeline: path of a YAML`); otherwise it is the
    one of `rollout.custom.uni_agent`. Several entries with pipelines of their own live side by side: verl takes the one
    whose name is the row's `agent_name`.
    """

    def __init__(self, *args: Any, pipeline: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # pyright: ignore[reportUnknownMemberType] - verl's own keywords
        custom: Mapping[str, Any] = self.rollout_config.custom or {}
        settings: Mapping[str, Any] = custom.get(SETTINGS) or {}
        share = self.rollout_config.agent.num_workers
        self.worker: RolloutWorker = worker_of(settings, share=share, named=pipeline)

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        """Carry out one sample of the row's task.

        A list of AgentLoopOutput, or one of them for the trainers that take no lists; [] when the sample is left out of
        its group. Raises what makes a row unusable: DataError, ConfigError.
        """
        task = task_of(kwargs)
        backend = VerlBackend(
            self.server_manager,
            engine=_engine(self.rollout_config.name),
            max_context=self.rollout_config.max_model_len,
            own_aborts=True,
        )
        await backend.start()
        model = self.worker.model(backend, self._sampling(sampling_params))
        outcome = await self.worker.rollout(task, self._sample(kwargs), model)
        outputs = [self._output(outcome, index, task, kwargs) for index in range(len(outcome.trajectories))]
        if self.config.trainer.use_v1:
            return outputs
        return outputs[-1] if outputs else self._nothing(outcome, task, kwargs)

    def _sampling(self, given: Mapping[str, Any]) -> SamplingParams:
        """What verl samples this row with, and the pipeline's own limit on a turn."""
        model = self.worker.config.model
        if not isinstance(model, VerlModelConfig):
            raise ConfigError("model.type: needs to be `verl` to train")
        own = model.sampling.params()
        return SamplingParams(
            temperature=float(given["temperature"]),
            top_p=float(given["top_p"]),
            top_k=int(given["top_k"]),
            max_tokens=own.max_tokens,
        )

    def _sample(self, row: Mapping[str, Any]) -> Sample:
        return Sample.of(row, self.worker.train, self.worker.config.run)

    def _nothing(self, outcome: Outcome, task: Task, row: Mapping[str, Any]) -> CreditedOutput:
        """A row that trains nothing, for trainers that need one for each sample; our estimators pass over it."""
        name = str(self._sample(row).key(task.id))
        empty = replace(outcome, trajectories=(self.worker.stand_in(task, outcome.record, name),), trusted=False)
        return self._output(empty, 0, task, row)

    def _output(self, outcome: Outcome, index: int, task: Task, row: Mapping[str, Any]) -> CreditedOutput:
        trajectory = outcome.trajectories[index]
        fields = agent_loop_fields(trajectory, global_steps=int(row.get("global_steps") or 0))
        side = outcome.side_information(index, self.worker.segments_of)
        fields["extra_fields"][SETTINGS] = {**side, "task_id": task.id}
        return CreditedOutput(**fields)


def _engine(name: str) -> Any:
    return name if name in ("vllm", "sglang") else "other"
