"""Runs verl's trainer for a pipeline, and writes down what it does while it does it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from uni_agent.errors import ConfigError, boundary
from uni_agent.store.run import RunStore
from uni_agent.training.board import StepBoard
from uni_agent.training.command import VerlCommand, process_environment
from uni_agent.training.record import JournalCollector, StepTail

_POLL_SECONDS = 0.5
_GRACE = (30.0, 15.0)
"""Seconds after SIGINT, then after SIGTERM, before the next stronger signal."""
_TAIL_BYTES = 6000


@dataclass(slots=True)
class TrainingRun:
    """One run of the trainer, from its start to its end. With `resumed` it goes on with what is in the run's folder."""

    command: VerlCommand
    store: RunStore
    board: StepBoard
    resumed: bool = False
    _collector: JournalCollector | None = None
    _shown: StepTail | None = None

    async def run(self) -> int:
        """Run the trainer; its exit code. Cancellation stops it first, with all of its processes.

        Whatever ends it, what its workers recorded is in the store afterwards. Raises ConfigError when it cannot be
        started, StoreError when the store cannot be written.
        """
        folders = self.command.folders
        folders.journal.mkdir(parents=True, exist_ok=True)
        # A file for each start: those of before may hold lines that nobody read before the run was cut off.
        files = sorted({*folders.verl.glob("metrics-*.jsonl"), self.command.metrics})
        self._collector = JournalCollector(folders.journal, self.store, [StepTail(file) for file in files])
        if self.resumed:
            await asyncio.to_thread(self._collector.rewind, saved_step(folders.checkpoints))
        self._shown = StepTail(self.command.metrics)
        process = self._start(folders.log)
        try:
            while process.poll() is None:
                await self._poll()
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            stopping = asyncio.ensure_future(self._settle(process))
            cancelled: asyncio.CancelledError | None = None
            while not stopping.done():
                try:
                    await asyncio.shield(stopping)
                except asyncio.CancelledError as error:
                    cancelled = error
            if cancelled is not None:
                raise cancelled
            stopping.result()
        return 1 if process.returncode is None else process.returncode

    def _start(self, log: Path) -> subprocess.Popen[bytes]:
        with boundary(ConfigError, "train: the trainer cannot be started"), log.open("ab") as out:
            return subprocess.Popen(
                self.command.argv,
                env=process_environment(self.command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C goes to us alone: we decide how the trainer ends
            )

    async def _settle(self, process: subprocess.Popen[bytes]) -> None:
        """See the trainer gone, then write down the rest."""
        await stop(process)
        await self._poll()
        if self._collector is not None:
            await asyncio.to_thread(self._collector.close)

    async def _poll(self) -> None:
        collector, shown = self._collector, self._shown
        if collector is None or shown is None:
            return
        await asyncio.to_thread(collector.poll)
        for step in await asyncio.to_thread(shown.poll):
            self.board.step(step)


async def stop(process: subprocess.Popen[bytes]) -> None:
    """End the trainer and everything it started: asked first, then told, then killed."""
    for number, seconds in zip((signal.SIGINT, signal.SIGTERM), _GRACE, strict=True):
        if process.poll() is not None:
            break
        _signal(process, number)
        await _wait(process, seconds)
    _signal(process, signal.SIGKILL)  # what it left behind in its session, too
    await _wait(process, _GRACE[1])  # one that hangs in the kernel is not waited for without end


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


async def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        await asyncio.to_thread(process.wait, seconds)


def last_words(log: Path) -> str:
    """The end of what the trainer printed, for the message about its failure."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _TAIL_BYTES))
        return file.read().decode("utf-8", "replace").strip()
    return ""


def saved_step(checkpoints: Path) -> int:
    """The step of verl's newest checkpoint, 0 without one: where a resumed run goes on."""
    with contextlib.suppress(OSError, ValueError):
        step = int((checkpoints / "latest_checkpointed_iteration.txt").read_text(encoding="utf-8"))
        return step if (checkpoints / f"global_step_{step}").is_dir() else 0
    return 0


def latest_policy(checkpoints: Path) -> Path | None:
    """The newest checkpoint's model folder, which an engine serves as it is; None when nothing was saved.

    A folder that was cut off while it was written, or that has no weights, is none.
    """
    saved = saved_step(checkpoints)
    found = [
        path
        for path in checkpoints.glob("global_step_*/actor/huggingface")
        if int(path.parts[-3].rpartition("_")[2]) <= saved and any(path.glob("*.safetensors"))
    ]
    return max(found, key=lambda path: int(path.parts[-3].rpartition("_")[2]), default=None)
