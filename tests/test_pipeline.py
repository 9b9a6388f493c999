"""Per-task overrides of the pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from uni_agent.errors import ConfigError
from uni_agent.pipeline import PipelineConfig
from uni_agent.reward.config import CommandRewardConfig, DummyRewardConfig, GradingFile
from uni_agent.types import Task


def pipeline() -> PipelineConfig:
    return PipelineConfig.model_validate(
        {
            "data": {"type": "jsonl", "path": "x.jsonl"},
            "model": {"type": "scripted", "path": "y.jsonl"},
            "deployment": {"type": "host"},
            "reward": {"type": "command", "command": "true", "timeout": 7},
        }
    )


def resolved(overrides: dict[str, Any], base_dir: str = "") -> PipelineConfig:
    return pipeline().for_task(Task(id="t", prompt="go", overrides=overrides, base_dir=base_dir))


def test_overrides_merge_deep_and_keep_what_they_do_not_name() -> None:
    reward = resolved({"reward": {"command": "false"}}).reward
    assert isinstance(reward, CommandRewardConfig)
    assert (reward.command, reward.timeout) == ("false", 7)


def test_another_type_drops_what_belonged_to_the_old_one() -> None:
    assert isinstance(resolved({"reward": {"type": "dummy"}}).reward, DummyRewardConfig)


def test_a_block_that_the_yaml_left_to_its_default_can_be_overridden() -> None:
    assert resolved({"agent": {"system_prompt": "hi"}}).agent.system_prompt == "hi"
    assert resolved({"interaction": {"max_turns": 3}}).interaction.max_turns == 3


def test_relative_paths_of_overrides_refer_to_the_task_file(tmp_path: Path) -> None:
    reward = resolved({"reward": {"files": {"a": {"path": "hidden/a"}}}}, str(tmp_path)).reward
    assert isinstance(reward, CommandRewardConfig)
    file = reward.files["a"]
    assert isinstance(file, GradingFile)
    assert file.path == tmp_path / "hidden/a"


@pytest.mark.parametrize("key", ["model", "data", "run", "train", "name"])
def test_what_belongs_to_the_run_is_reserved(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"task 't': overrides\.{key} is reserved"):
        resolved({key: {}})


def test_a_bad_override_names_task_key_and_cure() -> None:
    with pytest.raises(ConfigError, match=r"task 't'.*interaction\.max_turn\b.*max_turns"):
        resolved({"interaction": {"max_turn": 3}})
