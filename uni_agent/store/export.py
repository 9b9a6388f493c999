"""Rollouts as records that other programs read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from uni_agent.store.reader import RunReader
from uni_agent.store.records import ChainRow, RolloutRow, TurnRow
from uni_agent.store.text import dumps


def trajectories(reader: RunReader, *, resolved_only: bool = False) -> Iterator[dict[str, Any]]:
    """Every rollout that ended and counts, as one JSON-ready object: facts, messages, and token chains."""
    for rollout in _ended(reader, resolved_only):
        facts = rollout.to_dict()
        for key in ("state", "superseded", "opening"):
            del facts[key]
        turns = reader.turns(rollout.id)
        yield {
            "run_id": reader.run_id,
            **facts,
            "messages": conversation(rollout, turns),
            "chains": [_chain(chain) for chain in reader.chains(rollout.id)],
        }


def chain_rows(reader: RunReader, *, resolved_only: bool = False) -> Iterator[dict[str, Any]]:
    """One flat row per token chain, for tables; a rollout without chains gives one row with `chain` None.

    Nested data (`messages`, `spans`, `weight_spans`, `extra`, `reward_breakdown`) is JSON text.
    """
    for rollout in _ended(reader, resolved_only):
        chains: list[ChainRow | None] = [*reader.chains(rollout.id)] or [None]
        messages = dumps(conversation(rollout, reader.turns(rollout.id)))
        for chain in chains:
            yield {
                "run_id": reader.run_id,
                "rollout": rollout.id,
                "task_id": rollout.task_id,
                "sample": rollout.sample,
                "attempt": rollout.attempt,
                "exit_reason": rollout.exit_reason,
                "exit_class": rollout.exit_class,
                "score": rollout.score,
                "resolved": rollout.resolved,
                "trusted": rollout.trusted,
                "reward_breakdown": dumps(rollout.reward_breakdown),
                "error": rollout.error,
                "answer": rollout.answer,
                "turns": rollout.turns,
                "messages": messages,
                "chain": chain.index if chain else None,
                "prompt_ids": chain.prompt_ids if chain else [],
                "response_ids": chain.response_ids if chain else [],
                "response_mask": chain.response_mask if chain else [],
                "response_logprobs": chain.response_logprobs if chain else None,
                "spans": dumps(chain.spans if chain else []),
                "weight_spans": dumps(chain.weight_spans if chain else []),
                "extra": dumps(chain.extra if chain else {}),
            }


def sft_messages(reader: RunReader, *, resolved_only: bool = False) -> Iterator[dict[str, Any]]:
    """`{messages, task_id, sample, exit_reason, score, resolved}` of every rollout with at least one assistant turn.

    Messages are OpenAI's; thinking is in `reasoning_content`.
    """
    for rollout in _ended(reader, resolved_only):
        turns = reader.turns(rollout.id)
        if turns:
            yield {
                "messages": conversation(rollout, turns),
                "task_id": rollout.task_id,
                "sample": rollout.sample,
                "exit_reason": rollout.exit_reason,
                "score": rollout.score,
                "resolved": rollout.resolved,
            }


def conversation(rollout: RolloutRow, turns: list[TurnRow]) -> list[dict[str, Any]]:
    """The whole conversation as OpenAI Chat messages."""
    stored = [*rollout.opening, *(m for turn in turns for m in (turn.message, *turn.observations))]
    return [_openai(message) for message in stored]


def _chain(chain: ChainRow) -> dict[str, Any]:
    """As plain data; a logprob that JSON cannot hold becomes None."""
    data, logprobs = chain.to_dict(), chain.response_logprobs
    if logprobs is not None and not all(map(math.isfinite, logprobs)):
        data["response_logprobs"] = [value if math.isfinite(value) else None for value in logprobs]
    return data


def _openai(message: dict[str, Any]) -> dict[str, Any]:
    """As `types.Message.to_openai` writes it."""
    out: dict[str, Any] = {"role": message["role"], "content": message["content"]}
    if message["reasoning"]:
        out["reasoning_content"] = message["reasoning"]
    if message["tool_calls"]:
        out["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    if message["role"] == "tool":
        out["tool_call_id"] = message["tool_call_id"]
    if message["name"]:
        out["name"] = message["name"]
    return out


def _call(call: dict[str, Any]) -> dict[str, Any]:
    arguments = call["raw_arguments"] if call["error"] else dumps(call["arguments"])
    return {
        "id": call["id"],
        "type": "function",
        "function": {"name": call["name"], "arguments": arguments or "{}"},
    }


def _ended(reader: RunReader, resolved_only: bool) -> Iterator[RolloutRow]:
    return reader.each_rollout(state="done", resolved=True if resolved_only else None)
