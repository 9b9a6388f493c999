"""The shipped schema is that of the code, and the shipped configurations are valid under it and under the loader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from jsonschema import Draft202012Validator

from uni_agent.cli.schema import KINDS, config_class, shipped_file
from uni_agent.config.load import load_config
from uni_agent.config.nodes import Origin, lower
from uni_agent.config.parse import parse_yaml
from uni_agent.config.schema import schema_text
from uni_agent.pipeline import PipelineConfig

CONFIGS = shipped_file().parent.parent
SHIPPED = sorted(path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*.yaml"))


def kind_of(name: str) -> str:
    """Which kind of YAML a shipped file is, by the schema that it names."""
    first = (CONFIGS / name).read_text(encoding="utf-8").splitlines()[0]
    return Path(first.partition("$schema=")[2]).stem


@pytest.mark.parametrize("kind", KINDS)
def test_the_committed_schema_is_fresh(kind: str) -> None:
    assert shipped_file(kind).read_text(encoding="utf-8") == schema_text(config_class(kind)), (
        "the configuration classes changed: run `uni-agent schema --write`"
    )


def test_there_are_shipped_configurations() -> None:
    assert "quickstart.yaml" in SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_configuration_points_editors_at_the_schema(name: str) -> None:
    path = CONFIGS / name
    first = path.read_text(encoding="utf-8").splitlines()[0]
    prefix = "# yaml-language-server: $schema="
    assert first.startswith(prefix)
    assert (path.parent / first.removeprefix(prefix)).resolve() == shipped_file(kind_of(name)).resolve()


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_configuration_is_valid(name: str) -> None:
    path = CONFIGS / name
    node = parse_yaml(path.read_text(encoding="utf-8"), lambda line: Origin("file", name, line))
    assert node is not None
    validator = cast("Any", Draft202012Validator(json.loads(shipped_file(kind_of(name)).read_text(encoding="utf-8"))))
    validator.validate(lower(node))
    load_config(config_class(kind_of(name)), path)


def test_an_installed_configuration_is_reached_by_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text("extends: pkg://uni_agent.configs/quickstart.yaml\nname: own\n")
    assert load_config(PipelineConfig, "own.yaml").config.name == "own"
    for path in ("pkg://uni_agent.configs/quickstart.yaml", Path("pkg://uni_agent.configs/quickstart.yaml")):
        assert load_config(PipelineConfig, path).config.name == "quickstart"
