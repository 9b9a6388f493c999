"""The pages on the gateway say what is true."""

from __future__ import annotations

import re
from pathlib import Path

from uni_agent.config.load import load_config
from uni_agent.gateway.app_config import GatewayAppConfig
from uni_agent.gateway.config import SessionSettings
from uni_agent.gateway.scenario import BUILT_IN_RULES, Scenario, ScenarioConfig

DOCS = Path(__file__).parents[2] / "docs"
GATEWAY = (DOCS / "gateway.md").read_text(encoding="utf-8")
SCENARIOS = (DOCS / "scenario_tags.md").read_text(encoding="utf-8")


def yaml_in(page: str) -> str:
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    return example


def column(page: str, title: str) -> list[str]:
    """The names in the first column of the table under `title`."""
    table = page.partition(f"| {title} |")[2].partition("\n\n")[0]
    return re.findall(r"^\| `?([a-z_-]+)`? \|", table, re.MULTILINE)


def test_the_example_of_a_configuration_is_valid(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text(yaml_in(GATEWAY), encoding="utf-8")
    config = load_config(GatewayAppConfig, tmp_path / "gateway.yaml").config
    assert config.gateway.journal.folder == tmp_path / "gateway-journal"


def test_everything_that_a_session_takes_is_listed() -> None:
    listed = re.search(r"`POST /sessions` \|.*`\{(.*?)\}`", GATEWAY)
    assert listed is not None
    assert [name.strip(" ?") for name in listed[1].split(",")] == ["session_id", *SessionSettings.model_fields]


def test_every_tag_and_every_rule_is_listed_in_its_order() -> None:
    assert column(SCENARIOS, "tag") == [scenario.value for scenario in Scenario]
    assert column(SCENARIOS, "rule") == [rule.name for rule in BUILT_IN_RULES]


def test_the_example_of_rules_is_valid(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml_in(SCENARIOS), encoding="utf-8")
    config = load_config(ScenarioConfig, tmp_path / "rules.yaml").config
    assert [rule.name for rule in config.rules] == ["planner", "judge"] and config.disabled == ["generic-side"]
