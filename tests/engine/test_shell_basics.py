"""The suite is held to real bash: each reference solves its task, and what is not a solution fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from uni_agent.types import Task, parse_messages

ROOT = Path(__file__).resolve().parents[2]
SUITE = ROOT / "uni_agent" / "data" / "suites" / "shell_basics.jsonl"
HELDOUT = SUITE.with_name("shell_basics_heldout.jsonl")
GENERATOR = ROOT / "examples" / "quickstart_policy" / "make_suite.py"
TASKS, HELDOUT_TASKS = (
    [Task.model_validate_json(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for path in (SUITE, HELDOUT)
)
KINDS = ("create", "delete", "copy", "move", "mkdir", "append", "read", "count")


def bash(command: str, folder: Path, answer: str = "") -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "UNI_AGENT_ANSWER": answer}
    return subprocess.run(["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True, check=False)


def prepared(task: Task, folder: Path) -> Path:
    folder.mkdir()
    for name, text in task.files.items():
        assert isinstance(text, str)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def solved(task: Task, folder: Path, answer: str = "") -> bool:
    spec = task.overrides["reward"]
    assert spec["type"] == "command"
    return bash(spec["command"], folder, answer).returncode == 0


def test_sixty_tasks_of_eight_kinds() -> None:
    assert len(TASKS) == 60
    assert len({task.id for task in TASKS}) == 60
    kinds = Counter(task.metadata["kind"] for task in TASKS)
    assert set(kinds) == set(KINDS)
    assert set(kinds.values()) <= {7, 8}
    assert all(sum(len(message.content) for message in parse_messages(task.prompt)) < 120 for task in TASKS)


def test_eight_held_out_tasks_of_each_kind() -> None:
    assert len({task.id for task in HELDOUT_TASKS}) == len(HELDOUT_TASKS) == 64
    assert Counter(task.metadata["kind"] for task in HELDOUT_TASKS) == dict.fromkeys(KINDS, 8)


@pytest.mark.parametrize("task", [*TASKS, *HELDOUT_TASKS], ids=lambda task: task.id)
def test_the_reference_solves_it_and_doing_nothing_does_not(task: Task, tmp_path: Path) -> None:
    reference, answer = task.metadata["reference"], task.metadata["answer"]
    idle = prepared(task, tmp_path / "idle")
    assert not solved(task, idle)
    assert not solved(task, idle, "done")

    done = prepared(task, tmp_path / "done")
    output = bash(reference, done).stdout
    assert output.split()[:1] == ([answer] if answer else [])
    assert solved(task, done, answer)
    assert solved(task, done, answer)  # grading changes nothing
    if answer:
        assert solved(task, done, f" {answer}\n")
        for wrong in ("", f"{answer}{answer}", f"not {answer}", f"{answer}\n{answer}"):
            assert not solved(task, done, wrong)

    for damage in ("echo x > stray", "touch .hidden", "mkdir more", "ln -s . link"):
        broken = prepared(task, tmp_path / damage.split()[-1])
        bash(f"{reference}; {damage}", broken)
        assert not solved(task, broken, answer), damage
    victim = max(done.glob("*.*"))
    changes = ("printf x >> {0}", "mv {0} .. && ln -s ../{0} {0}", "rm {0}; mkdir {0}", "printf '\\0' >> {0}")
    for number, change in enumerate(changes):
        broken = prepared(task, tmp_path / f"changed{number}")
        bash(f"{reference}; {change.format(victim.name)}", broken)
        assert not solved(task, broken, answer), change


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("create", "touch {0}"),
        ("copy", "mv {0} {1}"),
        ("copy", "ln {0} {1} && printf x >> {1}"),
        ("move", "cp {0} {1}"),
        ("mkdir", "touch {0}"),
        ("mkdir", "mkdir -p {0}/inner"),
        ("append", "echo {0} > {1}"),
        ("delete", "rm *"),
    ],
)
def test_nearly_right_is_wrong(kind: str, wrong: str, tmp_path: Path) -> None:
    task = next(task for task in TASKS if task.metadata["kind"] == kind)
    names = [word for word in task.metadata["reference"].split()[1:] if word not in (">", ">>")]
    folder = prepared(task, tmp_path / "box")
    bash(wrong.format(*(names[::-1] if kind == "create" else names)), folder)
    assert not solved(task, folder)


def test_a_written_line_may_lack_its_last_newline(tmp_path: Path) -> None:
    for kind in ("create", "append"):
        task = next(task for task in TASKS if task.metadata["kind"] == kind)
        folder = prepared(task, tmp_path / kind)
        bash(task.metadata["reference"].replace("echo", "printf %s"), folder)
        assert solved(task, folder)


def generate(*arguments: str | Path) -> None:
    subprocess.run([sys.executable, GENERATOR, *map(str, arguments)], check=True, capture_output=True)


def test_the_generator_gives_the_packaged_suite_byte_by_byte(tmp_path: Path) -> None:
    generate("--out", tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == SUITE.read_bytes()
    generate("--heldout", "--out", tmp_path / "heldout.jsonl")
    assert (tmp_path / "heldout.jsonl").read_bytes() == HELDOUT.read_bytes()


def test_held_out_tasks_share_no_name_content_or_answer_with_the_suite() -> None:
    shown, held = words_of(TASKS), words_of(HELDOUT_TASKS)
    assert len(shown) > 200
    assert len(held) > 200
    assert not shown & held
    # Whatever the checks above count as a word: none of it stands anywhere in the other suite, not even in part.
    text = SUITE.read_text(encoding="utf-8")
    assert [word for word in sorted(held) if word in text] == []
    questions = {json.dumps(task.prompt) for task in TASKS}
    assert not questions & {json.dumps(task.prompt) for task in HELDOUT_TASKS}


def test_held_out_tasks_share_no_word_with_training_tasks(tmp_path: Path) -> None:
    out = tmp_path / "train.jsonl"
    generate("--split", "train", "--n", "2000", "--out", out)
    train = [Task.model_validate_json(line) for line in out.read_text().splitlines()]
    assert not words_of(train) & words_of(HELDOUT_TASKS)


def test_training_tasks_share_no_name_with_the_suite(tmp_path: Path) -> None:
    out = tmp_path / "train.jsonl"
    generate("--split", "train", "--n", "2000", "--out", out)
    tasks = [Task.model_validate_json(line) for line in out.read_text().splitlines()]
    assert len({task.id for task in tasks}) == len({json.dumps(task.prompt) for task in tasks}) == 2000
    assert not names_of(tasks) & names_of(TASKS)


def names_of(tasks: list[Task]) -> set[str]:
    return {name.partition(".")[0] for task in tasks for name in task.files}


def words_of(tasks: list[Task]) -> set[str]:
    """The words of names, contents, answers and commands; numbers that answer `count` are no words."""
    found: set[str] = set()
    for task in tasks:
        reference = [part for part in task.metadata["reference"].split()[1:] if part.isalnum() or "." in part]
        text = [*task.files, *map(str, task.files.values()), task.metadata["answer"], *reference]
        found.update(word for part in text for word in part.replace(".", " ").split())
    return {word for word in found if word.isalpha()} - {"txt", "log", "csv", "md", "dat"}
