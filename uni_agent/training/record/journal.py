"""What one worker process reports of its rollouts, in a file of its own that the run's process reads."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from uni_agent.errors import StoreError, boundary
from uni_agent.gateway.journal.frames import Entry, Header, entry_frame, header_frame
from uni_agent.store.base import TokenChain
from uni_agent.store.changes import ChainSnapshot
from uni_agent.store.records import RolloutRecord
from uni_agent.store.run import RolloutState
from uni_agent.store.sameness import content_hash
from uni_agent.store.text import plain
from uni_agent.training.record.buffer import LineWriter
from uni_agent.training.record.codec import chain_to_json, record_to_json, task_to_json, turn_to_json
from uni_agent.types import RolloutKey, Task, Turn

SUFFIX = ".rollouts"
MEMORY = 64 * 2**20
"""Bytes that wait for a disk that refuses; see `RolloutJournal`."""

_log = logging.getLogger(__name__)


class RolloutJournal:
    """The journal of one process. May be used from several threads; no call waits for the disk.

    Entries reach the file at once when a rollout ends, else within a second, and outlive the process then, however it
    dies. `source` names the process to people; the file's name is unique without it.

    **A full disk** does not stop rollouts: entries wait in memory and are tried again until they stand. Once `memory`
    bytes wait, turns, events and chains are left out, and how rollouts start and end is kept; once twice as much waits,
    new rollouts are left out whole. `lost` counts the entries, `lost_rollouts` the rollouts; the journal tells it, too,
    when the disk takes entries again.

    Raises StoreError when the file cannot be made.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        source: str = "worker",
        memory: int = MEMORY,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.lost = 0
        self.lost_rollouts = 0
        self._memory = memory
        self._clock = clock
        self._mutex = threading.Lock()
        self._seq = 0
        self._rollouts = 0
        self._tasks: set[str] = set()
        self._told = (0, 0)
        self._closed = False
        host = socket.gethostname()
        name = "-".join((*(_safe(part) for part in (source, host)), str(os.getpid()), uuid.uuid4().hex[:8]))
        self.path = Path(folder) / f"{name}{SUFFIX}"
        with boundary(StoreError, f"{self.path}: the journal of rollouts cannot be made"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            # Held until this process dies: so a reader on this host knows that nothing more will come.
            with suppress(OSError):  # a file system without locks
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._writer = LineWriter(self.path, fd)
        self._writer.put(header_frame(Header(uuid.uuid4().hex, 0)))
        self._add("process", "", {"name": source, "host": host, "pid": os.getpid(), "kernel": kernel_id()}, hurry=True)

    @property
    def error(self) -> OSError | None:
        """Why nothing can be written at this moment; None when all is well."""
        return self._writer.error

    def open_rollout(self, key: RolloutKey, attempt: int, task: Task, **about: Any) -> JournalLog:
        """Report that attempt `attempt` (from 0) at the rollout `key` of `task` starts.

        `about` says where it belongs: `phase` ("train" or "validation"), `step`, `uid` (the group), `session` (which of
        the group); anything else is kept, too. Never raises: what cannot be written is counted.
        """
        digest = content_hash(task)
        with self._mutex:
            self._rollouts += 1
            log = JournalLog(self, str(self._rollouts))
            if self._closed or self._full(2):
                self.lost_rollouts += 1
                log.left_out = True
                return log
            self._tell_losses()
            if digest not in self._tasks:
                self._tasks.add(digest)
                self._append("task", "", {"digest": digest, "task": task_to_json(task)})
            data = {"task": digest, "id": key.task_id, "sample": key.sample, "attempt": attempt, "about": about}
            self._append("open", log.name, data)
        return log

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until all that was reported so far is in the file; blocks, so call it from a thread. Whether it is."""
        return self._writer.flush(timeout)

    def close(self, timeout: float = 5.0) -> None:
        """Write what waits and let go of the file; idempotent, blocks up to `timeout`. What is lost is logged."""
        with self._mutex:
            if self._closed:
                return
            self._append("closed", "", {"lost": self.lost, "lost_rollouts": self.lost_rollouts})
            self._closed = True
        whole = self._writer.close(timeout)
        if not whole or self.lost or self.lost_rollouts:
            _log.error(
                "%s: %s; %d entries and %d rollouts were left out before",
                self.path,
                "everything is written" if whole else f"the last entries could not be written ({self.error})",
                self.lost,
                self.lost_rollouts,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    # ------------------------------------------------------------------------------------------ inside

    def _add(self, kind: str, rollout: str, data: dict[str, Any], *, hurry: bool = False, must: bool = False) -> bool:
        """Append an entry unless memory is full. Returns whether it was taken."""
        with self._mutex:
            if self._closed or self._full(2 if must else 1):
                self.lost += 1
                return False
            self._tell_losses()
            self._append(kind, rollout, data, hurry=hurry)
            return True

    def _append(self, kind: str, rollout: str, data: dict[str, Any], *, hurry: bool = False) -> None:
        entry = Entry(self._seq, self._clock(), kind, rollout, data)
        try:
            line = entry_frame(entry)
        except ValueError:  # bytes, arrays, endless nesting: what a tool or a plug-in left in a free field
            line = entry_frame(Entry(entry.seq, entry.time, kind, rollout, plain(data)))
        self._seq += 1
        self._writer.put(line, hurry=hurry)

    def _full(self, share: int) -> bool:
        return self._writer.waiting > share * self._memory

    def _tell_losses(self) -> None:
        losses = (self.lost, self.lost_rollouts)
        if losses != self._told and self.error is None:
            self._told = losses
            self._append("lost", "", {"lost": losses[0], "lost_rollouts": losses[1]})


class JournalLog:
    """One rollout's view of the journal; a `RolloutLog`. Nothing is reported after `finished`."""

    __slots__ = ("_done", "_journal", "left_out", "name")

    def __init__(self, journal: RolloutJournal, name: str) -> None:
        """Use `RolloutJournal.open_rollout`."""
        self.name = name
        self.left_out = False
        """Whether the journal had no room for this rollout: then nothing of it is reported."""
        self._journal = journal
        self._done = False

    def state(self, state: RolloutState) -> None:
        """The attempt moves to `state`."""
        self._report("state", {"state": state})

    def turn(self, turn: Turn) -> None:
        """A turn ended."""
        self._report("turn", turn_to_json(turn))

    def event(self, kind: str, **data: object) -> None:
        """Something worth keeping happened."""
        self._report("event", {"kind": kind, "data": plain(data)})

    def finished(self, record: RolloutRecord, chains: Sequence[TokenChain] = ()) -> None:
        """The attempt ended so, with its token chains; only the first call counts.

        Chains whose arrays do not belong together are left out, and an event names why.
        """
        if self._done:
            return
        snapshots: list[ChainSnapshot] = []
        for chain in chains:
            try:
                snapshots.append(ChainSnapshot.of(chain))
            except StoreError as error:
                self.event("chain_refused", error=str(error))
        data = {"record": record_to_json(record), "chains": [chain_to_json(chain) for chain in snapshots]}
        if not self._report("finished", data, hurry=True):
            data["chains"] = []
            self._report("finished", data, hurry=True, must=True)
        self._done = True

    def _report(self, kind: str, data: dict[str, Any], *, hurry: bool = False, must: bool = False) -> bool:
        if self._done or self.left_out:
            return True
        return self._journal._add(kind, self.name, data, hurry=hurry, must=must)  # pyright: ignore[reportPrivateUsage] - its other half


def kernel_id() -> str:
    """Names the running kernel, which containers of one host share; "" where it cannot be told."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "_", text)[:40] or "x"
