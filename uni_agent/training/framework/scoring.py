"""Where a session's score comes from."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from uni_agent.errors import RewardError
from uni_agent.gateway.finished import reward_of
from uni_agent.optional import load
from uni_agent.training.framework.session import RunnerResult
from uni_agent.trajectory.trajectory import Trajectory
from uni_agent.trajectory.verl import agent_loop_fields

_log = logging.getLogger(__name__)

_WORKER_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class Score:
    """A score, what goes with it, who gave it, and whether it says something about the model."""

    value: float
    info: Mapping[str, Any]
    source: str
    trusted: bool = True
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Scorer:
    """Scores sessions: the runner's word, then the session's, then verl's reward workers, then none.

    `workers` are handles of verl's RewardLoopWorker, empty when they are not to be asked.
    """

    workers: Sequence[Any]
    retries: int = 1

    async def score(
        self,
        result: RunnerResult,
        posted: Mapping[str, Any] | None,
        trajectories: Sequence[Trajectory],
        row: Mapping[str, Any],
    ) -> Score:
        """The score of a session whose `trajectories` are in verl's order. Raises RewardError of the reward worker."""
        told = unwrapped(posted or {})
        info = {**told, **result.info}
        if result.reward is not None:
            return Score(_finite(result.reward, "the runner"), info, "runner")
        if (value := reward_of(told)) is not None:
            return Score(_finite(value, "the session"), info, "session")
        if self.workers:
            return await self._asked(trajectories, row, info)
        _log.warning(
            "prompt %s: neither the runner nor its session gave a reward, and no reward worker is asked: the session "
            "does not train",
            row["uid"],
        )
        return Score(0.0, info, "none", trusted=False)

    async def _asked(self, trajectories: Sequence[Trajectory], row: Mapping[str, Any], info: dict[str, Any]) -> Score:
        started = time.monotonic()
        data = await asyncio.to_thread(reward_request, trajectories, row)  # the first one imports verl, for seconds
        for attempt in range(self.retries + 1):
            worker = random.choice(self.workers)  # noqa: S311 - spreads load
            try:
                async with asyncio.timeout(_WORKER_SECONDS):
                    answer = await worker.compute_score.remote(data)
                extra: dict[str, Any] = dict(answer.get("reward_extra_info") or {})
                value = _finite(float(answer["reward_score"]), "verl's reward worker")
                return Score(value, {**info, **extra}, "reward worker", seconds=time.monotonic() - started)
            except Exception as error:  # a user's reward function, in another process
                if attempt == self.retries:
                    raise RewardError(f"verl's reward worker failed: {type(error).__name__}: {error}") from error
                _log.warning("verl's reward worker failed, asking again: %s", error)
        raise AssertionError("unreachable")


def _finite(value: float, source: str) -> float:
    """`value`. Raises RewardError for NaN and infinity, which would spoil the whole group."""
    if not math.isfinite(value):
        raise RewardError(f"{source} gave a reward of {value}")
    return value


def unwrapped(posted: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was posted to a session; Uni-Agent's own clients wrap it in `reward_info`."""
    inner = posted.get("reward_info")
    return cast("Mapping[str, Any]", inner) if isinstance(inner, Mapping) else posted


def reward_request(trajectories: Sequence[Trajectory], row: Mapping[str, Any]) -> Any:
    """The DataProto of a session's trajectories, as verl's AgentLoopWorker builds it for its reward workers."""
    torch = load("torch", extra="train", needed_for="verl's reward workers")
    np = load("numpy", extra="train", needed_for="verl's reward workers")
    tensordict = load("tensordict", extra="train", needed_for="verl's reward workers")
    protocol = load("verl.protocol", extra="train", needed_for="verl's reward workers")
    step, n = int(row["global_steps"]), len(trajectories)

    def padded(rows: Sequence[Sequence[int]]) -> Any:
        tensors = [torch.tensor(list(ids), dtype=torch.int64) for ids in rows]
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=0)

    sizes = [len(t.prompt_ids) + len(t.response_ids) for t in trajectories]
    batch = tensordict.TensorDict(
        {
            "prompts": padded([t.prompt_ids for t in trajectories]),
            "responses": padded([t.response_ids for t in trajectories]),
            "input_ids": padded([t.ids for t in trajectories]),
            "attention_mask": padded([[1] * size for size in sizes]),
            "position_ids": padded([range(size) for size in sizes]),
        },
        batch_size=n,
    )
    fields = [agent_loop_fields(t, global_steps=step) for t in trajectories]
    columns: dict[str, Any] = {key: repeated(np, value, n) for key, value in row.items()}
    columns |= {
        "__num_turns__": np.array([f["num_turns"] for f in fields]),
        "tool_extra_fields": np.array([f["extra_fields"] for f in fields], dtype=object),
        "prompt_len": np.array([len(t.prompt_ids) for t in trajectories]),
        "response_len": np.array([len(t.response_ids) for t in trajectories]),
    }
    return protocol.DataProto(batch=batch, non_tensor_batch=columns)


def repeated(np: Any, value: Any, n: int) -> Any:
    """An object array [n] of one value: `np.array([messages] * n)` would make a list of messages a second axis."""
    out = np.empty(n, dtype=object)
    for i in range(n):
        out[i] = value
    return out
