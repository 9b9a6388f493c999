"""What a finished rollout is to the trainer: its trajectories, whether they can be trusted, and their fate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from uni_agent.tokens.cache import Span
from uni_agent.training.config import Fate, TrainConfig
from uni_agent.training.failures import fate_of
from uni_agent.trajectory.fit import fit
from uni_agent.trajectory.trajectory import Trajectory
from uni_agent.trajectory.verl import session_order
from uni_agent.types import ExitReason, StepStatus, TokenAccount, Turn

if TYPE_CHECKING:
    from uni_agent.interaction.config import InteractionConfig
    from uni_agent.store.records import RolloutRecord
    from uni_agent.tokens.graph import Chain

SegmentsOf = Callable[[list[int]], Sequence[tuple[str, int, int]]]
"""(kind, start, end) of each segment of the sampled tokens of one turn."""

INLINE_TOKENS = 4096
"""Chains below this are worked on the event loop: a thread hand-over costs more than they do."""

Verdict = Literal["train", "mask", "drop", "failed"]
"""A `Fate`, or `failed`: infrastructure ended the rollout, and `train.failures` says what happens."""


def verdict(
    reason: ExitReason, train: TrainConfig, interaction: InteractionConfig, *, validation: bool = False
) -> Verdict:
    """What becomes of a rollout that ended by `reason`. A `validation` leaves out nothing but failures."""
    if not reason.trusted:
        return "failed"
    masked = interaction.mask_abnormal_exit_traj and reason.abnormal
    return fate_of(reason, train.exits, masked=masked, validation=validation)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A rollout as it goes to the trainer.

    `trajectories` are in the order in which verl takes them (`session_order`), none when the rollout is left out.
    `trusted` says whether they may enter statistics of their group. `numbers` are for metrics.
    """

    record: RolloutRecord
    trajectories: tuple[Trajectory, ...]
    trusted: bool
    fate: Fate
    attempts: int
    numbers: Mapping[str, float]

    def side_information(self, index: int, segments_of: SegmentsOf) -> dict[str, Any]:
        """What our trainer wants to know of trajectory `index`, as plain JSON; goes along in `extra_fields`."""
        reward = self.record.reward
        return side(
            self.trajectories,
            index,
            reason=self.record.exit_reason,
            trusted=self.trusted,
            attempts=self.attempts,
            turn_scores=dict(enumerate(reward.turn_scores)) if reward is not None else {},
            numbers=self.numbers,
            segments_of=segments_of,
        )


def side(
    trajectories: Sequence[Trajectory],
    index: int,
    *,
    reason: ExitReason,
    trusted: bool,
    attempts: int,
    turn_scores: Mapping[int, float],
    numbers: Mapping[str, float],
    segments_of: SegmentsOf,
) -> dict[str, Any]:
    """The side information of trajectory `index` of a session's, which are in verl's order, as plain JSON.

    `turn_scores` are those of the whole session, by turn. `extra["render"]` of the trajectory goes along.
    """
    trajectory = trajectories[index]
    turns = trained_turns(trajectory)
    return {
        "trusted": trusted,
        "exit_reason": str(reason),
        "exit_class": str(reason.exit_class),
        "attempts": attempts,
        "turns": [[turn, start, end] for turn, start, end in turns],
        "segments": segments(trajectory, turns, segments_of),
        "turn_scores": [[turn, float(turn_scores[turn])] for turn, _, _ in turns if turn in turn_scores],
        "weight_spans": [[span.version, span.start, span.end] for span in trajectory.weight_spans],
        "chain": index,
        "chains": len(trajectories),
        **({"render": render} if (render := trajectory.extra.get("render")) else {}),
        # One sample is counted once, by its last trajectory, which is the one whose reward verl takes.
        "metrics": dict(numbers) if index == len(trajectories) - 1 else {},
    }


def trajectories_of(
    chains: Iterable[Chain],
    record: RolloutRecord,
    *,
    session_id: str,
    train: TrainConfig,
    masked: bool,
    preempted: int | None = None,
    render_of: Callable[[Trajectory], str | None] | None = None,
) -> tuple[Trajectory, ...]:
    """The trajectories of an episode's chains, in verl's order and within the lengths of `train`.

    With `masked` no token trains; the spans still say which were sampled. A chain without a sampled token is left out.
    `preempted` is how often the engine preempted the session's requests.
    What `render_of` says of a whole trajectory, unless that is None, is its `extra["render"]`.
    """
    reward = record.reward
    score = reward.score if reward is not None and reward.score is not None else 0.0
    found: list[Trajectory] = []
    for chain in chains:
        whole = Trajectory.from_chain(
            chain,
            session_id=session_id,
            materialization_reason="finalized",
            reward=score,
            reward_info=reward_info(record),
            exit_reason=str(record.exit_reason),
            extra={"metrics": verl_metrics(record, preempted)},
        )
        if render_of is not None and (render := render_of(whole)) is not None:
            whole = replace(whole, extra={**whole.extra, "render": render})
        part = fit(whole, max_prompt=train.max_prompt_tokens, max_response=train.max_response_tokens)
        if masked:
            part = replace(part, response_mask=[0] * len(part.response_mask))
        if part.response_ids:
            found.append(part)
    return tuple(session_order(found))


