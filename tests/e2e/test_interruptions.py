"""`kill -9`, Ctrl-C, `--resume`: every rollout ends exactly once."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import ARGV, uni_agent, write_jsonl, write_yaml

TASKS = 12
SAMPLES = 2


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """Tasks whose agent sleeps a little, writes a file and finishes; graded by that file."""
    write_jsonl(
        tmp_path / "tasks.jsonl",
        [{"id": f"t{i}", "prompt": "go", "files": {"seed.txt": f"{i}\n"}} for i in range(TASKS)],
    )
    turns = [
        {"tool_calls": [{"name": "execute_bash", "arguments": {"command": "sleep 0.3; cp seed.txt done.txt"}}]},
        {"tool_calls": [{"name": "finish", "arguments": {"answer": "ok"}}]},
    ]
    write_jsonl(tmp_path / "turns.jsonl", turns)
    return write_yaml(
        tmp_path / "pipeline.yaml",
        {
            "name": "interrupted",
            "data": {"type": "jsonl", "path": "tasks.jsonl"},
            "model": {"type": "scripted", "path": "turns.jsonl"},
            "tools": ["execute_bash", "finish"],
            "deployment": {"type": "host"},
            "reward": {"type": "command", "command": "cmp seed.txt done.txt"},
            "run": {"concurrency": 3, "samples_per_task": SAMPLES, "output_dir": "runs", "progress": "none"},
        },
    )


async def start(pipeline: Path, run_dir: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *ARGV, "run", str(pipeline), "--run-dir", str(run_dir), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


async def wait_for_finished(run_dir: Path, count: int) -> None:
    """Until `count` rollouts are on the disk."""
    for _ in range(600):
        if (run_dir / "run.db").exists():
            done = await uni_agent("show", run_dir, "--json")
            if done.code == 0 and sum(done.json["exit_reasons"].values()) >= count:
                return
        await asyncio.sleep(0.05)
    raise AssertionError("the run does not move")


def settled(run_dir: Path) -> list[tuple[str, int]]:
    db = sqlite3.connect(run_dir / "run.db")
    try:
        rows = db.execute(
            "SELECT t.id, r.sample FROM rollouts r JOIN tasks t ON t.id = r.task_id"
            " WHERE r.superseded = 0 AND r.state = 'done' ORDER BY 1, 2"
        )
        return [(str(task), int(sample)) for task, sample in rows]
    finally:
        db.close()


def assert_all_ended_once(run_dir: Path, summary: dict[str, Any]) -> None:
    assert summary["state"] == "done"
    assert summary["exit_reasons"] == {"finished": TASKS * SAMPLES}
    assert summary["resolved_rate"] == 1.0
    assert settled(run_dir) == sorted((f"t{i}", s) for i in range(TASKS) for s in range(SAMPLES))


@pytest.mark.slow
async def test_after_kill_9_a_resume_ends_every_rollout_exactly_once(pipeline: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = await start(pipeline, run_dir)
    await wait_for_finished(run_dir, 4)
    process.send_signal(signal.SIGKILL)
    await process.communicate()

    show = await uni_agent("show", run_dir, "--json")
    assert show.json["state"] == "interrupted"
    kept = sum(show.json["exit_reasons"].values())
    assert 4 <= kept < TASKS * SAMPLES
    finished_before = settled(run_dir)

    done = await uni_agent("run", pipeline, "--resume", run_dir, "--json")
    assert done.code == 0, done.err
    assert_all_ended_once(run_dir, done.json)
    assert set(finished_before) <= set(settled(run_dir))


@pytest.mark.slow
async def test_ctrl_c_tears_down_says_so_and_can_be_resumed(pipeline: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = await start(pipeline, run_dir)
    await wait_for_finished(run_dir, 2)
    process.send_signal(signal.SIGINT)
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 130
    assert b"torn down" in err
    marker = str(run_dir).encode()
    for pid in filter(str.isdigit, (p.name for p in Path("/proc").iterdir())):
        try:
            assert marker not in Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
    show = await uni_agent("show", run_dir, "--json")
    assert show.json["state"] == "interrupted"
    done = await uni_agent("run", pipeline, "--resume", run_dir, "--json")
    assert done.code == 0, done.err
    assert_all_ended_once(run_dir, done.json)


async def test_a_resume_refuses_a_changed_configuration_and_names_the_key(pipeline: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    first = await uni_agent("run", pipeline, "--run-dir", run_dir, "--limit", "1", "--json")
    assert first.code == 0, first.err
    changed = await uni_agent(
        "run", pipeline, "--resume", run_dir, "--limit", "1", "-o", "interaction.max_turns=7", "--json"
    )
    assert changed.code == 2
    assert "interaction.max_turns" in changed.err
    allowed = await uni_agent("run", pipeline, "--resume", run_dir, "--limit", "1", "-o", "run.concurrency=5", "--json")
    assert allowed.code == 0, allowed.err


async def test_a_run_folder_is_never_reused_by_accident(pipeline: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    assert (await uni_agent("run", pipeline, "--run-dir", run_dir, "--limit", "1", "--json")).code == 0
    again = await uni_agent("run", pipeline, "--run-dir", run_dir, "--limit", "1", "--json")
    assert again.code == 2
    assert "--resume" in again.err


async def test_launch_and_done_are_the_only_lines_on_stdout(pipeline: Path, tmp_path: Path) -> None:
    done = await uni_agent("run", pipeline, "--run-dir", tmp_path / "run", "--limit", "2", "--json")
    events = [json.loads(line)["event"] for line in done.out.splitlines()]
    assert events == ["launch", "done"]
    needed = {
        "state",
        "rollouts",
        "tasks",
        "exit_reasons",
        "reward_mean",
        "resolved_rate",
        "tokens",
        "time",
        "turns_mean",
    }
    assert needed <= done.json.keys()
    assert set(done.json["tokens"]) == {"sampled", "trained", "masked", "dropped"}
    assert set(done.json["time"]) == {"start", "model", "tools", "reward", "teardown"}


async def test_a_resume_refuses_data_that_lost_tasks_of_the_run(pipeline: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    assert (await uni_agent("run", pipeline, "--run-dir", run_dir, "--limit", "1", "--json")).code == 0
    write_jsonl(tmp_path / "tasks.jsonl", [{"id": "other", "prompt": "go"}])
    done = await uni_agent("run", pipeline, "--resume", run_dir, "--limit", "1", "--json")
    assert done.code == 2
    assert "'t0'" in done.err
