"""`model.type: verl` without a `train:` block: verl's own rollout servers under the loop of every evaluation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.conftest import ROOT, pipeline_text
from uni_agent.config.dump import dump_yaml
from uni_agent.config.load import from_data
from uni_agent.errors import ConfigError
from uni_agent.model.config import VerlModelConfig
from uni_agent.store import RunReader
from uni_agent.training.evaluation import evaluation_keys

pytestmark = pytest.mark.usefixtures("verl_installed")


def test_an_override_that_contradicts_the_model_is_refused() -> None:
    path = pipeline_text()["model"]["path"]
    model = from_data(
        VerlModelConfig, {"type": "verl", "path": path, "overrides": {"actor_rollout_ref.model.path": "elsewhere"}}
    )
    with pytest.raises(
        ConfigError, match=r"model\.overrides\.actor_rollout_ref\.model\.path.*disagrees with model\.path"
    ):
        evaluation_keys(model, 512)


def test_the_weights_of_the_folder_are_served_and_not_random_ones() -> None:
    model = from_data(VerlModelConfig, {"type": "verl", "path": pipeline_text()["model"]["path"]})
    rollout = evaluation_keys(model, 512)["actor_rollout_ref"]["rollout"]
    assert (rollout["load_format"], rollout["max_model_len"], rollout["nnodes"]) == ("auto", 512, 1)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_evaluation_samples_what_the_embedded_engine_samples(tmp_path: Path) -> None:
    """The same tasks and seeds through verl's server manager and through our engine: the same tokens."""
    text = pipeline_text()
    del text["train"]
    text["data"] = {**text["data"], "limit": 3}
    runs: list[Path] = []
    for name, model in {
        "verl": text["model"],
        "embedded": {"type": "tokens", "engine": {"type": "embedded", "path": text["model"]["path"]}},
    }.items():
        text["model"] = {**model, "sampling": {"max_tokens": 96}}
        config = tmp_path / f"{name}.yaml"
        config.write_text(dump_yaml(text))
        command = [sys.executable, "-m", "uni_agent", "run", str(config), "--run-dir", str(tmp_path / name), "--json"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=380, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["event"] == "done"
        runs.append(tmp_path / name)
    chains: list[dict[tuple[str, int], list[int]]] = []
    for run_dir in runs:
        with RunReader(run_dir) as reader:
            chains.append(
                {(row.task_id, row.sample): reader.chains(row.id)[0].response_ids for row in reader.rollouts()}
            )
    assert len(chains[0]) == 6
    assert chains[0] == chains[1]
