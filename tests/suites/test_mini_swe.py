"""The mini-swe suite: each task is unsolved as it stands, solved by its reference patch, and safe from tricks."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from uni_agent.data import JsonlDataConfig
from uni_agent.deployment import HostConfig, SandboxRegistry, SandboxSpec, start_sandbox
from uni_agent.errors import SandboxStartError
from uni_agent.interaction.prepare import apply_patch, base_commit, prepare, snapshot_patch
from uni_agent.reward import RewardConfig, RewardContext, grade
from uni_agent.types import ExitReason, InteractionResult, RewardResult, Task

SUITE = Path(__file__).parents[2] / "uni_agent" / "data" / "suites" / "mini_swe.jsonl"
TASKS = JsonlDataConfig(type="jsonl", path=SUITE).build().load()
REWARD: TypeAdapter[Any] = TypeAdapter(RewardConfig)


def by_id(task: Task) -> str:
    return task.id


def reference(task: Task) -> bytes:
    return (SUITE.parent / task.metadata["reference"]).read_bytes()


async def graded(sandbox: Any, task: Task) -> tuple[RewardResult, dict[str, bool]]:
    result = InteractionResult([], [], ExitReason.FINISHED)
    verdict = await grade(
        REWARD.validate_python(task.overrides["reward"]).build(), RewardContext(task, result, sandbox)
    )
    outcomes = re.findall(r"^(PASSED|FAILED) (\w\S+)$", verdict.log, re.MULTILINE)
    return verdict, {name: outcome == "PASSED" for outcome, name in outcomes}


def test_there_are_at_least_eight_tasks_of_the_promised_size() -> None:
    assert len(TASKS) >= 8 and len({task.id for task in TASKS}) == len(TASKS)
    for task in TASKS:
        assert task.repo is not None and task.repo.path is not None
        repo = SUITE.parent / task.repo.path
        modules = [path for path in repo.rglob("*.py") if "tests" not in path.parts]
        lines = sum(len(path.read_text().splitlines()) for path in repo.rglob("*.*") if path.is_file())
        assert 3 <= len(modules) <= 8 and 150 <= lines <= 500, task.id
        assert (repo / "README.md").is_file() and list(repo.glob("tests/test_*.py"))
        assert task.metadata["FAIL_TO_PASS"] and task.metadata["PASS_TO_PASS"]
        assert "submit" in str(task.prompt)


def test_no_task_gives_its_solution_away() -> None:
    for task in TASKS:
        added = {line[1:].strip() for line in reference(task).decode().splitlines() if re.match(r"\+[^+]", line)}
        assert not [line for line in added if len(line) > 30 and line in str(task.prompt)], task.id
        assert task.repo is not None and "test_hidden" not in [
            p.stem for p in (SUITE.parent / str(task.repo.path)).rglob("*")
        ]


@pytest.mark.parametrize("task", TASKS, ids=by_id)
async def test_unsolved_at_the_start_and_solved_by_the_reference(sandbox: Any, task: Task) -> None:
    await prepare(sandbox, task)
    base = await base_commit(sandbox)
    assert base is not None
    verdict, outcomes = await graded(sandbox, task)
    assert (verdict.score, verdict.resolved, verdict.trusted) == (0.0, False, True), verdict
    expected = dict.fromkeys(task.metadata["FAIL_TO_PASS"], False) | dict.fromkeys(task.metadata["PASS_TO_PASS"], True)
    assert outcomes == expected
    await apply_patch(sandbox, reference(task))
    verdict, outcomes = await graded(sandbox, task)
    assert (verdict.score, verdict.resolved) == (1.0, True), verdict.log
    assert outcomes == dict.fromkeys(expected, True)
    visible = await sandbox.execute("rm -rf .grading && python3 -B -m unittest discover -s tests -t .", timeout=60)
    assert visible.exit_code == 0, visible.output
    assert await snapshot_patch(sandbox, base, task=task) != b""


CHEATS = {
    "own unittest": "echo 'raise SystemExit(0)' > unittest.py; mkdir json; cp unittest.py json/__init__.py",
    "exit at import": "printf 'import os\\nos._exit(0)\\n' > slotbook/__init__.py",
    "quiet exit": "printf 'import sys\\nsys.exit(0)\\n' > slotbook/__init__.py",
    "own tests": "mkdir .grading; echo 'raise SystemExit(0)' > .grading/run_tests.py; rm -rf tests; mkdir tests",
    "link in the way": "ln -s slotbook .grading",
    "printed results": "echo 'print(\"PASSED test_hidden.NestedMeetings.test_nested\")' >> slotbook/__init__.py",
    "site": "echo 'import os; os._exit(0)' > sitecustomize.py; cp sitecustomize.py usercustomize.py",
    "no sources": "rm -rf slotbook",
    "no repository": "rm -rf .git",
}


@pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS)
async def test_rwd_10_tricks_score_nothing(sandbox: Any, cheat: str) -> None:
    task = next(task for task in TASKS if task.id.endswith("slotbook"))
    await prepare(sandbox, task)
    assert (await sandbox.execute(cheat, timeout=30)).exit_code == 0
    verdict, outcomes = await graded(sandbox, task)
    assert (verdict.score, verdict.trusted) == (0.0, True), verdict
    assert not any(outcomes.get(name) for name in task.metadata["FAIL_TO_PASS"])


async def test_the_patch_of_a_solution_solves_a_fresh_isolated_sandbox(sandbox: Any, tmp_path: Path) -> None:
    task = next(task for task in TASKS if task.id.endswith("inikit"))
    await prepare(sandbox, task)
    base = await base_commit(sandbox)
    assert base is not None
    await apply_patch(sandbox, reference(task))
    patch = await snapshot_patch(sandbox, base, task=task)
    registry = SandboxRegistry()
    config = HostConfig(type="host", root=tmp_path, startup_attempts=1)
    try:
        clean = await start_sandbox(config, SandboxSpec(name="clean"), registry=registry)
    except SandboxStartError as error:
        pytest.skip(f"no isolation on this machine: {error}")
    try:
        await prepare(clean, task)
        assert await base_commit(clean) == base
        await apply_patch(clean, patch)
        verdict, _ = await graded(clean, task)
        assert verdict.score == 1.0, verdict
    finally:
        await registry.stop_all()
