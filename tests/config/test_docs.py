"""The page on configuration says what is true."""

from __future__ import annotations

import re
from pathlib import Path

from uni_agent.config.load import load_config
from uni_agent.config.settings import PREFIX, Settings
from uni_agent.pipeline import PipelineConfig

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")


def test_the_first_example_is_a_valid_configuration(tmp_path: Path) -> None:
    example = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0]
    (tmp_path / "p.yaml").write_text(example, encoding="utf-8")
    assert load_config(PipelineConfig, tmp_path / "p.yaml").config.name == "first-try"


def test_every_setting_is_in_the_table() -> None:
    listed = set(re.findall(rf"`({PREFIX}\w+)`", PAGE))
    assert listed == {PREFIX + name.upper() for name in Settings.model_fields}
