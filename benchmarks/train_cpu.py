"""Training on the CPU: does the quickstart policy learn what it is rewarded for, and only that?

Runs `uni-agent run configs/quickstart_train.yaml` for each seed (real verl, real sandboxes), evaluates the held-out
suite before and after with the same sampler (256 episodes each), then once more with rewards that are shuffled over the
rollouts: a control that must learn nothing. Prints one JSON object, and writes it and a plot with --out.

    python benchmarks/train_cpu.py --out benchmarks/results/train_cpu      # about 36 minutes on two free cores
    python benchmarks/train_cpu.py --quick                                # one seed, no control
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from uni_agent.data.config import JsonlDataConfig
from uni_agent.data.task_lines import write_task_lines
from uni_agent.store import RunReader
from uni_agent.types import Task

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs" / "quickstart_train.yaml"
SUITE = ROOT / "uni_agent" / "data" / "suites" / "shell_basics.jsonl"
GAIN = 0.2
"""What the held-out reward has to rise by, absolute."""
NOISE = 0.05
"""What the control may change by."""


def shuffled_tasks(folder: Path) -> Path:
    """The training tasks with rewards of other rollouts; validation keeps its own."""
    tasks: list[Task] = []
    for task in JsonlDataConfig(type="jsonl", path=SUITE).build().load():
        reward = dict(task.overrides["reward"])
        options = {"command": reward["command"]}
        reward = {"type": "benchmarks.shuffled_reward:ShuffledReward", "options": options}
        tasks.append(task.model_copy(update={"overrides": {**task.overrides, "reward": reward}}))
    path = folder / "shuffled.jsonl"
    write_task_lines(tasks, path)
    return path


def train(run_dir: Path, seed: int, *, overrides: tuple[str, ...] = (), data: Path | None = None) -> dict[str, Any]:
    """One run, from its start to its last evaluation. Raises CalledProcessError when it fails."""
    words = [sys.executable, "-m", "uni_agent", "run", str(CONFIG), "--run-dir", str(run_dir), "--json"]
    words += [part for text in (f"run.seed={seed}", *overrides) for part in ("-o", text)]
    words += ["-o", f"data.path={data}"] if data is not None else []
    started = time.monotonic()
    subprocess.run(words, check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL)
    return {"seed": seed, "seconds": round(time.monotonic() - started, 1), **measured(run_dir)}


def measured(run_dir: Path) -> dict[str, Any]:
    """What the run's own store says: held-out reward by evaluation and kind, training reward and endings by step."""
    with RunReader(run_dir) as reader:
        kinds = reader.validation_scores("kind")
        whole = {row.step: row for row in reader.validation_scores(None)}
        rollouts = [row for row in reader.step_rollouts() if row.phase == "train"]
        steps = {step.step: step.metrics for step in reader.train_steps()}
    evaluations = sorted(step for step in whole if step is not None)
    return {
        "episodes_per_evaluation": whole[evaluations[0]].trusted,
        "before": whole[evaluations[0]].reward_mean,
        "after": whole[evaluations[-1]].reward_mean,
        "evaluations": {str(step): whole[step].reward_mean for step in evaluations},
        "kinds": {
            group: {str(row.step): row.reward_mean for row in kinds if row.group == group}
            for group in sorted({row.group for row in kinds})
        },
        "training": [
            {"step": row.step, "reward": row.reward_mean, "exit_reasons": row.exit_reasons, "rollouts": row.rollouts}
            for row in rollouts
        ],
        "logprob_gap": max(
            (m["training/rollout_probs_diff_max"] for m in steps.values() if m.get("training/rollout_probs_diff_max")),
            default=None,
        ),
        "seconds_per_step": [m.get("timing_s/step") for m in steps.values() if m.get("timing_s/step")],
    }


def verdict(runs: list[dict[str, Any]], control: dict[str, Any] | None) -> dict[str, Any]:
    """What the runs show: whether each gained enough, no kind was lost, and the control stayed where it was."""
    gains = [run["after"] - run["before"] for run in runs]
    lost = [kind for run in runs for kind, scores in run["kinds"].items() if list(scores.values())[-1] == 0]
    found: dict[str, Any] = {
        "gains": gains,
        "enough": all(gain >= GAIN for gain in gains),
        "lost_kinds": lost,
        "within_ten_minutes": all(run["seconds"] <= 600 for run in runs),
    }
    if control is not None:
        change = control["after"] - control["before"]
        found |= {"control_change": change, "control_still": abs(change) <= NOISE}
    return found


def plot(result: dict[str, Any], path: Path) -> None:
    """Held-out reward, success by kind, and endings by step, as one SVG."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "uni-agent"
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(13, 4), constrained_layout=True)
    for run in result["runs"]:
        left.plot(
            [int(s) for s in run["evaluations"]], run["evaluations"].values(), marker="o", label=f"seed {run['seed']}"
        )
    if result.get("control"):
        points = result["control"]["evaluations"]
        left.plot(
            [int(s) for s in points], points.values(), marker="x", ls="--", color="grey", label="shuffled rewards"
        )
    left.set(title="reward on held-out tasks", xlabel="step", ylim=(0, 1))
    left.legend()
    first = result["runs"][0]
    for kind, points in first["kinds"].items():
        middle.plot([int(s) for s in points], points.values(), marker=".", label=kind.rpartition("/")[2])
    middle.set(title=f"by kind of task, seed {first['seed']}", xlabel="step", ylim=(0, 1))
    middle.legend(fontsize="small", ncols=2)
    steps = [row["step"] for row in first["training"]]
    reasons = sorted({reason for row in first["training"] for reason in row["exit_reasons"]})
    shares = [[row["exit_reasons"].get(r, 0) / max(row["rollouts"], 1) for row in first["training"]] for r in reasons]
    right.stackplot(steps, shares, labels=reasons)
    right.set(title=f"endings while training, seed {first['seed']}", xlabel="step", ylim=(0, 1))
    right.legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None})


def main() -> int:
    """Run what the arguments ask for; 0 when the verdict holds."""
    parser = argparse.ArgumentParser(description="Train the quickstart policy on the CPU and measure what it learns.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--quick", action="store_true", help="one seed, no control")
    parser.add_argument("--no-control", action="store_true", help="leave out the run with shuffled rewards")
    parser.add_argument("-o", "--override", action="append", default=[], metavar="KEY=VALUE", help="for every run")
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.svg")
    parser.add_argument("--keep", type=Path, help="folder for the runs (default: a temporary one)")
    options = parser.parse_args()
    seeds = options.seeds[:1] if options.quick else options.seeds
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        runs = [train(folder / f"seed-{seed}", seed, overrides=tuple(options.override)) for seed in seeds]
        control = None
        if not (options.quick or options.no_control):
            data = shuffled_tasks(folder)
            control = train(folder / "control", seeds[0], overrides=tuple(options.override), data=data)
    result = {"runs": runs, "control": control, "verdict": verdict(runs, control)}
    text = json.dumps(result, indent=1)
    print(text)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.with_suffix(".json").write_text(text + "\n", encoding="utf-8")
        plot(result, options.out.with_suffix(".svg"))
    held = result["verdict"]
    good = held["enough"] and held["within_ten_minutes"] and not held["lost_kinds"]
    return 0 if good and held.get("control_still", True) else 1


if __name__ == "__main__":
    raise SystemExit(main())
