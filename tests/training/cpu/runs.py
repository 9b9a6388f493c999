"""A small real run of verl on the CPU: the packaged policy, eight made tasks, verl's own single-turn loop."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uni_agent.training.cpu import environment, overrides
from uni_agent.training.cpu.settings import Mode

ROOT = Path(__file__).resolve().parents[3]
POLICY = ROOT / "uni_agent" / "assets" / "quickstart_policy"

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    share = solution_str.count("e") / max(len(solution_str), 1)
    return {"score": share, "acc": float(share > 0.1)}
"""


@dataclass(frozen=True, slots=True)
class Finished:
    """What a run left: `steps` are the metrics of its steps in order."""

    code: int
    log: str
    steps: list[dict[str, Any]]


def command(folder: Path, mode: Mode, *more: str, steps: int = 2, **options: Any) -> list[str]:
    """The run's command line; writes its data into `folder`."""
    pandas: Any = importlib.import_module("pandas")
    rows = [
        {
            "data_source": "made",
            "prompt": [{"role": "user", "content": f"Delete the file number{i}.txt."}],
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": i},
        }
        for i in range(8)
    ]
    pandas.DataFrame(rows).to_parquet(folder / "train.parquet")
    (folder / "reward.py").write_text(REWARD)
    return [
        *(sys.executable, "-m", "verl.trainer.main_ppo"),
        *overrides(mode, **options),
        f"trainer.total_training_steps={steps}",
        "trainer.total_epochs=100",
        "trainer.logger=[file]",
        "trainer.project_name=cpu",
        "trainer.experiment_name=tiny",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
        "trainer.resume_mode=disable",
        f"trainer.default_local_dir={folder / 'checkpoints'}",
        "algorithm.adv_estimator=grpo",
        f"data.train_files={folder / 'train.parquet'}",
        f"data.val_files={folder / 'train.parquet'}",
        "data.train_batch_size=2",
        "data.max_prompt_length=64",
        "data.max_response_length=48",
        "data.filter_overlong_prompts=false",
        f"actor_rollout_ref.model.path={POLICY}",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
        "actor_rollout_ref.actor.use_kl_loss=false",
        "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
        f"reward.custom_reward_function.path={folder / 'reward.py'}",
        "reward.custom_reward_function.name=compute_score",
        *more,
    ]


def run(folder: Path, mode: Mode, *more: str, timeout: float = 240, **options: Any) -> Finished:
    """Run to the end; its output goes to `run.log` in `folder`. Fails the test when it takes longer than `timeout`."""
    metrics = folder / "metrics.jsonl"
    env = {
        **os.environ,
        **environment(),
        "VERL_USE_EXTERNAL_MODULES": "uni_agent.training.cpu.plugin",
        "VERL_FILE_LOGGER_PATH": str(metrics),
        "PYTHONPATH": str(ROOT),
    }
    log = folder / "run.log"
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            command(folder, mode, *more, **options), cwd=folder, env=env, stdout=file, stderr=subprocess.STDOUT
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            # Ray's processes end with the one that started them.
            process.kill()
            raise AssertionError(f"still running after {timeout:g} s:\n{log.read_text()[-4000:]}") from None
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return Finished(code, log.read_text(errors="replace"), [json.loads(line)["data"] for line in lines])
