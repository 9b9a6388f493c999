"""A writer for a test to kill: `busy_writer.py RUN_DIR` writes for ever, and prints how many rollouts are safe.

Rollout number n is sample n of task `t`, with n % 5 + 1 turns and n % 3 + 1 chains whose ids follow from n.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from tests.store.helpers import CONFIG, chain, record, turn
from uni_agent.store import RunStore
from uni_agent.types import RolloutKey


def expected_ids(number: int, index: int) -> list[int]:
    return [(number * 31 + index * 7 + position) % 150_000 for position in range(300 + number % 50)]


def write(store: RunStore, number: int) -> None:
    rollout = store.rollout_started(RolloutKey("t", number), 0)
    store.state(rollout, "running")
    turns = number % 5 + 1
    for index in range(turns):
        store.turn(rollout, turn(index, f"turn {index} of {number} " + "x" * 500))
    store.chains(rollout, [chain(sampled=expected_ids(number, index)) for index in range(number % 3 + 1)])
    store.finished(rollout, record(turns=turns, answer=str(number)))


def main(run_dir: Path) -> None:
    if RunStore.exists(run_dir):
        store = RunStore.resume(run_dir, config=CONFIG, digest="d1")
    else:
        store = RunStore.create(run_dir, name="busy", config=CONFIG, digest="d1")
    done = store.completed()
    for count in itertools.count(1):
        number = next(n for n in itertools.count(len(done)) if RolloutKey("t", n) not in done)
        write(store, number)
        done.add(RolloutKey("t", number))
        if count % 10 == 0:
            store.flush()
            print(len(done), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
