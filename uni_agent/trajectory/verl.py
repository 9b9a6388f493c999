"""Trajectories as verl takes them: AgentLoopOutput, TransferQueue record, padded arrays. Checked against verl 0.9.1.

Nothing of verl is imported before `agent_loop_output` is called; torch and Pillow only where their types are made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from uni_agent.engine.images import pil_image
from uni_agent.optional import load
from uni_agent.trajectory.experts import aligned_experts, missing_experts
from uni_agent.trajectory.fit import fit
from uni_agent.trajectory.join import logical_trajectories
from uni_agent.trajectory.trajectory import Trajectory
from uni_agent.types import Media

StepOf = Callable[[str], int]
"""The trainer's step that a weight version stands for."""

_METRICS = ("generate_sequences", "tool_calls", "compute_score")


def agent_loop_fields(
    trajectory: Trajectory,
    *,
    global_steps: int | None = None,
    step_of: StepOf = int,
    max_prompt: int | None = None,
    max_response: int | None = None,
) -> dict[str, Any]:
    """The fields of verl's AgentLoopOutput as plain data, all that its v1 trainer needs among them.

    `extra_fields` has `reward_extra_info` (the scalars of `reward_info`), `min_global_steps` and `max_global_steps`:
    the steps of the weights that sampled the trajectory, by `step_of`, or `global_steps` where the engine marked none.
    `num_turns` counts the messages but the system's, as verl's own loops do. `routed_experts` is an array
    [P + T, layers, top_k], and None unless every token but the last has a row: verl replays all of them, so that rows
    which are missing would route to expert 0. `multi_modal_data` is `{"images": [Media, …]}` or None.

    Lengths are limited as `fit` does. Raises ValueError for an empty response, which verl cannot score, for weights
    whose step is not known, and what `fit` raises.
    """
    t = fit(trajectory, max_prompt=max_prompt, max_response=max_response)
    if not t.response_ids:
        raise ValueError(f"trajectory {t.id!r}: has no response, which verl cannot score; leave it out")
    missing = missing_experts(t) if t.routed_experts else 0
    first, last = _steps(t, global_steps, step_of)
    return {
        "prompt_ids": t.prompt_ids,
        "response_ids": t.response_ids,
        "response_mask": t.response_mask,
        "response_logprobs": t.response_logprobs,
        "routed_experts": None if missing else aligned_experts(t),
        "multi_modal_data": {"images": list(t.multi_modal_data)} if t.multi_modal_data else None,
        "reward_score": t.reward,
        "num_turns": sum(message.role != "system" for message in t.messages) or t.num_turns,
        "metrics": _metrics(t),
        "extra_fields": {
            "reward_extra_info": _scalars(t.reward_info),
            "min_global_steps": first,
            "max_global_steps": last,
            "turn_scores": [],
            "tool_rewards": [],
            "trajectory_id": t.id,
            "session_id": t.session_id,
            "scenario": t.scenario,
            "materialization_reason": t.materialization_reason,
            "exit_reason": t.exit_reason,
            "accounting": t.accounting.to_dict(),
            "routed_experts_missing": missing,
        },
    }


def agent_loop_output(trajectory: Trajectory, *, images: Callable[[Media], Any] | None = None, **options: Any) -> Any:
    """A verl AgentLoopOutput; `options` are those of `agent_loop_fields`.

    `images` makes of an image what the model's processor takes (default: a PIL image). Raises MissingExtraError when
    verl, or Pillow for images, is not installed.
    """
    loop = load("verl.experimental.agent_loop.agent_loop", extra="train", needed_for="an AgentLoopOutput")
    fields = agent_loop_fields(trajectory, **options)
    if media := fields["multi_modal_data"]:
        media["images"] = [(images or pil_image)(image) for image in media["images"]]
    return loop.AgentLoopOutput(**fields)


