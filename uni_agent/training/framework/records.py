"""A session's trajectories as the records that verl's trainer reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from uni_agent.errors import ModelError
from uni_agent.tokens.base import Renderer
from uni_agent.tokens.cache import Span
from uni_agent.training.framework.config import FrameworkSettings
from uni_agent.training.framework.queue import Record, scalars
from uni_agent.training.framework.session import RunnerResult
from uni_agent.training.outcome import segments, trained_turns, turn_rewards
from uni_agent.trajectory.fit import fit
from uni_agent.trajectory.trajectory import Trajectory
from uni_agent.trajectory.verl import session_order, transfer_queue_record
from uni_agent.types import parse_messages

_OWN_COLUMNS = ("agent_name", "validate", "__rollout_n__", "__do_sample__")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A session that ended, with its score. `masked`: no token of it trains; `trusted` False implies that."""

    trajectories: Sequence[Trajectory]
    result: RunnerResult
    score: float
    info: Mapping[str, Any]
    trusted: bool
    masked: bool
    attempts: int
    numbers: Mapping[str, float] = field(default_factory=dict[str, float])
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])


def selected(
    trajectories: Sequence[Trajectory], settings: FrameworkSettings, selection: Literal["all", "longest"]
) -> list[Trajectory]:
    """Those of a session that train, within verl's lengths and in verl's order; `longest`: the one that trains most.

    Empty when no trajectory has a response.
    """
    fitted = [
        fit(t, max_prompt=settings.prompt_length, max_response=settings.response_length)
        for t in trajectories
        if t.response_ids
    ]
    ordered = session_order(fitted)
    if selection == "longest" and ordered:
        # Of equals the last: it is the one whose reward verl takes.
        return [max(enumerate(ordered), key=lambda pair: (sum(pair[1].response_mask), pair[0]))[1]]
    return ordered


def session_records(
    scored: Scored, row: Mapping[str, Any], index: int, settings: FrameworkSettings, renderer: Renderer
) -> list[Record]:
    """Key, fields and tag of each trajectory of session `index` of a row; all share the session's score.

    Raises ModelError when the engine left out logprobs or routed experts that the trainer is set to use.
    """
    uid, step = row["uid"], int(row["global_steps"])
    columns = {key: value for key, value in row.items() if key not in _OWN_COLUMNS}
    columns.setdefault("data_source", "unknown")
    columns.setdefault("reward_model", {"ground_truth": ""})
    columns["session_id"] = index
    records: list[Record] = []
    for chain, trajectory in enumerate(scored.trajectories):
        whole = _finished(trajectory, scored)
        key, fields, tag = transfer_queue_record(
            whole, uid=uid, session=index, index=chain, global_steps=step, row=columns
        )
        _check_columns(fields, settings, whole.id)
        fields["extra_fields"]["uni_agent"] = side = _side(scored, chain, whole, row, renderer)
        if side["turn_scores"]:
            fields["rm_scores"].zero_()
            for position, value in turn_rewards(side, scored.score, len(whole.response_ids)).items():
                fields["rm_scores"][position] = value
        records.append((key, fields, tag))
    return records


def _finished(t: Trajectory, scored: Scored) -> Trajectory:
    return replace(
        t,
        response_mask=[0] * len(t.response_mask) if scored.masked or not scored.trusted else t.response_mask,
        reward=scored.score,
        reward_info=scalars(scored.info),
        exit_reason=str(scored.result.exit_reason),
        extra={**t.extra, "metrics": dict(scored.seconds)},
    )


def _check_columns(fields: dict[str, Any], settings: FrameworkSettings, name: str) -> None:
    """All records have the same columns: verl reads them together."""
    wanted = {"rollout_log_probs": settings.logprobs, "routed_experts": settings.experts}
    for column, needed in wanted.items():
        if not needed:
            fields.pop(column, None)
        elif column not in fields:
            key = "calculate_log_probs" if column == "rollout_log_probs" else "enable_rollout_routing_replay"
            raise ModelError(f"trajectory {name}: the engine gave no {column}, which rollout.{key}=true asks for")


def _side(scored: Scored, chain: int, t: Trajectory, row: Mapping[str, Any], renderer: Renderer) -> dict[str, Any]:
    from uni_agent.tokens.segments import turn_segments
    from uni_agent.trajectory.render_check import checked_render

    def parted(ids: list[int]) -> list[tuple[str, int, int]]:
        return list(turn_segments(renderer, ids, t.tools))

    turns = trained_turns(t)
    here = {turn for turn, _, _ in turns}
    reason = scored.result.exit_reason
    last = chain == len(scored.trajectories) - 1
    render, _ = checked_render(t, renderer)
    return {
        "trusted": scored.trusted,
        "exit_reason": str(reason),
        "exit_class": str(reason.exit_class),
        "task_id": task_id(row),
        "attempts": scored.attempts,
        "turns": [list(turn) for turn in turns],
        "segments": segments(t, turns, parted),
        "turn_scores": [[turn, float(score)] for turn, score in scored.result.turn_scores if turn in here],
        "weight_spans": [[span.version, span.start, span.end] for span in t.weight_spans],
        "chain": chain,
        "chains": len(scored.trajectories),
        **({"render": render} if render else {}),
        # One sample is counted once, by its last trajectory, which is the one whose reward verl takes.
        "metrics": dict(scored.numbers) if last else {},
    }


def task_id(row: Mapping[str, Any]) -> str:
    """The task's id where the row carries a task, or else the row's index as text."""
    extra: Any = row.get("extra_info")
    info: Mapping[str, Any] = cast("Mapping[str, Any]", extra) if isinstance(extra, Mapping) else {}
    text = info.get("task")
    if isinstance(text, str):
        try:
            return str(json.loads(text)["id"])
        except (ValueError, KeyError, TypeError):
            pass
    return str(info.get("index", row.get("index")))


def stand_in(session_id: str, row: Mapping[str, Any], settings: FrameworkSettings, renderer: Renderer) -> Trajectory:
    """A row for a session that left no tokens: its prompt, and one token behind it that is masked."""
    filler = next(iter(renderer.stop_token_ids), 0)
    try:
        prompt = renderer.initial(parse_messages(list(row["raw_prompt"])), [])
    except (ValueError, KeyError, TypeError):
        prompt = []
    return Trajectory(
        id=f"{session_id}/none",
        session_id=session_id,
        prompt_ids=list(prompt)[: settings.prompt_length] or [filler],
        response_ids=[filler],
        response_mask=[0],
        response_logprobs=[0.0],
        spans=(Span("observation", 0, 0, 1),),
        turns=(0,),
    )
