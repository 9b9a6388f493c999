"""What a finished rollout is to the trainer."""

from __future__ import annotations

from typing import Any

import pytest

from uni_agent.engine.base import TokenOutput, WeightSpan
from uni_agent.interaction.config import InteractionConfig
from uni_agent.store.records import RolloutRecord
from uni_agent.tokens.cache import RolloutCache
from uni_agent.tokens.graph import Chain
from uni_agent.training.config import TrainConfig
from uni_agent.training.outcome import Outcome, stand_in, token_numbers, trajectories_of, turn_rewards, verdict
from uni_agent.types import ExitReason, Message, RewardResult, TokenAccount


def train(**fields: Any) -> TrainConfig:
    return TrainConfig(steps=1, **fields)


def chain(*turns: int, context: int = 2, name: str = "s/0", first: int = 0) -> Chain:
    """A chain of turns of so many sampled tokens, `context` tokens between them."""
    cache = RolloutCache(name, prompt_ids=[1, 2, 3])
    for i, length in enumerate(turns):
        if i:
            cache.append_context([9] * context, i - 1)
        ids = list(range(10, 10 + length))
        cache.append_sampled(TokenOutput(ids, [-0.5] * length, "stop", (WeightSpan(str(i), 0, length),)), i)
    ids = tuple(range(first, first + len(turns)))
    return Chain(
        id=name,
        cache=cache,
        messages=(Message("user", "do"),),
        tools=(),
        turns=ids,
        trained=ids,
        branched_from=None,
        continues=None,
        abandoned=False,
        tags=("",) * len(turns),
    )


def record(reason: ExitReason = ExitReason.FINISHED, **reward: Any) -> RolloutRecord:
    fields: dict[str, Any] = {"score": 1.0, "resolved": True, **reward}
    return RolloutRecord(reason, reward=RewardResult(**fields))


@pytest.mark.parametrize(
    ("reason", "exits", "mask_abnormal", "expected"),
    [
        (ExitReason.FINISHED, {}, True, "train"),
        (ExitReason.MAX_STEP_LIMIT, {}, False, "train"),
        (ExitReason.MAX_STEP_LIMIT, {}, True, "mask"),
        (ExitReason.MAX_STEP_LIMIT, {"max_step_limit": "train"}, True, "train"),
        (ExitReason.FORMAT_ERROR, {"format_error": "drop"}, False, "drop"),
        (ExitReason.FORMAT_ERROR, {"format_error": "mask"}, False, "mask"),
        *((reason, {}, mask, "failed") for reason in ExitReason if not reason.trusted for mask in (False, True)),
        (ExitReason.SANDBOX_ERROR, {"sandbox_error": "drop"}, False, "failed"),
    ],
)
def test_the_fate_of_an_ending(reason: ExitReason, exits: Any, mask_abnormal: bool, expected: str) -> None:
    interaction = InteractionConfig(mask_abnormal_exit_traj=mask_abnormal)
    assert verdict(reason, train(exits=exits), interaction) == expected


def test_a_validation_leaves_out_no_ending_that_says_something_about_the_model() -> None:
    own = train(exits={"token_limit": "drop", "sandbox_error": "drop"})
    assert verdict(ExitReason.TOKEN_LIMIT, own, InteractionConfig()) == "drop"
    assert verdict(ExitReason.TOKEN_LIMIT, own, InteractionConfig(), validation=True) == "mask"
    assert verdict(ExitReason.SANDBOX_ERROR, own, InteractionConfig(), validation=True) == "failed"


def test_an_account_whose_tokens_were_masked_in_the_end_has_none_that_trained() -> None:
    account = TokenAccount(10, 6, 1, {"max_length": 3})
    kept = {"tokens_sampled": 10.0, "tokens_dropped": 3.0}
    assert token_numbers(account) == {**kept, "tokens_trained": 6.0, "tokens_masked": 1.0}
    assert token_numbers(account, masked=True) == {**kept, "tokens_trained": 0.0, "tokens_masked": 7.0}


def test_a_masked_trajectory_keeps_its_tokens_and_trains_none() -> None:
    (masked,) = trajectories_of([chain(3, 2)], record(), session_id="s", train=train(), masked=True)
    (trained,) = trajectories_of([chain(3, 2)], record(), session_id="s", train=train(), masked=False)
    assert masked.response_ids == trained.response_ids
    assert sum(masked.response_mask) == 0
    assert (trained.accounting.trained, masked.accounting.masked) == (5, 5)
    assert masked.accounting.balanced


def test_the_longest_conversation_is_the_last_which_is_the_one_that_verl_scores() -> None:
    chains = [chain(5, 5, name="s/1"), chain(2, name="s/5", first=5)]
    found = trajectories_of(chains, record(), session_id="s", train=train(), masked=False)
    assert [t.id for t in found] == ["s/5", "s/1"]
    assert {t.reward for t in found} == {1.0}


def test_what_does_not_fit_is_cut_and_counted() -> None:
    limits = train(max_prompt_tokens=2, max_response_tokens=4)
    (found,) = trajectories_of([chain(3, 4)], record(), session_id="s", train=limits, masked=False)
    assert (len(found.prompt_ids), len(found.response_ids)) == (2, 4)
    account = found.accounting
    assert (account.sampled, account.trained, account.dropped) == (7, 3, {"max_length": 4})
    assert account.balanced


def test_without_a_trusted_reward_nothing_is_said_of_success() -> None:
    failed = RolloutRecord(ExitReason.REWARD_ERROR, reward=RewardResult.failed("no grader"))
    row = stand_in([1, 2], 7, failed, session_id="s", train=train())
    assert row.reward_info == {}
    assert (row.response_ids, row.response_mask, row.response_logprobs) == ([7], [0], [0.0])
    assert stand_in([], 7, failed, session_id="s", train=train()).prompt_ids == [7]


def all_action(ids: list[int]) -> list[tuple[str, int, int]]:
    return [("action", 0, len(ids))]


def thought_then_action(ids: list[int]) -> list[tuple[str, int, int]]:
    return [("thought", 0, 1), ("action", 1, len(ids))]


def outcome(scores: tuple[float, ...], *, score: float = 1.0) -> Outcome:
    done = record(score=score, turn_scores=scores)
    trajectories = trajectories_of([chain(3, 2, 4)], done, session_id="s", train=train(), masked=False)
    return Outcome(done, trajectories, True, "train", 1, {"turns": 3.0})


def test_scores_of_turns_stand_at_their_last_tokens_and_add_up_to_the_score() -> None:
    made = outcome((0.25, 0.0, 0.5))
    side = made.side_information(0, all_action)
    assert side["turns"] == [[0, 0, 3], [1, 5, 7], [2, 9, 13]]
    rewards = turn_rewards(side, 1.0, 13)
    assert rewards == {2: 0.25, 6: 0.0, 12: 0.75}
    assert sum(rewards.values()) == 1.0
    assert turn_rewards(outcome(()).side_information(0, all_action), 1.0, 13) == {12: 1.0}


def test_side_information_is_plain_json_and_tells_where_every_turn_is() -> None:
    import json

    side = outcome(()).side_information(0, thought_then_action)
    assert json.loads(json.dumps(side)) == side
    assert side["weight_spans"] == [["0", 0, 3], ["1", 5, 7], ["2", 9, 13]]
    assert side["segments"][:2] == [["thought", 0, 0, 1], ["action", 0, 1, 3]]
    assert side["metrics"] == {"turns": 3.0}
    assert side["trusted"] is True
