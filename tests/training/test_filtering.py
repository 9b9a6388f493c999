"""DAPO's filter looks at samples that can be trusted."""

from __future__ import annotations

from typing import Any

import pytest

from uni_agent.training.filtering import group_values


def values(*rows: tuple[str, bool | None, float], metric: str = "reward", info: dict[str, Any] | None = None) -> Any:
    """(key, trusted, score) of each row."""
    extras: list[Any] = [
        {"uni_agent": {"trusted": trusted}, "reward_extra_info": info or {}} if trusted is not None else {}
        for _, trusted, _ in rows
    ]
    keys, scores = [key for key, _, _ in rows], [score for _, _, score in rows]
    return group_values(keys, [{} for _ in rows], extras, scores, metric=metric)


def test_a_failed_sandbox_decides_no_group() -> None:
    assert values(("a_0_0", True, 1.0), ("a_1_0", False, 0.0), ("a_2_0", True, 1.0)) == {"a": [1.0, 1.0]}


def test_a_group_without_a_trusted_sample_has_no_values() -> None:
    assert values(("a_0_0", False, 0.0), ("b_0_0", True, 0.5)) == {"b": [0.5]}


def test_a_sample_of_many_chains_counts_once() -> None:
    rows = (("a_0_0", True, 1.0), ("a_0_1", True, 1.0), ("a_0_2", True, 1.0), ("a_1_0", True, 0.0))
    assert values(*rows) == {"a": [1.0, 0.0]}


def test_rows_of_other_agent_loops_are_taken_as_they_are() -> None:
    assert values(("a_0_0", None, 0.25)) == {"a": [0.25]}


def test_a_metric_by_name_comes_from_what_the_reward_told() -> None:
    assert values(("a_0_0", True, 3.0), metric="success", info={"success": 1.0}) == {"a": [1.0]}
    with pytest.raises(RuntimeError, match="'success' is not in reward_extra_info of a_0_0"):
        values(("a_0_0", True, 3.0), metric="success")
