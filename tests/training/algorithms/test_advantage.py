"""The estimators against plain loops, and what must hold for any batch."""

from __future__ import annotations

import importlib.util
import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

from tests.training.algorithms import reference
from tests.training.algorithms.batch import estimate, padded, rows_of
from tests.training.algorithms.reference import Chain, Group, Sample
from uni_agent.training.algorithms.context import Row
from uni_agent.training.config import CreditConfig, OverlongConfig

BY_CHAIN = CreditConfig(sample_weighting="chain")


def close(found: list[list[float]], expected: list[list[float]], tolerance: float = 1e-9) -> bool:
    return all(
        len(a) == len(b) and all(math.isclose(x, y, abs_tol=tolerance) for x, y in zip(a, b, strict=True))
        for a, b in zip(found, expected, strict=True)
    )


def simple(*chains: int, scores: list[float]) -> Group:
    """A group whose samples have so many chains of one turn each."""
    turns = [[Chain([1, 1, 0], [(c, 0, 2)]) for c in range(count)] for count in chains]
    return [Sample(score, own) for score, own in zip(scores, turns, strict=True)]


@st.composite
def groups(draw: st.DrawFn) -> list[Group]:
    score = st.sampled_from([0.0, 1.0, -0.5, 0.25, 3.0])
    made: list[Group] = []
    for _ in range(draw(st.integers(1, 3))):
        group: Group = []
        for _ in range(draw(st.integers(1, 4))):
            trusted = draw(st.booleans())
            chains: list[Chain] = []
            turn = 0
            for _ in range(draw(st.integers(1, 3))):
                mask: list[int] = []
                turns: list[tuple[int, int, int]] = []
                scores: list[tuple[int, float]] = []
                for _ in range(draw(st.integers(1, 3))):
                    size = draw(st.integers(1, 3))
                    turns.append((turn, len(mask), len(mask) + size))
                    if draw(st.booleans()):
                        scores.append((turn, draw(score)))
                    mask += [draw(st.sampled_from([1, 1, 0])) if trusted else 0 for _ in range(size)] + [0]
                    turn += 1
                chains.append(Chain(mask, turns, scores))
            group.append(Sample(draw(score), chains, trusted))
        made.append(group)
    return made


def test_trn_01_a_group_has_one_value_for_each_sample() -> None:
    group = simple(1, 3, 1, 2, scores=[1, 0, 0, 1])
    found, _ = estimate(rows_of([group]), credit=BY_CHAIN, by_std=False)
    assert [row[0] for row in found] == [0.5, -0.5, -0.5, -0.5, -0.5, 0.5, 0.5]
    std = math.sqrt(1 / 3) + 1e-6
    found, _ = estimate(rows_of([group]), credit=BY_CHAIN)
    assert close([[row[0]] for row in found], [[v / std] for v in (0.5, -0.5, -0.5, -0.5, -0.5, 0.5, 0.5)])


def test_trn_02_weights_of_a_sample_sum_to_the_same_or_each_chain_has_one() -> None:
    rows = rows_of([simple(1, 3, scores=[1, 0])])
    shared, counts = estimate(rows, credit=CreditConfig(), by_std=False)
    by_chain, _ = estimate(rows, credit=BY_CHAIN, by_std=False)
    weights = [a[0] / b[0] for a, b in zip(shared, by_chain, strict=True)]
    assert math.isclose(weights[0], sum(weights[1:]))
    assert math.isclose(sum(weights), len(rows))
    assert counts["chains_sharing"] == 3
    assert [row[0] for row in by_chain] == [0.5, -0.5, -0.5, -0.5]


@pytest.mark.parametrize("name", ["grpo", "turn_grpo"])
def test_trn_04_a_padding_row_changes_nothing(name: str) -> None:
    rows = rows_of([simple(1, 3, 1, 2, scores=[1, 0, 0.5, 1])])
    plain, counts = estimate(rows, name=name, credit=CreditConfig())
    more, also = estimate(padded(rows), name=name, credit=CreditConfig())
    assert more == [*plain, [0.0]]
    assert counts == also


@settings(max_examples=80, deadline=None)
@given(groups(), st.booleans())
def test_outcomes_are_those_of_the_reference(made: list[Group], by_std: bool) -> None:
    found, _ = estimate(rows_of(made), by_std=by_std)
    assert close(found, reference.grpo(made, by_std=by_std))


@settings(max_examples=80, deadline=None)
@given(groups(), st.booleans(), st.sampled_from([1.0, 0.9, 0.0]))
def test_rewards_of_turns_are_those_of_the_reference(made: list[Group], by_std: bool, discount: float) -> None:
    credit = CreditConfig(sample_weighting="chain", turn_discount=discount)
    found, _ = estimate(rows_of(made), name="turn_grpo", by_std=by_std, credit=credit)
    assert close(found, reference.turn_grpo(made, by_std=by_std, discount=discount), 1e-8)


