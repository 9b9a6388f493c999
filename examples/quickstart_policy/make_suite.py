"""Write the shell-basics suite, the suite that measures learning, or any number of training tasks.

    python examples/quickstart_policy/make_suite.py
    python examples/quickstart_policy/make_suite.py --heldout
    python examples/quickstart_policy/make_suite.py --split train --n 2000 --out shell_train.jsonl

The same arguments give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Set
from pathlib import Path
from typing import Any

from world import KINDS, SYSTEM, WORDS, ShellTask, Split, check_command, make_task

SUITES = Path(__file__).resolve().parents[2] / "uni_agent" / "data" / "suites"
SUITE, HELDOUT = SUITES / "shell_basics.jsonl", SUITES / "shell_basics_heldout.jsonl"


def task_record(task: ShellTask, task_id: str) -> dict[str, Any]:
    """The task as a line of a task file."""
    return {
        "id": task_id,
        "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task.question}],
        "files": task.files,
        "metadata": {"kind": task.kind, "reference": task.reference, "answer": task.answer},
        "overrides": {"reward": {"type": "command", "command": check_command(task)}},
    }


def suite(n: int, split: Split, seed: int, *, prefix: str, avoid: Set[str] = frozenset()) -> list[dict[str, Any]]:
    """`n` task records, the kinds in turn, without the words `avoid`. No question comes twice."""
    rng = random.Random(f"{split}-{seed}")
    records: list[dict[str, Any]] = []
    questions: set[str] = set()
    width = max(2, len(str(n)))
    while len(records) < n:
        task = make_task(rng, KINDS[len(records) % len(KINDS)], split, avoid)
        if task.question in questions:
            continue
        questions.add(task.question)
        records.append(task_record(task, f"{prefix}-{len(records) + 1:0{width}}-{task.kind}"))
    return records


def words_in(path: Path) -> set[str]:
    """The words of the test split that stand anywhere in a file: names, contents, answers, commands."""
    text = path.read_text(encoding="utf-8")
    return {word for word in WORDS["test"] if word in text}


def main() -> None:
    """Write the file that the arguments ask for and say where it is."""
    parser = argparse.ArgumentParser(description="Write shell tasks with programmatic checks.")
    parser.add_argument("--n", type=int, help="how many tasks (default: 60, held out: 64)")
    parser.add_argument("--split", choices=("test", "train"), default="test", help="which words name the files")
    parser.add_argument("--heldout", action="store_true", help="tasks without any word of the packaged suite")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where to write; default for the test split: the packaged suite")
    options = parser.parse_args()
    if options.split == "train" and (options.out is None or options.heldout):
        parser.error("--split train needs --out, and takes no --heldout")
    out: Path = options.out or (HELDOUT if options.heldout else SUITE)
    if options.heldout:
        records = suite(options.n or 64, "test", options.seed, prefix="shell-heldout", avoid=words_in(SUITE))
    else:
        prefix = "shell-basics" if options.split == "test" else "shell-train"
        records = suite(options.n or 60, options.split, options.seed, prefix=prefix)
    out.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    print(f"{len(records)} tasks written to {out}")


if __name__ == "__main__":
    main()
