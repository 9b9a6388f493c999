"""What a runner is given, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from uni_agent.errors import RewardError, UniAgentError
from uni_agent.gateway.finished import reward_of
from uni_agent.types import ExitReason, Task

_REWARD_SECONDS = 30.0
_REWARD_TRIES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSession:
    """One session of one prompt, as a runner sees it. It may be pickled.

    `base_url` is for Anthropic's clients, `openai_base_url` for OpenAI's; both take `api_key`. `reward_key` belongs to
    the runner, never to the agent. `row` has the columns of the data set. `index` counts the sessions of the prompt and
    names the result; `sample` is the same unless a failed rollout was replaced by another sample. `attempt` counts from
    0. `deadline` is in Unix seconds. `run` is `rollout.custom.uni_agent` (`pipeline`, `run_dir`, `train`), empty
    without. `log_dir` is a folder for this attempt, "" when nothing is logged. `mask_unfinished` says that an episode
    which the agent did not end itself trains no token.
    """

    session_id: str
    base_url: str
    api_key: str = field(repr=False)
    reward_key: str = field(repr=False)
    model: str
    row: Mapping[str, Any] = field(repr=False)
    uid: str
    index: int
    sample: int
    attempt: int
    step: int
    validate: bool
    deadline: float
    run: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    tool_config_path: str | None = None
    log_dir: str = ""
    mask_unfinished: bool = False

    @property
    def openai_base_url(self) -> str:
        """The address up to and including `/v1`."""
        return f"{self.base_url}/v1"

    @property
    def task(self) -> Task:
        """The task that the row carries. Raises DataError for a row without one."""
        from uni_agent.data.verl_rows import task_of

        return task_of(self.row)

    async def reward(self, score: float, info: Mapping[str, Any] | None = None) -> None:
        """Give the session its reward; the last one counts. Raises RewardError when the gateway cannot be told."""
        import asyncio

        import aiohttp

        body = {**(info or {}), "reward": float(score)}
        headers = {"Authorization": f"Bearer {self.reward_key}"}
        error = ""
        for attempt in range(_REWARD_TRIES):
            try:
                async with (
                    aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_REWARD_SECONDS)) as client,
                    client.post(f"{self.base_url}/reward_info", json=body, headers=headers) as answer,
                ):
                    if answer.status < 300:
                        return
                    error = f"HTTP {answer.status}: {(await answer.text())[:300]}"
                    if answer.status < 500 and answer.status != 429:
                        break
            except (aiohttp.ClientError, TimeoutError) as fault:
                error = f"{type(fault).__name__}: {fault}"
            await asyncio.sleep(0.25 * 2**attempt)
        raise RewardError(f"session {self.session_id}: the reward cannot be posted: {error}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerResult:
    """How a session went.

    `reward` None: somebody else says (see `scoring`). `trusted` False: says nothing about the model, whatever the
    exit reason. `masked` keeps the reward in its group but trains no token. `info` becomes `reward_extra_info` where it
    is scalar; `reward` is left out of it, and in a validation `acc` is called `accuracy`, since verl would count the
    `acc` of a sample that infrastructure ended as 0. `turn_scores` are rewards of single turns as (turn, score), parts
    of `reward`. `metrics` are numbers for the side information.
    """

    reward: float | None = None
    exit_reason: ExitReason = ExitReason.FINISHED
    trusted: bool = True
    masked: bool = False
    error: str = ""
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    turn_scores: tuple[tuple[int, float], ...] = ()

    @classmethod
    def of(cls, value: Any) -> RunnerResult:
        """What a runner returned: a RunnerResult, a number, a mapping with `reward`, or None.

        Raises UniAgentError for anything else.
        """
        if isinstance(value, RunnerResult):
            return value
        if value is None:
            return cls()
        if isinstance(value, int | float) and not isinstance(value, bool):
            return cls(reward=float(value))
        if isinstance(value, Mapping):
            info = dict(cast("Mapping[str, Any]", value))
            return cls(reward=reward_of(info), info=info)
        raise UniAgentError(
            f"a runner returned {type(value).__name__}; return a RunnerResult, a number, a mapping or None"
        )
