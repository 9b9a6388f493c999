"""Small records for the store's tests."""

from __future__ import annotations

from typing import Any

from uni_agent.engine.base import TokenOutput, WeightSpan
from uni_agent.store import RolloutRecord
from uni_agent.tokens.cache import RolloutCache
from uni_agent.types import (
    ExitReason,
    Message,
    RewardResult,
    StepStatus,
    Timing,
    TokenAccount,
    ToolCall,
    ToolResult,
    Turn,
    Usage,
)

CONFIG: dict[str, Any] = {"name": "demo", "model": {"type": "tokens", "temperature": 0.7}, "run": {"concurrency": 4}}


def turn(index: int = 0, content: str = "hello", output: str = "ok", name: str = "execute_bash") -> Turn:
    call = ToolCall(id=f"call-{index}", name=name, arguments={"command": content}, raw_arguments="{}")
    return Turn(
        index=index,
        message=Message("assistant", content, reasoning="hm", tool_calls=(call,)),
        results=(ToolResult(call.id, name, output, exit_code=0, seconds=0.25),),
        observations=(Message("tool", output, tool_call_id=call.id),),
        status=StepStatus.COMPLETED,
        finish_reason="tool_calls",
        usage=Usage(10, 5, 2),
        token_span=(index, index + 1),
        model_seconds=0.5,
        tool_seconds=0.25,
    )


def chain(prompt: list[int] | None = None, sampled: list[int] | None = None, request_id: str = "r-1") -> RolloutCache:
    cache = RolloutCache(request_id, prompt_ids=[1, 2, 3] if prompt is None else prompt)
    ids = [7, 8] if sampled is None else sampled
    spans = (WeightSpan("step-1", 0, len(ids)),)
    cache.append_sampled(TokenOutput(ids, [-0.5] * len(ids), "stop", weight_spans=spans), turn=0)
    cache.append_context([9], turn=0)
    cache.metrics["seconds"] = float("nan")
    return cache


def record(
    reason: ExitReason = ExitReason.FINISHED, score: float | None = 1.0, *, trusted: bool = True, **fields: Any
) -> RolloutRecord:
    reward = None if score is None else RewardResult(score, score > 0, trusted, {"tests": score}, log="passed")
    values: dict[str, Any] = {
        "exit_reason": reason,
        "reward": reward,
        "account": TokenAccount(10, 6, 1, {"cut": 3}),
        "timing": Timing(1.0, 2.0, 3.0, 4.0, 5.0),
        "turns": 2,
        "opening": (Message("system", "be good"), Message("user", "do it")),
    }
    return RolloutRecord(**{**values, **fields})