def session_order(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """The trajectories of one session in the order in which an agent loop returns them.

    Those without a response, which verl cannot take, are left out; they have nothing to train.

    verl gives all of them the reward and the advantage of the last one: that is the last part of the longest logical
    trajectory of scenario `main` (of any scenario where there is none).
    """
    groups = logical_trajectories([t for t in trajectories if t.response_ids])
    groups.sort(key=lambda parts: (any(t.scenario == "main" for t in parts), not parts[-1].abandoned, _trained(parts)))
    return [trajectory for parts in groups for trajectory in parts]


def transfer_queue_record(
    trajectory: Trajectory,
    *,
    uid: str,
    session: int,
    index: int,
    global_steps: int,
    row: Mapping[str, Any] | None = None,
    multi_modal_inputs: Mapping[str, Any] | None = None,
    position_ids: Any = None,
    **options: Any,
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Key, fields and tag of one trajectory in verl's TransferQueue (v1 trainer), tensors without padding.

    `uid` names the prompt, `session` its sample, `index` the trajectory in `session_order`; `global_steps` is the step
    that asked for it. `row` holds what the dataset row adds (`reward_model`, `data_source`, … for validation).
    `options` are those of `agent_loop_fields`. Ids, masks and positions are int64 [P], [T] or [P + T], logprobs
    float32 [T] (left out where unknown), `rm_scores` float32 [T] with the reward at the last token.

    Raises ValueError without a reward, for a uid with `_`, and for images without what the processor made of them:
    `multi_modal_inputs` and `position_ids`. Raises MissingExtraError without torch.
    """
    if "_" in uid or not uid:
        raise ValueError(f"uid {uid!r}: verl splits keys at `_`, so a uid has none")
    if trajectory.reward is None:
        raise ValueError(f"trajectory {trajectory.id!r}: has no reward; verl's trainer needs one")
    if trajectory.multi_modal_data and (multi_modal_inputs is None or position_ids is None):
        raise ValueError(f"trajectory {trajectory.id!r}: images need `multi_modal_inputs` and `position_ids`")
    fields = agent_loop_fields(trajectory, global_steps=global_steps, **options)
    torch = load("torch", extra="embedded", needed_for="a TransferQueue record")
    prompts, responses = (torch.tensor(fields[key], dtype=torch.int64) for key in ("prompt_ids", "response_ids"))
    mask = torch.tensor(fields["response_mask"], dtype=torch.int64)
    scores = torch.zeros(len(responses), dtype=torch.float32)
    scores[-1] = trajectory.reward
    input_ids = torch.cat([prompts, responses])
    record: dict[str, Any] = {
        **(row or {}),
        "uid": uid,
        "prompts": prompts,
        "responses": responses,
        "response_mask": mask,
        "loss_mask": mask.clone(),
        "input_ids": input_ids,
        "position_ids": torch.arange(len(input_ids)) if position_ids is None else position_ids,
        "rm_scores": scores,
        "num_turns": fields["num_turns"],
        "metrics": fields["metrics"],
        "multi_modal_inputs": dict(multi_modal_inputs or {}),
        "extra_fields": fields["extra_fields"],
    }
    if fields["response_logprobs"] is not None:
        record["rollout_log_probs"] = torch.tensor(fields["response_logprobs"], dtype=torch.float32)
    if fields["routed_experts"] is not None:
        record["routed_experts"] = torch.tensor(fields["routed_experts"], dtype=torch.int16)
    return f"{uid}_{session}_{index}", record, _tag(fields, global_steps)


def padded_fields(
    trajectory: Trajectory, *, prompt_length: int, response_length: int, pad_token_id: int = 0
) -> dict[str, list[Any]]:
    """Arrays of fixed lengths for verl's v0 batches: prompts padded on the left, responses on the right.

    `prompts` [`prompt_length`], `responses`, `response_mask`, `rollout_log_probs` (left out where unknown)
    [`response_length`]; `input_ids`, `attention_mask`, `position_ids` of both together. Lengths are limited as `fit`
    does.
    """
    t = fit(trajectory, max_prompt=prompt_length, max_response=response_length)
    left, right = prompt_length - len(t.prompt_ids), response_length - len(t.response_ids)
    size = len(t.prompt_ids) + len(t.response_ids)
    prompts = [pad_token_id] * left + t.prompt_ids
    responses = t.response_ids + [pad_token_id] * right
    out: dict[str, list[Any]] = {
        "prompts": prompts,
        "responses": responses,
        "response_mask": t.response_mask + [0] * right,
        "input_ids": prompts + responses,
        "attention_mask": [0] * left + [1] * size + [0] * right,
        "position_ids": [0] * left + list(range(size)) + [max(size - 1, 0)] * right,
    }
    if t.response_logprobs is not None:
        out["rollout_log_probs"] = t.response_logprobs + [0.0] * right
    return out


def _steps(t: Trajectory, global_steps: int | None, step_of: StepOf) -> tuple[int, int]:
    versions = {span.version for span in t.weight_spans}
    if not versions and global_steps is not None:
        return global_steps, global_steps
    if not versions:
        raise ValueError(f"trajectory {t.id!r}: the engine marked no weights; pass `global_steps`")
    try:
        steps = [step_of(version) for version in versions]
    except ValueError as error:
        raise ValueError(f"trajectory {t.id!r}: weights {sorted(versions)} name no step; pass `step_of`") from error
    return min(steps), max(steps)


def _tag(fields: Mapping[str, Any], global_steps: int) -> dict[str, Any]:
    prompt, response = len(fields["prompt_ids"]), len(fields["response_ids"])
    return {
        "status": "success",
        "prompt_len": prompt,
        "response_len": response,
        "seq_len": prompt + response,
        "global_steps": global_steps,
        "min_global_steps": fields["extra_fields"]["min_global_steps"],
        "max_global_steps": fields["extra_fields"]["max_global_steps"],
    }


def _metrics(t: Trajectory) -> dict[str, float | int]:
    given: Mapping[str, Any] = t.extra.get("metrics") or {}
    return {
        **{key: float(given.get(key, 0.0)) for key in _METRICS},
        "num_preempted": int(given.get("num_preempted", -1)),
    }


def _scalars(info: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in info.items() if isinstance(value, bool | int | float | str)}


def _trained(parts: Sequence[Trajectory]) -> int:
    return sum(sum(part.response_mask) for part in parts)
