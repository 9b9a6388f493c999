"""Bad input: one clear message and exit code 2, before any sandbox starts or any run folder is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import uni_agent, write_jsonl, write_yaml


def pipeline(folder: Path, change: dict[str, Any] | None = None) -> Path:
    write_jsonl(folder / "tasks.jsonl", [{"id": "t", "prompt": "go"}])
    write_jsonl(folder / "turns.jsonl", [{"tool_calls": [{"name": "finish", "arguments": {"answer": "x"}}]}])
    base: dict[str, Any] = {
        "data": {"type": "jsonl", "path": "tasks.jsonl"},
        "model": {"type": "scripted", "path": "turns.jsonl"},
        "tools": ["finish"],
        "deployment": {"type": "host"},
        "reward": {"type": "dummy"},
        "run": {"output_dir": "runs"},
    }
    return write_yaml(folder / "p.yaml", {**base, **(change or {})})


OPENAI = {"type": "openai_compatible", "model": "m", "base_url": "http://127.0.0.1:9/v1"}

BAD: dict[str, tuple[dict[str, Any], list[str]]] = {
    "wrong key": ({"interaction": {"max_turn": 3}}, ["interaction.max_turn", "max_turns", "p.yaml:"]),
    "wrong top-level key": ({"interactoin": {}}, ["interactoin", "interaction"]),
    "wrong type": ({"interaction": {"max_turns": "many"}}, ["interaction.max_turns", "integer"]),
    "wrong tag": ({"deployment": {"type": "hots"}}, ["deployment", "hots", "host"]),
    "missing tag": ({"reward": {"command": "true"}}, ["reward", "type"]),
    "missing task file": ({"data": {"type": "jsonl", "path": "nope.jsonl"}}, ["nope.jsonl"]),
    "missing script": ({"model": {"type": "scripted", "path": "nope.jsonl"}}, ["nope.jsonl"]),
    "missing env var": ({"model": {**OPENAI, "api_key_env": "UNI_AGENT_TEST_NO_SUCH"}}, ["UNI_AGENT_TEST_NO_SUCH"]),
    "unreachable server": ({"model": OPENAI}, ["127.0.0.1:9", "cannot be reached"]),
    "grader that bash cannot parse": (
        {"reward": {"type": "command", "command": "echo 'x"}},
        ["reward.command", "parse"],
    ),
    "unknown tool": ({"tools": ["finsh"]}, ["finsh", "finish"]),
    "unknown plug-in": ({"tools": [{"type": "no.such:Tool"}]}, ["no.such"]),
    "unknown parser": ({"model": {**OPENAI, "tool_parser": "qwen3coder_typo"}}, ["qwen3coder_typo", "hermes"]),
    "missing model folder": (
        {"model": {"type": "tokens", "engine": {"type": "embedded", "path": "no_such_folder"}}},
        ["no_such_folder"],
    ),
}


@pytest.mark.parametrize("name", list(BAD))
async def test_bad_configuration_is_one_clear_message_and_exit_2(name: str, tmp_path: Path) -> None:
    change, needles = BAD[name]
    done = await uni_agent("run", pipeline(tmp_path, change))
    assert done.code == 2, done.err
    assert "Traceback" not in done.err
    for needle in needles:
        assert needle in done.err
    assert done.out == ""
    assert not (tmp_path / "runs").exists()


BAD_TASKS: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "no prompt": ([{"id": "t"}], ["prompt", "tasks.jsonl:1"]),
    "unknown key": ([{"id": "t", "prompt": "x", "promt": "y"}], ["promt", "tasks.jsonl:1"]),
    "double id": ([{"id": "t", "prompt": "x"}, {"id": "t", "prompt": "y"}], ["'t'", "tasks.jsonl:2"]),
    "reserved override": ([{"id": "t", "prompt": "x", "overrides": {"model": {}}}], ["model", "reserved", "'t'"]),
    "bad override": ([{"id": "t", "prompt": "x", "overrides": {"reward": {"type": "comand"}}}], ["comand", "'t'"]),
    "bad role": ([{"id": "t", "prompt": [{"role": "robot", "content": "x"}]}], ["robot"]),
}


@pytest.mark.parametrize("name", list(BAD_TASKS))
async def test_bad_tasks_are_one_clear_message_and_exit_2(name: str, tmp_path: Path) -> None:
    rows, needles = BAD_TASKS[name]
    path = pipeline(tmp_path)
    write_jsonl(tmp_path / "tasks.jsonl", rows)
    done = await uni_agent("run", path)
    assert done.code == 2, done.err
    assert "Traceback" not in done.err
    for needle in needles:
        assert needle in done.err


async def test_a_missing_or_broken_file_is_named_with_its_line(tmp_path: Path) -> None:
    missing = await uni_agent("run", tmp_path / "nope.yaml")
    assert missing.code == 2 and "nope.yaml" in missing.err
    broken = tmp_path / "b.yaml"
    broken.write_text("a: [1\n", encoding="utf-8")
    done = await uni_agent("run", broken)
    assert done.code == 2 and "b.yaml:" in done.err and "Traceback" not in done.err


async def test_a_dry_run_that_cannot_write_says_so(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("", encoding="utf-8")
    done = await uni_agent("run", pipeline(tmp_path), "--dry-run", "--run-dir", tmp_path / "taken")
    assert done.code == 2 and "cannot be written" in done.err and "Traceback" not in done.err
