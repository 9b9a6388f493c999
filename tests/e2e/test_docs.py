"""The examples of README.md and docs/ run as they are printed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cli import uni_agent, write_jsonl, write_yaml
from uni_agent.config.load import load_config
from uni_agent.pipeline import PipelineConfig
from uni_agent.store import RunReader

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGES[page], re.DOTALL)


def module(page: str, name: str) -> str:
    """The source of a documented file `name`."""
    (source,) = (text for text in blocks(page, "python") if text.startswith(f'"""{name}'))
    return source


def stated(page: str, name: str) -> dict[str, Any]:
    """The part of a YAML that names a class of the documented file `name`."""
    (text,) = (text for text in blocks(page, "yaml") if f'"{name}:' in text)
    return yaml.safe_load(text)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    task = json.loads(blocks("tasks.md", "json")[0])
    write_jsonl(tmp_path / "tasks.jsonl", [task])
    write_jsonl(
        tmp_path / "turns.jsonl",
        [
            {"tool_calls": [{"name": "execute_bash", "arguments": {"command": "echo 'echo hello' > greet.sh"}}]},
            {"tool_calls": [{"name": "submit", "arguments": {}}]},
        ],
    )
    return tmp_path


async def run(folder: Path, **change: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "data": {"type": "jsonl", "path": "tasks.jsonl"},
        "model": {"type": "scripted", "path": "turns.jsonl"},
        "tools": ["execute_bash", "submit"],
        "deployment": {"type": "host"},
        "reward": {"type": "dummy"},
        "run": {"output_dir": "runs", "retries": 0},
    }
    # Without the current folder in front of the path, as the installed command starts.
    safe = {"PYTHONSAFEPATH": "1"}
    done = await uni_agent("run", write_yaml(folder / "p.yaml", {**base, **change}), "--json", env=safe)
    assert done.code == 0, done.err
    return done.json


async def test_the_documented_task_is_solved(folder: Path) -> None:
    assert (await run(folder))["resolved_rate"] == 1.0


async def test_the_documented_reward_grades(folder: Path) -> None:
    (folder / "my_reward.py").write_text(module("tasks.md", "my_reward.py"))
    write_jsonl(folder / "tasks.jsonl", [{"id": "t", "prompt": "go"}])
    done = await run(folder, **stated("tasks.md", "my_reward"))
    assert done["resolved_rate"] == done["reward_mean"] == 1.0
    with RunReader(Path(done["run_dir"])) as reader:
        (rollout,) = reader.each_rollout()
        assert rollout.reward_breakdown == {"bytes": 11}


async def test_the_documented_source_gives_tasks(folder: Path) -> None:
    (folder / "my_source.py").write_text(module("tasks.md", "my_source.py"))
    assert (await run(folder, **stated("tasks.md", "my_source")))["tasks"] == 1


async def test_the_documented_deployment_starts_sandboxes(folder: Path) -> None:
    (folder / "my_deployment.py").write_text(module("sandboxes.md", "my_deployment.py"))
    done = await run(folder, **stated("sandboxes.md", "my_deployment"))
    assert (done["exit_reasons"], done["resolved_rate"]) == ({"finished": 1}, 1.0)


def test_the_readmes_pipeline_is_a_valid_configuration(folder: Path) -> None:
    (example,) = blocks("README.md", "yaml")
    (folder / "readme.yaml").write_text(example, encoding="utf-8")
    assert load_config(PipelineConfig, folder / "readme.yaml").config.run.samples_per_task == 4


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    base = ROOT if page == "README.md" else ROOT / "docs"
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", PAGES[page]):
        name, _, anchor = target.partition("#")
        name = name or page
        assert (base / name).is_file(), target
        headings = re.findall(r"^#+ (.*)$", (base / name).read_text(encoding="utf-8"), re.MULTILINE)
        slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in slugs, (target, slugs)