@settings(max_examples=50, deadline=None)
@given(groups(), st.randoms(use_true_random=False), st.sampled_from(["grpo", "turn_grpo"]))
def test_the_order_of_rows_does_not_matter(made: list[Group], shuffle: random.Random, name: str) -> None:
    rows = rows_of(made)
    order = list(range(len(rows)))
    shuffle.shuffle(order)
    plain, _ = estimate(rows, name=name, credit=CreditConfig())
    found, _ = estimate([rows[i] for i in order], name=name, credit=CreditConfig())
    assert close(found, [plain[i] for i in order])


@settings(max_examples=50, deadline=None)
@given(groups(), st.sampled_from([0.0, 100.0, math.nan, math.inf]), st.sampled_from(["grpo", "turn_grpo"]))
def test_what_is_not_trusted_changes_nothing(made: list[Group], score: float, name: str) -> None:
    plain, _ = estimate(rows_of(made), name=name)
    other = [[sample if sample.trusted else replace(sample, score=score) for sample in group] for group in made]
    found, _ = estimate(rows_of(other), name=name)
    assert found == plain
    without = [[sample for sample in group if sample.trusted] for group in made]
    kept = [row for row, (about, _, _) in zip(found, rows_of(made), strict=True) if about.trusted]
    if kept:
        assert close(kept, estimate(rows_of(without), name=name)[0])


@settings(max_examples=50, deadline=None)
@given(groups(), st.integers(1, 3))
def test_more_chains_never_change_a_samples_advantage(made: list[Group], more: int) -> None:
    first = [[replace(s, chains=[Chain([1, 1], [(0, 0, 2)])]) for s in group] for group in made]
    many = [[replace(s, chains=s.chains * more) for s in group] for group in first]
    many = [[s if i else replace(s, chains=s.chains[:1]) for i, s in enumerate(group)] for group in many]
    alone = {
        about.sample: row[0] for row, (about, _, _) in zip(estimate(rows_of(first))[0], rows_of(first), strict=True)
    }
    found = zip(estimate(rows_of(many))[0], rows_of(many), strict=True)
    assert all(row[0] == alone[about.sample] for row, (about, _, _) in found)


@settings(max_examples=50, deadline=None)
@given(groups())
def test_with_no_reward_but_the_last_turns_it_is_grpo(made: list[Group]) -> None:
    plain = [[replace(s, chains=[replace(c, turn_scores=[]) for c in s.chains]) for s in group] for group in made]
    assert close(estimate(rows_of(plain), name="turn_grpo")[0], estimate(rows_of(plain))[0])


@pytest.mark.parametrize("name", ["grpo", "turn_grpo"])
@pytest.mark.parametrize(
    "scores", [[1.0], [0.1, 0.1, 0.1], [1.0, math.nan], [math.inf, 0.0], [1e300, -1e300, 0.0]], ids=str
)
def test_no_group_gives_what_is_no_number(name: str, scores: list[float]) -> None:
    found, _ = estimate(rows_of([simple(*[1] * len(scores), scores=scores)]), name=name)
    assert all(math.isfinite(value) for row in found for value in row)
    if len(scores) < 3 or scores[0] == scores[1]:
        assert not any(any(row) for row in found)


@pytest.mark.parametrize("name", ["grpo", "turn_grpo"])
@pytest.mark.parametrize("mask", [[0, 0, 0], []])
def test_a_sample_without_a_trained_token_counts_in_its_group(name: str, mask: list[int]) -> None:
    row = Row("g0", "g0_1", trusted=True)
    rows = [*rows_of([simple(1, scores=[1.0])]), (row, mask, 0.0)]
    found, _ = estimate(rows, name=name, by_std=False)
    assert found == [[0.5, 0.5, 0.0], [0.0] * len(mask)]


def test_without_a_context_rows_are_samples_and_masked_rows_absent() -> None:
    rows = [(Row("g", str(i)), mask, score) for i, (mask, score) in enumerate([([1], 1.0), ([1], 0.0), ([0], 9.0)])]
    found, _ = estimate(rows, context=False, by_std=False)
    assert found == [[0.5], [-0.5], [0.0]]


def test_rows_without_side_information_stand_beside_rows_with_it() -> None:
    rows = [(Row("g", "g_0", trusted=True, turns=((0, 0, 1),)), [1], 1.0), (Row("g", "g_1"), [1, 0, 1], 0.0)]
    rows.append((Row("g", "g_2"), [0], 5.0))
    for name in ("grpo", "turn_grpo"):
        assert estimate(rows, name=name, by_std=False)[0] == [[0.5], [-0.5, 0.0, -0.5], [0.0]]


