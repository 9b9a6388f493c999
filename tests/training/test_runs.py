"""verl's real trainer, started as its users start it: `uni-agent run`, Ray, FSDP2, TransferQueue, host sandboxes."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from tests.training.conftest import ROOT, pipeline_text
from tests.training.local_server import POLICY
from uni_agent.config.dump import dump_yaml
from uni_agent.store import RunReader
from uni_agent.training.launch import latest_policy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("verl_installed")]

Run = Callable[..., Path]
HELD_OUT = {"type": "jsonl", "path": "pkg://uni_agent/data/suites/shell_basics_heldout.jsonl", "limit": 4}


def uni_agent(*words: str) -> subprocess.CompletedProcess[str]:
    """The command line, as another process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "uni_agent", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800, check=False)


def run(
    folder: Path,
    *words: str,
    deployment: dict[str, Any] | None = None,
    reward: dict[str, Any] | None = None,
    **train: Any,
) -> Path:
    """A run of a small pipeline that has to succeed; its folder."""
    text = pipeline_text(learning_rate=1e-3, **train)
    text |= {} if deployment is None else {"deployment": deployment}
    if reward is not None:
        text |= {"reward": reward, "data": {**text["data"], "path": str(without_own_rewards(folder))}}
    config = folder / "pipeline.yaml"
    config.write_text(dump_yaml(text))
    run_dir = folder / "run"
    done = uni_agent("run", str(config), *(words or ("--run-dir", str(run_dir))), "--json")
    log = (run_dir / "trainer.log").read_text()[-6000:] if (run_dir / "trainer.log").exists() else ""
    assert done.returncode == 0, f"{done.stderr}\n{log}"
    return run_dir


def without_own_rewards(folder: Path) -> Path:
    """The packaged tasks, graded as the pipeline says."""
    path = folder / "tasks.jsonl"
    tasks = [json.loads(line) for line in (ROOT / "uni_agent/data/suites/shell_basics.jsonl").open()]
    path.write_text("".join(json.dumps({**task, "overrides": {}}) + "\n" for task in tasks))
    return path


def groups(run_dir: Path) -> list[dict[str, Any]]:
    """What the trainer wrote of its batches, one object a step."""
    return [json.loads(line) for file in sorted(run_dir.glob("verl/groups-*.jsonl")) for line in file.open()]


def weights(folder: Path) -> dict[str, Any]:
    safetensors: Any = importlib.import_module("safetensors.torch")
    return safetensors.load_file(folder / "model.safetensors")


def assert_learned(run_dir: Path) -> None:
    """The saved policy is another one than the first."""
    saved = latest_policy(run_dir / "checkpoints")
    assert saved is not None
    before, after = weights(POLICY), weights(saved)
    assert before.keys() == after.keys()
    assert any((before[name] != after[name]).any() for name in before)


def advantages_by_hand(rows: list[dict[str, Any]]) -> dict[str, float]:
    """GRPO in float64 over the trusted samples of each group: key → advantage."""
    by_uid: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_uid[row["uid"]].append(row)
    found: dict[str, float] = {}
    for members in by_uid.values():
        scores = [row["score"] for row in members if row["trusted"]]
        for row in members:
            if not row["trusted"]:
                found[row["key"]] = 0.0
            elif len(scores) == 1:
                found[row["key"]] = 0.0  # nothing to be better than
            else:
                found[row["key"]] = (row["score"] - mean(scores)) / (stdev(scores) + 1e-6)
    return found


def test_two_steps_then_two_more_from_the_checkpoint(tmp_path: Path) -> None:
    """Rollouts and metrics are stored, the weights change, the policy is served, and a resume counts no step twice."""
    validation = {"data": HELD_OUT, "every": 2, "group_by": "kind"}
    run_dir = run(tmp_path, validation=validation)
    assert_learned(run_dir)
    with RunReader(run_dir) as reader:
        assert [step.step for step in reader.train_steps()] == [0, 1, 2]
        counts = {(row.step, row.phase): row.rollouts for row in reader.step_rollouts()}
        assert counts == {(0, "validation"): 4, (1, "train"): 8, (2, "train"): 8, (2, "validation"): 4}
        metrics = reader.train_steps()[-1].metrics
        summary = reader.summary()
    assert metrics["training/rollout_probs_diff_max"] < 1e-3
    assert metrics["uni_agent/samples"] == 8
    assert sum(v for k, v in metrics.items() if k.startswith("uni_agent/exit_reason/")) == pytest.approx(1.0)
    assert summary.tokens["sampled"] == sum(summary.tokens[k] for k in ("trained", "masked", "dropped"))
    for step in groups(run_dir):
        expected = advantages_by_hand(step["rows"])
        assert {row["key"]: row["advantage"] for row in step["rows"]} == pytest.approx(expected, abs=1e-5)

    served = uni_agent(
        *(
            "run",
            str(ROOT / "configs/quickstart.yaml"),
            "--run-dir",
            str(tmp_path / "served"),
            "--limit",
            "2",
            "--json",
        ),
        *("-o", f"model.engine.path={latest_policy(run_dir / 'checkpoints')}"),
    )
    assert served.returncode == 0, served.stderr

    run(tmp_path, "--resume", str(run_dir), "-o", "train.steps=3", validation=validation)
    with RunReader(run_dir) as reader:
        assert [step.step for step in reader.train_steps()] == [0, 1, 2, 3]
        counts = {(row.step, row.phase): row.rollouts for row in reader.step_rollouts()}
    assert counts[3, "train"] == 8
    assert counts[1, "train"] == 8
    assert "Resuming from" in (run_dir / "trainer.log").read_text()


