"""Batches that verl had to fill up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uni_agent.training.batches import GroupLog, spread_padding


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 6), st.data())
def test_every_mini_batch_has_its_share_of_padding(ranks: int, minis: int, size: int, data: st.DataObject) -> None:
    total = ranks * minis * size
    padding = data.draw(st.lists(st.booleans(), min_size=total, max_size=total))
    order = spread_padding(padding, ranks, minis)
    assert sorted(order) == list(range(total))
    part = total // ranks
    for rank in range(ranks):
        dealt = order[rank * part : (rank + 1) * part]
        assert set(dealt) == set(range(rank * part, (rank + 1) * part))  # no row changes its rank
        real = [row for row in dealt if not padding[row]]
        assert real == sorted(real)
        shares = [sum(padding[row] for row in dealt[k * size : (k + 1) * size]) for k in range(minis)]
        assert max(shares) - min(shares) <= 1


def test_rows_that_cannot_be_dealt_are_refused() -> None:
    with pytest.raises(ValueError, match="5 rows cannot be dealt to 2 ranks"):
        spread_padding([False] * 5, 2, 1)


def test_the_log_of_groups_is_plain_json_and_never_ends_a_training(tmp_path: Path) -> None:
    log = GroupLog(tmp_path / "new" / "groups.jsonl")
    log.write(1, [{"key": "a_0_0", "score": float("nan")}])
    log.write(2, [])
    lines = [json.loads(line) for line in (tmp_path / "new" / "groups.jsonl").read_text().splitlines()]
    assert lines == [{"step": 1, "rows": [{"key": "a_0_0", "score": None}]}, {"step": 2, "rows": []}]
    (tmp_path / "file").write_text("")
    GroupLog(tmp_path / "file" / "groups.jsonl").write(1, [])