def test_without_a_context_turns_are_runs_of_the_mask() -> None:
    import torch

    from uni_agent.training.algorithms.advantage import turn_grpo

    mask = torch.tensor([[1, 1, 0, 1], [1, 1, 0, 1]])
    rewards = torch.tensor([[0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
    found, _ = turn_grpo(rewards, mask, ["g", "g"], {"norm_adv_by_std_in_grpo": False})
    # Rewards of the group: 1 and 2 of the first row, 0 of the second; their mean is 1.
    assert torch.equal(found, torch.tensor([[1.0, 1.0, 0.0, 1.0], [-1.0, -1.0, 0.0, -1.0]]))


def test_thoughts_and_actions_are_weighed() -> None:
    row = Row("g", "g_0", trusted=True, segments=(("thought", 0, 2), ("action", 2, 3), ("text", 3, 4)))
    rows = [(row, [1, 1, 1, 1], 1.0), (Row("g", "g_1", trusted=True), [1], 0.0)]
    credit = CreditConfig(thought_weight=0.5, action_weight=2.0)
    found, counts = estimate(rows, credit=credit, by_std=False)
    assert found == [[0.25, 0.25, 1.0, 0.5], [-0.5]]
    assert {name: counts[name] for name in ("tokens", "tokens_thought", "tokens_action", "tokens_text")} == {
        "tokens": 5,
        "tokens_thought": 2,
        "tokens_action": 1,
        "tokens_text": 1,
    }


def test_spans_of_old_weights_are_masked_and_counted() -> None:
    row = Row("g", "g_0", trusted=True, weight_spans=((3, 0, 2), (5, 2, 9)))
    rows = [(row, [1, 0, 1], 1.0), (Row("g", "g_1", trusted=True), [1], 0.0)]
    found, counts = estimate(rows, credit=CreditConfig(max_staleness=1), version=5, by_std=False)
    assert found == [[0.0, 0.0, 0.5], [-0.5]]
    assert counts["tokens_stale"] == 1
    found, _ = estimate(rows, credit=CreditConfig(max_staleness=2), version=5, by_std=False)
    assert found[0] == [0.5, 0.0, 0.5]


@pytest.mark.parametrize(("length", "penalty"), [(5, 0.0), (6, 0.0), (7, 0.25), (10, 1.0), (12, 1.0)])
def test_long_responses_lose_score_as_in_dapo(length: int, penalty: float) -> None:
    rows = [(Row("g", "g_0", trusted=True, length=length), [1], 1.0), (Row("g", "g_1", trusted=True), [1], 0.0)]
    credit = CreditConfig(overlong=OverlongConfig(buffer=4))
    found, counts = estimate(rows, credit=credit, max_response=10, by_std=False)
    assert found == [[(1 - penalty) / 2], [(penalty - 1) / 2]]
    assert counts["overlong_penalty"] == penalty
    assert counts["samples_overlong"] == (penalty > 0)


def test_groups_that_teach_nothing_are_counted() -> None:
    flat, lone = simple(1, 1, scores=[0.5, 0.5]), simple(1, scores=[1.0])
    lost = [replace(sample, trusted=False) for sample in simple(1, 1, scores=[0.0, 1.0])]
    good = simple(1, 1, scores=[0.0, 1.0])
    for name in ("grpo", "turn_grpo"):
        assert estimate(rows_of([flat, lone, lost, good]), name=name)[1]["groups_without_gradient"] == 3
        assert estimate(rows_of([good]), name=name)[1]["groups_without_gradient"] == 0


@pytest.mark.parametrize(
    ("key", "expected"),
    [("u-1_0_2", ("u-1", "u-1_0", 2)), ("a_b_0_1", ("a_b", "a_b_0", 1)), ("other", ("other", "other", 0))],
)
def test_a_key_names_group_sample_and_chain(key: str, expected: tuple[str, str, int]) -> None:
    row = Row.of(key, {}, None)
    assert (row.group, row.sample, row.index) == expected


def test_a_context_of_another_batch_is_refused() -> None:
    from uni_agent.training.algorithms.context import AdvantageContext, use

    with use(AdvantageContext(())), pytest.raises(ValueError, match="pass the whole batch"):
        estimate(rows_of([simple(1, scores=[1.0])]), context=False)


def test_float32_is_what_verl_gets() -> None:
    import torch

    options: dict[str, Any] = {"dtype": torch.float32}
    made = [simple(1, 1, 1, scores=[0.1, 0.2, 0.7])]
    assert close(estimate(rows_of(made), **options)[0], reference.grpo(made), 1e-6)
