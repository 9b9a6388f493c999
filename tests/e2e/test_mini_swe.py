"""The mini-swe suite over HTTP: reference fixes resolve all of it, doing nothing none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import uni_agent
from tests.support.openai_server import call, serving

ROOT = Path(__file__).parent.parent.parent
SUITE = ROOT / "uni_agent/data/suites/mini_swe.jsonl"


def tasks() -> list[dict[str, Any]]:
    return [json.loads(line) for line in SUITE.read_text(encoding="utf-8").splitlines()]


def reference_player() -> Any:
    """Plays, for the task whose prompt was sent: apply the reference patch, then submit."""
    patches = {task["prompt"]: (SUITE.parent / task["metadata"]["reference"]).read_text() for task in tasks()}

    def play(request: dict[str, Any]) -> dict[str, Any]:
        prompt = next(m["content"] for m in request["messages"] if m["role"] == "user")
        if any(m["role"] == "tool" for m in request["messages"]):
            return {"content": "Fixed.", "tool_calls": [call("submit", {})]}
        command = f"git apply -v <<'END_OF_PATCH'\n{patches[prompt]}END_OF_PATCH"
        return {"content": "I know this one.", "tool_calls": [call("execute_bash", {"command": command})]}

    return play


@pytest.mark.slow
async def test_a_server_that_plays_the_reference_fixes_resolves_every_task(tmp_path: Path) -> None:
    async with serving(reference_player()) as server:
        done = await uni_agent(
            "run", ROOT / "configs/mini_swe.yaml", "--json",
            "-o", f"model.base_url={server.url}", "-o", f"run.output_dir={tmp_path}",
        )  # fmt: skip
    assert done.code == 0, done.err
    summary = done.json
    assert summary["tasks"] == summary["rollouts"] == len(tasks()) >= 8
    assert summary["exit_reasons"] == {"finished": len(tasks())}
    assert summary["resolved_rate"] == 1.0


@pytest.mark.slow
async def test_a_server_that_does_nothing_resolves_none(tmp_path: Path) -> None:
    async with serving(lambda _: {"content": "", "tool_calls": [call("submit", {})]}) as server:
        done = await uni_agent(
            "run", ROOT / "configs/mini_swe.yaml", "--json",
            "-o", f"model.base_url={server.url}", "-o", f"run.output_dir={tmp_path}",
        )  # fmt: skip
    assert done.code == 0, done.err
    assert done.json["exit_reasons"] == {"finished": len(tasks())}
    assert done.json["resolved_rate"] == 0.0
