"""A session's trajectories as the records that verl's trainer reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from uni_agent.errors import ModelError
from uni_agent.tokens.base import Renderer
from uni_agent.training.framework.config import FrameworkSettings
from uni_agent.training.framework.queue import Record
from uni_agent.training.framework.session import RunnerResult
from uni_agent.training.outcome import masked_row, side, turn_rewards
from uni_agent.trajectory.fit import fit
from uni_agent.trajectory.trajectory import Trajectory
from uni_agent.trajectory.verl import session_order, transfer_queue_record
from uni_agent.types import parse_messages

_OWN_COLUMNS = ("agent_name", "validate", "__rollout_n__", "__do_sample__")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A session that ended, with its score. `masked`: no token of it trains; `trusted` False implies that.

    `trajectories` are what `selected` gave of `wholes`, which are as the gateway gave them.
    """

    trajectories: Sequence[Trajectory]
    wholes: Sequence[Trajectory] = ()
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
    finished = _finished(scored, renderer)
    for chain, trajectory in enumerate(finished):
        key, fields, tag = transfer_queue_record(
            trajectory, uid=uid, session=index, index=chain, global_steps=step, row=columns
        )
        _check_columns(fields, settings, trajectory.id)
        about = {**_side(scored, finished, chain, renderer), "task_id": task_id(row)}
        fields["extra_fields"]["uni_agent"] = about
        if about["turn_scores"]:
            fields["rm_scores"].zero_()
            for position, value in turn_rewards(about, scored.score, len(trajectory.response_ids)).items():
                fields["rm_scores"][position] = value
        records.append((key, fields, tag))
    return records


def reported(info: Mapping[str, Any], *, validate: bool) -> dict[str, Any]:
    """What of a score's `info` becomes `reward_extra_info`, of which verl takes the scalars.

    Without `reward`, which is verl's own column: twice breaks its validation. In a validation `acc` is called
    `accuracy`: where verl knows an `acc` it counts each sample that is missing as an `acc` of 0, and one that
    infrastructure ended is missing.
    """
    names = {"acc": "accuracy"} if validate else {}
    return {names.get(name, name): value for name, value in info.items() if name != "reward"}


def _finished(scored: Scored, renderer: Renderer) -> list[Trajectory]:
    from uni_agent.trajectory.render_check import checked_render

    wholes = {whole.id: whole for whole in scored.wholes}
    found: list[Trajectory] = []
    for t in scored.trajectories:
        # What a length has cut off is missing in no render: the whole chain is what the agent saw.
        render, _ = checked_render(wholes.get(t.id, t), renderer)
        found.append(
            replace(
                t,
                response_mask=[0] * len(t.response_mask) if scored.masked or not scored.trusted else t.response_mask,
                reward=scored.score,
                reward_info=dict(scored.info),
                exit_reason=str(scored.result.exit_reason),
                extra={**t.extra, "metrics": dict(scored.seconds), **({"render": render} if render else {})},
            )
        )
    return found


def _check_columns(fields: dict[str, Any], settings: FrameworkSettings, name: str) -> None:
    """All records have the same columns: verl reads them together."""
    wanted = {"rollout_log_probs": settings.logprobs, "routed_experts": settings.experts}
    for column, needed in wanted.items():
        if not needed:
            fields.pop(column, None)
        elif column not in fields:
            key = "calculate_log_probs" if column == "rollout_log_probs" else "enable_rollout_routing_replay"
            raise ModelError(f"trajectory {name}: the engine gave no {column}, which rollout.{key}=true asks for")


def _side(scored: Scored, finished: Sequence[Trajectory], chain: int, renderer: Renderer) -> dict[str, Any]:
    from uni_agent.tokens.segments import turn_segments

    def parted(ids: list[int]) -> list[tuple[str, int, int]]:
        return list(turn_segments(renderer, ids, finished[chain].tools))

    scores: dict[int, float] = {}
    for turn, score in scored.result.turn_scores:
        scores[turn] = scores.get(turn, 0.0) + score
    return side(
        finished,
        chain,
        reason=scored.result.exit_reason,
        trusted=scored.trusted,
        attempts=scored.attempts,
        turn_scores=scores,
        numbers=scored.numbers,
        segments_of=parted,
    )


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
    return masked_row(prompt, filler, session_id=session_id, max_prompt=settings.prompt_length)