def test_through_the_gateway(tmp_path: Path) -> None:
    run_dir = run(tmp_path, rollout={"type": "gateway"}, validation={"data": HELD_OUT, "every": 2, "before": False})
    assert_learned(run_dir)
    with RunReader(run_dir) as reader:
        steps = {step.step: step.metrics for step in reader.train_steps()}
        counts = {(row.step, row.phase): row.rollouts for row in reader.step_rollouts()}
    assert sorted(steps) == [1, 2]
    for metrics in steps.values():
        assert metrics["uni_agent/samples"] == 8
        assert metrics["training/rollout_probs_diff_max"] < 1e-3
    assert "val-core/small/reward/mean@1" in steps[2]
    assert counts == {(1, "train"): 8, (2, "train"): 8, (2, "validation"): 4}


def test_a_trajectory_spans_weight_versions_and_tells_which_token_is_whose(tmp_path: Path) -> None:
    overrides = {"trainer.v1.colocate_async.num_warmup_batches": 2}
    run_dir = run(tmp_path, mode="colocate_async", steps=4, overrides=overrides)
    assert_learned(run_dir)
    with RunReader(run_dir) as reader:
        steps = [step.metrics for step in reader.train_steps()]
        spans = [
            {version for version, _, _ in chain.weight_spans}
            for row in reader.rollouts()
            for chain in reader.chains(row.id)
        ]
    assert max(metrics["training/off_policy/trajectory_spans/max"] for metrics in steps) >= 2
    assert any(len(versions) > 1 for versions in spans)


FLAKY = {"type": "tests.training.flaky:FlakyHostConfig", "options": {"failing": 0.3}, "startup_attempts": 1}


def test_training_goes_on_while_three_of_ten_sandboxes_fail(tmp_path: Path) -> None:
    """Failed rollouts train nothing and enter no statistics."""
    run_dir = run(
        tmp_path, deployment=FLAKY, failures={"on_infra_failure": "mask"}, samples_per_task=4, tasks_per_step=4
    )
    assert_learned(run_dir)
    steps = groups(run_dir)
    failed = [row for step in steps for row in step["rows"] if not row["trusted"]]
    assert failed
    assert {row["trained_tokens"] for row in failed} == {0}
    for step in steps:
        expected = advantages_by_hand(step["rows"])
        assert {row["key"]: row["advantage"] for row in step["rows"]} == pytest.approx(expected, abs=1e-5)


def test_failed_rollouts_are_replaced_beside_a_trainer_that_does_not_wait(tmp_path: Path) -> None:
    run_dir = run(
        tmp_path,
        deployment=FLAKY,
        failures={"on_infra_failure": "replace"},
        mode="separate_async",
        samples_per_task=4,
        tasks_per_step=4,
    )
    assert_learned(run_dir)
    sizes: defaultdict[str, int] = defaultdict(int)
    for step in groups(run_dir):
        for row in step["rows"]:
            sizes[row["uid"]] += row["trusted"]
    assert len(sizes) >= 8
    assert sum(size == 4 for size in sizes.values()) >= 0.9 * len(sizes)
    with RunReader(run_dir) as reader:
        failures = sum(step.metrics.get("uni_agent/failures/replaced", 0) for step in reader.train_steps())
    assert failures > 0


def test_credit_by_turn_and_by_action(tmp_path: Path) -> None:
    """Rewards and advantages of turns, a loss by action, weights, a penalty on length: all at once, and it trains."""
    credit = {
        "turn_discount": 0.9,
        "thought_weight": 0.5,
        "action_weight": 2.0,
        "max_staleness": 4,
        "overlong": {"buffer": 480, "penalty": 0.1},
    }
    reward = {"type": "tests.training.turn_reward:TurnReward"}
    run_dir = run(
        tmp_path,
        reward=reward,
        advantage="turn_grpo",
        policy_loss="uni_agent_action",
        credit=credit,
        samples_per_task=4,
        kl_coefficient=0.001,
    )
    assert_learned(run_dir)
    with RunReader(run_dir) as reader:
        metrics = reader.train_steps()[-1].metrics
    assert metrics["actor/kl_loss"] > 0  # the policy has left its reference
    assert metrics["training/off_policy/trajectory_staleness/max"] == 0
    assert metrics["uni_agent/credit/tokens_action"] > 0.5
    assert metrics["actor/pg_clipfrac"] >= 0
    rows = [row for step in groups(run_dir) for row in step["rows"]]
    assert len({row["score"] for row in rows}) > 2  # not only solved or not: turns count


def test_the_fully_asynchronous_trainer_runs_our_loop(tmp_path: Path) -> None:
    """The experimental one, which takes its samples from a queue: the rollouts are stored, and tell their weights."""
    run_dir = run(tmp_path, mode="fully_async", steps=2, tasks_per_step=2, samples_per_task=2)
    with RunReader(run_dir) as reader:
        steps = reader.train_steps()
        rows = reader.rollouts()
        versions = {version for row in rows for chain in reader.chains(row.id) for version, _, _ in chain.weight_spans}
    assert steps
    assert len(rows) >= 8
    assert versions
