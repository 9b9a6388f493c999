"""What a worker reports of its rollouts as JSON data, and back, exactly."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from uni_agent.store.changes import ChainSnapshot
from uni_agent.store.records import RolloutRecord
from uni_agent.store.text import plain
from uni_agent.trajectory.plain import items, mapping, message_from_json, message_to_json, parts, text
from uni_agent.types import ExitReason, RewardResult, StepStatus, Task, Timing, TokenAccount, ToolResult, Turn, Usage

_PHASES = ("start", "model", "tools", "reward", "teardown")
_STATUSES = ("ok", "error", "format_error", "timeout", "syntax_error", "skipped")
_ARRAYS = ("prompt_ids", "response_ids", "mask")
_TEXTS = ("request_id", "spans", "weight_spans", "metrics", "extra")


def task_to_json(task: Task) -> dict[str, Any]:
    """All fields of `task` that differ from their defaults."""
    return task.model_dump(exclude_defaults=True)


def task_from_json(data: Any) -> Task:
    """The task that `task_to_json` was given. Raises ValueError for other data."""
    return Task.model_validate(dict(mapping(data, "task")))


def turn_to_json(turn: Turn) -> dict[str, Any]:
    """All fields of `turn`."""
    usage = turn.usage
    return {
        "index": turn.index,
        "message": message_to_json(turn.message),
        "results": [_result_to_json(result) for result in turn.results],
        "observations": [message_to_json(message) for message in turn.observations],
        "status": str(turn.status),
        "finish_reason": turn.finish_reason,
        "usage": [usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens],
        "token_span": list(turn.token_span),
        "seconds": [turn.model_seconds, turn.tool_seconds],
    }


def turn_from_json(data: Any) -> Turn:
    """The turn that `turn_to_json` was given. Raises ValueError for other data."""
    raw = mapping(data, "turn")
    start, end = parts(raw.get("token_span"), 2, "token_span: [start, end]")
    model, tool = parts(raw.get("seconds"), 2, "seconds: [model, tools]")
    return Turn(
        index=count(raw.get("index"), "index"),
        message=message_from_json(raw.get("message")),
        results=tuple(_result_from_json(result) for result in items(raw, "results")),
        observations=tuple(message_from_json(message) for message in items(raw, "observations")),
        status=StepStatus(raw.get("status")),
        finish_reason=text(raw, "finish_reason"),
        usage=Usage(*(count(n, "usage") for n in parts(raw.get("usage"), 3, "usage: three counts"))),
        token_span=(count(start, "token_span"), count(end, "token_span")),
        model_seconds=_number(model, "seconds"),
        tool_seconds=_number(tool, "seconds"),
    )


def record_to_json(record: RolloutRecord) -> dict[str, Any]:
    """All fields of `record`."""
    reward, timing = record.reward, record.timing
    return {
        "exit_reason": str(record.exit_reason),
        "error": record.error,
        "answer": record.answer,
        "reward": None if reward is None else _reward_to_json(reward),
        "account": record.account.to_dict(),
        "timing": [getattr(timing, phase) for phase in _PHASES],
        "turns": record.turns,
        "opening": [message_to_json(message) for message in record.opening],
    }


def record_from_json(data: Any) -> RolloutRecord:
    """The record that `record_to_json` was given. Raises ValueError for other data."""
    raw = mapping(data, "record")
    account = mapping(raw.get("account"), "account")
    reward = raw.get("reward")
    return RolloutRecord(
        exit_reason=ExitReason(raw.get("exit_reason")),
        error=text(raw, "error"),
        answer=text(raw, "answer"),
        reward=None if reward is None else _reward_from_json(reward),
        account=TokenAccount(
            *(count(account.get(name), name) for name in ("sampled", "trained", "masked")),
            dropped={reason: count(n, reason) for reason, n in mapping(account.get("dropped"), "dropped").items()},
        ),
        timing=Timing(*(_number(n, "timing") for n in parts(raw.get("timing"), len(_PHASES), "timing: five numbers"))),
        turns=count(raw.get("turns"), "turns"),
        opening=tuple(message_from_json(message) for message in items(raw, "opening")),
    )


def chain_to_json(chain: ChainSnapshot) -> dict[str, Any]:
    """All fields of `chain`: its arrays as base64, the rest as the text that it is."""
    out = {name: getattr(chain, name) for name in _TEXTS}
    out |= {name: base64.b64encode(getattr(chain, name)).decode() for name in _ARRAYS}
    out["logprobs"] = None if chain.logprobs is None else base64.b64encode(chain.logprobs).decode()
    return out


def chain_from_json(data: Any) -> ChainSnapshot:
    """The chain that `chain_to_json` was given. Raises ValueError for other data."""
    raw = mapping(data, "chain")
    texts = {name: text(raw, name) for name in _TEXTS}
    arrays: dict[str, Any] = {name: _bytes(raw, name) for name in _ARRAYS}
    return ChainSnapshot(
        **texts,
        **arrays,
        logprobs=None if raw.get("logprobs") is None else _bytes(raw, "logprobs"),
    )


def _result_to_json(result: ToolResult) -> dict[str, Any]:
    return {
        "call_id": result.call_id,
        "name": result.name,
        "output": result.output,
        "status": result.status,
        "exit_code": result.exit_code,
        "seconds": result.seconds,
    }


def _result_from_json(data: Any) -> ToolResult:
    raw = mapping(data, "result")
    status: Any = text(raw, "status")
    if status not in _STATUSES:
        raise ValueError(f"status: {status!r} is none of {', '.join(_STATUSES)}")
    code = raw.get("exit_code")
    return ToolResult(
        call_id=text(raw, "call_id"),
        name=text(raw, "name"),
        output=text(raw, "output"),
        status=status,
        exit_code=code if type(code) is int and abs(code) < 2**63 else None,
        seconds=_number(raw.get("seconds"), "seconds"),
    )


def _reward_to_json(reward: RewardResult) -> dict[str, Any]:
    return {
        "score": None if reward.score is None else float(reward.score),
        "resolved": None if reward.resolved is None else bool(reward.resolved),
        "trusted": bool(reward.trusted),
        "breakdown": plain(reward.breakdown),
        "log": reward.log,
        "error": reward.error,
        "turn_scores": [float(score) for score in reward.turn_scores],
    }


def _reward_from_json(data: Any) -> RewardResult:
    raw = mapping(data, "reward")
    score = raw.get("score")
    resolved = raw.get("resolved")
    return RewardResult(
        score=None if score is None else _number(score, "score"),
        resolved=None if resolved is None else bool(resolved),
        trusted=bool(raw.get("trusted")),
        breakdown=dict(mapping(raw.get("breakdown"), "breakdown")),
        log=text(raw, "log"),
        error=text(raw, "error"),
        turn_scores=tuple(_number(score, "turn_scores") for score in items(raw, "turn_scores")),
    )


def count(value: Any, what: str) -> int:
    """`value`. Raises ValueError that names `what` for anything but a whole number from 0 on that a column holds."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{what}: expected a count, got {value!r}")
    return value


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{what}: expected a number, got {value!r}")
    return float(value)


def _bytes(raw: Mapping[str, Any], key: str) -> bytes:
    try:
        return base64.b64decode(text(raw, key), validate=True)
    except binascii.Error as error:
        raise ValueError(f"{key}: not base64: {error}") from error