def stand_in(
    prompt_ids: Sequence[int], filler: int, record: RolloutRecord, *, session_id: str, train: TrainConfig
) -> Trajectory:
    """A row for a rollout that left no tokens: one token that is masked, a reward that nobody may use."""
    row = masked_row(prompt_ids, filler, session_id=session_id, max_prompt=train.max_prompt_tokens)
    return replace(row, reward=0.0, reward_info=reward_info(record), exit_reason=str(record.exit_reason))


def masked_row(prompt_ids: Sequence[int], filler: int, *, session_id: str, max_prompt: int) -> Trajectory:
    """A trajectory of which nothing trains: the prompt, or `filler` without one, and one masked token behind it."""
    return Trajectory(
        id=f"{session_id}/none",
        session_id=session_id,
        prompt_ids=list(prompt_ids)[:max_prompt] or [filler],
        response_ids=[filler],
        response_mask=[0],
        response_logprobs=[0.0],
        spans=(Span("observation", 0, 0, 1),),
        turns=(0,),
    )


def reward_info(record: RolloutRecord) -> dict[str, Any]:
    """What verl reports of a reward: `success` (1.0 where the task is solved), then the parts of the score.

    It is not called `acc`: verl counts a validation sample that is missing as an `acc` of 0, and a sandbox that broke
    says nothing about the policy.
    """
    reward = record.reward
    if reward is None or not reward.trusted:
        return {}
    parts = {f"part/{name}": value for name, value in reward.breakdown.items()}
    return {"success": float(bool(reward.resolved)), **parts}


def verl_metrics(record: RolloutRecord, preempted: int | None) -> dict[str, float]:
    """Seconds as verl's AgentLoopMetrics has them, and preemptions where they are known."""
    timing = record.timing
    metrics = {"generate_sequences": timing.model, "tool_calls": timing.tools, "compute_score": timing.reward}
    return metrics if preempted is None else {**metrics, "num_preempted": preempted}


def numbers_of(
    record: RolloutRecord, turns: Sequence[Turn], *, attempts: int, replaced: int, preempted: int | None = None
) -> dict[str, float]:
    """The numbers of one rollout that go into the trainer's metrics; seconds, counts, tokens."""
    return {
        **episode_numbers(record, turns),
        **token_numbers(record.account),
        "attempts": float(attempts),
        "replaced": float(replaced),
        **({} if preempted is None else {"preemptions": float(preempted)}),
    }


def episode_numbers(record: RolloutRecord, turns: Sequence[Turn]) -> dict[str, float]:
    """What the episode itself tells: turns, tool calls, errors, seconds of each phase."""
    results = [result for turn in turns for result in turn.results]
    return {
        "turns": float(len(turns)),
        "tool_calls": float(len(results)),
        "tool_errors": float(sum(result.status != "ok" for result in results)),
        "format_errors": float(sum(turn.status is StepStatus.FORMAT_ERROR for turn in turns)),
        **{f"seconds_{phase}": seconds for phase, seconds in record.timing.to_dict().items()},
    }


def token_numbers(account: TokenAccount, *, masked: bool = False) -> dict[str, float]:
    """The account of sampled tokens. With `masked` none of them trained after all."""
    kept = account.trained + account.masked
    return {
        "tokens_sampled": float(account.sampled),
        "tokens_trained": 0.0 if masked else float(account.trained),
        "tokens_masked": float(kept if masked else account.masked),
        "tokens_dropped": float(sum(account.dropped.values())),
    }


def trained_turns(trajectory: Trajectory) -> list[tuple[int, int, int]]:
    """(turn of the session, start, end) of each turn that was sampled here; indices into the response."""
    sampled = (span for span in trajectory.spans if span.kind == "sampled")
    return [(trajectory.turns[span.turn], span.start, span.end) for span in sampled]


def segments(trajectory: Trajectory, turns: Sequence[tuple[int, int, int]], segments_of: SegmentsOf) -> list[list[Any]]:
    """[kind, turn, start, end] of thoughts, actions and other text, in the response's indices."""
    found: list[list[Any]] = []
    for turn, start, end in turns:
        for kind, first, last in segments_of(trajectory.response_ids[start:end]):
            found.append([kind, turn, start + first, start + last])
    return found


def turn_rewards(side: Mapping[str, Any], score: float, length: int) -> dict[int, float]:
    """Position in the response → reward: the scores of turns at their last tokens, the rest at the last token of all.

    They add up to `score`, whatever part of it the turns have.
    """
    ends = {turn: end - 1 for turn, _, end in side["turns"]}
    rewards: dict[int, float] = {}
    for turn, value in side["turn_scores"]:
        if turn in ends:
            rewards[ends[turn]] = rewards.get(ends[turn], 0.0) + value
    rest = score - sum(rewards.values())
    rewards[length - 1] = rewards.get(length - 1, 0.0) + rest
    return rewards
