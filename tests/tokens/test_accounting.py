from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uni_agent.engine.base import TokenOutput
from uni_agent.tokens.accounting import account, masked_copy, record_drop
from uni_agent.tokens.cache import RolloutCache

pieces = st.lists(
    st.tuples(st.sampled_from(["sampled", "observation", "closing", "drop", "unmask"]), st.integers(0, 6))
)


def played(steps: list[tuple[str, int]]) -> tuple[RolloutCache, int]:
    cache = RolloutCache("r", prompt_ids=[1, 2])
    sampled = 0
    for turn, (kind, count) in enumerate(steps):
        if kind == "sampled":
            cache.append_sampled(TokenOutput([7] * count, [-1.0] * count, "stop"), turn)
            sampled += count
        elif kind == "drop":
            record_drop(cache, "aborted", count)
            sampled += count
        elif kind == "unmask" and cache.response_mask:
            cache.response_mask[0] = 0
        elif kind in ("observation", "closing"):
            cache.append_context([8] * count, turn, "closing" if kind == "closing" else "observation")
    return cache, sampled


@given(st.lists(pieces, max_size=3), st.booleans())
def test_every_sampled_token_is_trained_masked_or_dropped(chains: list[list[tuple[str, int]]], masked: bool) -> None:
    built = [played(steps) for steps in chains]
    total = account([cache for cache, _ in built], masked=masked)
    assert total.balanced
    assert total.sampled == sum(sampled for _, sampled in built)
    if masked:
        assert total.trained == 0
    copies = [masked_copy(cache, "timeout_error") for cache, _ in built]
    again = account(copies, masked=False)
    assert (again.sampled, again.trained) == (total.sampled, 0)


def test_a_masked_copy_still_says_what_was_sampled_and_leaves_the_original() -> None:
    cache, _ = played([("sampled", 3), ("observation", 2), ("sampled", 1), ("drop", 4)])
    copy = masked_copy(cache, "token_limit")
    assert cache.response_mask == [1, 1, 1, 0, 0, 1] and copy.response_mask == [0] * 6
    assert copy.sampled == 4 and list(copy.sampled_spans()) == list(cache.sampled_spans())
    assert copy.extra_fields == {"dropped": {"aborted": 4}, "masked_reason": "token_limit"}
    record_drop(copy, "aborted", 1)
    copy.response_ids.append(9)
    assert cache.extra_fields == {"dropped": {"aborted": 4}} and len(cache.response_ids) == 6


def test_models_without_tokens_have_an_empty_account() -> None:
    assert account([], masked=False).to_dict() == {"sampled": 0, "trained": 0, "masked": 0, "dropped": {}}


def test_a_broken_record_is_not_counted() -> None:
    cache, _ = played([("sampled", 2), ("observation", 2)])
    cache.response_mask[3] = 1
    with pytest.raises(ValueError, match="not sampled"):
        account([cache], masked=False)
    cache.response_mask.pop()
    with pytest.raises(ValueError, match="mask entries"):
        account([cache], masked=False)
    with pytest.raises(ValueError, match="cannot drop"):
        record_drop(cache, "x", -1)
