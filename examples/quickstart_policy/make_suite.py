"""Write the shell-basics suite: 60 held-out tasks by default, or any number of training tasks.

    python examples/quickstart_policy/make_suite.py
    python examples/quickstart_policy/make_suite.py --split train --n 2000 --out shell_train.jsonl

The same arguments give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

from world import KINDS, SYSTEM, ShellTask, Split, check_command, make_task

SUITE = Path(__file__).resolve().parents[2] / "uni_agent" / "data" / "suites" / "shell_basics.jsonl"


def task_record(task: ShellTask, task_id: str) -> dict[str, Any]:
    """The task as a line of a task file."""
    return {
        "id": task_id,
        "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task.question}],
        "files": task.files,
        "metadata": {"kind": task.kind, "reference": task.reference, "answer": task.answer},
        "overrides": {"reward": {"type": "command", "command": check_command(task)}},
    }


def suite(n: int, split: Split, seed: int) -> list[dict[str, Any]]:
    """`n` task records, the kinds in turn. No question comes twice."""
    rng = random.Random(f"{split}-{seed}")
    records: list[dict[str, Any]] = []
    questions: set[str] = set()
    prefix = "shell-basics" if split == "test" else "shell-train"
    width = max(2, len(str(n)))
    while len(records) < n:
        task = make_task(rng, KINDS[len(records) % len(KINDS)], split)
        if task.question in questions:
            continue
        questions.add(task.question)
        records.append(task_record(task, f"{prefix}-{len(records) + 1:0{width}}-{task.kind}"))
    return records


def main() -> None:
    """Write the file that the arguments ask for and say where it is."""
    parser = argparse.ArgumentParser(description="Write shell tasks with programmatic checks.")
    parser.add_argument("--n", type=int, default=60, help="how many tasks")
    parser.add_argument("--split", choices=("test", "train"), default="test", help="which words name the files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where to write; default for the test split: the packaged suite")
    options = parser.parse_args()
    if options.out is None and options.split == "train":
        parser.error("--out is needed for the train split")
    out: Path = options.out or SUITE
    records = suite(options.n, options.split, options.seed)
    out.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    print(f"{len(records)} tasks written to {out}")


if __name__ == "__main__":
    main()
