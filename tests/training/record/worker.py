"""A worker for a test to kill: `worker.py FOLDER FIRST COUNT` reports rollouts, and prints the number of each.

It prints a number when the rollout's end stands in its journal. COUNT 0 reports for ever. After COUNT rollouts it
starts one more, says `open`, and waits to be killed, or with a fourth argument closes its journal in the middle of it.
"""

from __future__ import annotations

import itertools
import sys
import time

from tests.store.helpers import chain, record, turn
from uni_agent.training.record import JournalLog, RolloutJournal
from uni_agent.types import RolloutKey, Task

TURNS = 3


def task_of(number: int) -> Task:
    return Task(id=f"t{number % 7}", prompt="go", metadata={"kind": f"k{number % 7 % 2}"})


def start(journal: RolloutJournal, number: int) -> JournalLog:
    about = {"phase": "train", "step": number // 8 + 1, "uid": f"u{number // 4}", "session": number % 4}
    return journal.open_rollout(RolloutKey(f"t{number % 7}", number), 0, task_of(number), **about)


def work(journal: RolloutJournal, number: int, *, size: int = 200) -> None:
    log = start(journal, number)
    log.state("running")
    for index in range(TURNS):
        log.turn(turn(index, f"turn {index} of {number}", "x" * size))
    log.event("note", number=number)
    log.finished(record(turns=TURNS, answer=str(number)), [chain(sampled=list(range(number % 50, number % 50 + 20)))])


def main(folder: str, first: int, count: int, *, close: bool) -> None:
    journal = RolloutJournal(folder, source=f"from-{first}")
    for number in itertools.count(first) if not count else range(first, first + count):
        work(journal, number, size=20_000)
        if number % 10 == 9 or count:
            journal.flush()
        if not count:
            time.sleep(0.005)
        print(number, flush=True)
    log = start(journal, first + count)
    log.turn(turn(0, "unfinished"))
    journal.flush()
    if close:
        journal.close()
    print("open", flush=True)
    time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), close=len(sys.argv) > 4)
