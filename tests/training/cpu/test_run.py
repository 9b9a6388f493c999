"""Two real steps of verl's GRPO on the CPU: its processes, its trainer, our platform and server."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("verl") is None:
    pytest.skip("verl is not installed", allow_module_level=True)

from tests.training.cpu.runs import POLICY, run

STEPS = 2


def weights(folder: Path) -> dict[str, Any]:
    torch: Any = importlib.import_module("safetensors.torch")
    return torch.load_file(folder / "model.safetensors")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_policy_learns_and_the_server_samples_with_what_it_learned(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "sync",
        "actor_rollout_ref.actor.use_kl_loss=true",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4",
        f"trainer.save_freq={STEPS}",
        "actor_rollout_ref.actor.checkpoint.save_contents=[model,hf_model]",
        steps=STEPS,
        reference=True,
        timeout=540,
    )
    assert done.code == 0, done.log[-4000:]
    assert len(done.steps) == STEPS
    for step in done.steps:
        assert step["actor/grad_norm"] > 0
        # Sampled by the weights of this very step: none is older than the trainer's. After the first step these are no
        # longer those of the folder, and at this learning rate a server that had kept them would be far off.
        assert step["training/off_policy/trajectory_staleness/max"] == 0
        assert step["training/rollout_probs_diff_max"] < 1e-3
        assert step["actor/kl_loss"] >= 0
    assert done.steps[-1]["actor/kl_loss"] > 1e-4  # the policy has left its reference
    saved = tmp_path / "checkpoints" / f"global_step_{STEPS}" / "actor" / "huggingface"
    before, after = weights(POLICY), weights(saved)
    assert before.keys() == after.keys()
    assert max((after[name].float() - before[name].float()).abs().max().item() for name in before) > 1e-3
