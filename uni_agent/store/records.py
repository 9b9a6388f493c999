"""What goes into a run's store and what comes out of it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from uni_agent.types import ExitReason, InteractionResult, Message, RewardResult, Timing, TokenAccount


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """How a rollout ended.

    `error` is "" or `ClassName: message`. `reward` is None when nothing was graded. `opening` holds the messages that
    the conversation started with (system prompt, task): with the turns they are the whole conversation.
    """

    exit_reason: ExitReason
    error: str = ""
    answer: str = ""
    reward: RewardResult | None = None
    account: TokenAccount = field(default_factory=TokenAccount)
    timing: Timing = field(default_factory=Timing)
    turns: int = 0
    opening: tuple[Message, ...] = ()

    @classmethod
    def of(
        cls,
        result: InteractionResult,
        *,
        reward: RewardResult | None = None,
        account: TokenAccount | None = None,
        timing: Timing | None = None,
    ) -> RolloutRecord:
        """The record of an episode; `timing` replaces the result's own."""
        return cls(
            exit_reason=result.exit_reason,
            error=result.error,
            answer=result.answer,
            reward=reward,
            account=account or TokenAccount(),
            timing=timing or result.timing,
            turns=len(result.turns),
            opening=_opening(result),
        )


def _opening(result: InteractionResult) -> tuple[Message, ...]:
    said = sum(1 + len(turn.observations) for turn in result.turns)
    count = max(len(result.messages) - said, 0)
    if not result.turns or result.messages[count : count + 1] == [result.turns[0].message]:
        return tuple(result.messages[:count])
    first = result.turns[0].message  # a harness that rewrites its history: count from the front instead
    count = result.messages.index(first) if first in result.messages else count
    return tuple(result.messages[:count])


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """One rollout as stored. `id` orders rollouts by their start and is the cursor of `RunReader.rollouts`.

    `trusted` is None until graded, False when the ending or the grader says nothing about the model. `tokens` and
    `time` have the keys of `Summary`; `dropped_reasons` maps a reason to tokens. `started` and `ended` are Unix
    seconds. `superseded` rollouts were retried or redone and count nowhere.
    """

    id: str
    task_id: str
    sample: int
    attempt: int
    state: str
    superseded: bool
    started: float
    ended: float | None
    exit_reason: str | None
    exit_class: str | None
    score: float | None
    resolved: bool | None
    trusted: bool | None
    turns: int
    tokens: dict[str, int]
    time: dict[str, float]
    dropped_reasons: dict[str, int]
    reward_breakdown: dict[str, float]
    reward_error: str
    error: str
    answer: str
    opening: list[dict[str, Any]]
    reward_log: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data; nested containers are shared with the row."""
        return _fields(self)


@dataclass(frozen=True, slots=True)
class TurnRow:
    """One turn as stored; `message`, `results` and `observations` have the fields of `types.Turn`."""

    index: int
    status: str
    finish_reason: str
    span: tuple[int, int]
    model_seconds: float
    tool_seconds: float
    usage: dict[str, int]
    message: dict[str, Any]
    results: list[dict[str, Any]]
    observations: list[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Plain data; nested containers are shared with the row."""
        return _fields(self)


@dataclass(frozen=True, slots=True)
class ChainRow:
    """One token chain as stored: `prompt_ids` [P], the rest [T]; logprobs are float32 and None where unknown.

    `spans` are `[kind, turn, start, end]`, `weight_spans` `[version, start, end]`.
    """

    index: int
    request_id: str
    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float] | None
    spans: list[list[Any]]
    weight_spans: list[list[Any]]
    metrics: dict[str, float | None]
    extra: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain data; nested containers are shared with the row."""
        return _fields(self)


@dataclass(frozen=True, slots=True)
class EventRow:
    """Something that happened. `seq` rises without ever being used twice; `rollout` is None for events of the run."""

    seq: int
    time: float
    kind: str
    rollout: str | None
    data: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain data; nested containers are shared with the row."""
        return _fields(self)


def _fields(row: Any) -> dict[str, Any]:
    return {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
