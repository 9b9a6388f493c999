"""The quickstart as a newcomer runs it, on fewer tasks: a real model, real sandboxes, real grading."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import uni_agent
from uni_agent.store.reader import RunReader

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_episodes_end_in_several_ways_and_some_earn_the_reward(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    done = await uni_agent(
        "run", ROOT / "configs/quickstart.yaml", "--run-dir", run_dir, "--limit", "16", timeout=280
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "exit reason" in done.out and f"uni-agent show {run_dir}" in done.out
    with RunReader(run_dir) as reader:
        summary = reader.summary()
        assert len(summary.exit_reasons) >= 3
        assert summary.reward_mean is not None and 0 < summary.reward_mean < 1
        assert summary.rollouts == 64
        tokens = summary.tokens
        assert tokens["sampled"] == tokens["trained"] + tokens["masked"] + tokens["dropped"] > 0
        for rollout in reader.each_rollout():
            for chain in reader.chains(rollout.id):
                assert len(chain.response_ids) == len(chain.response_mask) == len(chain.response_logprobs or ())
                assert all(
                    p == 0.0 for m, p in zip(chain.response_mask, chain.response_logprobs or (), strict=True) if not m
                )
