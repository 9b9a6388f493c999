"""How a host sandbox starts programs and opens files: the seam between isolation and everything above it."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import stat
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from uni_agent.deployment.processes import (
    children_of,
    kill_tree,
    marked_processes,
    send_signal,
    signal_descendants,
    wait_process,
)

_PRLIMIT = {
    resource.RLIMIT_AS: "as",
    resource.RLIMIT_CPU: "cpu",
    resource.RLIMIT_FSIZE: "fsize",
    resource.RLIMIT_NOFILE: "nofile",
    resource.RLIMIT_NPROC: "nproc",
}


class Child(Protocol):
    """A started program; `pid` is its process id on the host, and it leads a session of its own."""

    @property
    def pid(self) -> int:
        """The process id on the host."""
        ...

    async def wait(self) -> int:
        """The exit code, 128 + signal when killed. Raises OSError when the program could not be run."""
        ...


class Launcher(Protocol):
    """Starts programs and opens files inside one sandbox. The caller keeps the descriptors it passes in."""

    @property
    def ended(self) -> str:
        """Why the sandbox is gone; "" while it lives."""
        ...

    async def start(self) -> None:
        """Make the sandbox ready. Called again after `stop` when its launcher was lost."""
        ...

    async def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, stdin: int, stdout: int, stderr: int
    ) -> Child:
        """Start a program that leads a session of its own. Raises OSError, here or from `Child.wait`."""
        ...

    async def open_file(self, path: str, *, write: bool, mode: int | None = None) -> int:
        """A descriptor of the file, parents made when writing. Raises OSError."""
        ...

    async def stop(self) -> None:
        """End every program of the sandbox; idempotent."""
        ...


def check_regular(fd: int, path: str) -> int:
    """The size of the regular file behind `fd`. Raises IsADirectoryError or OSError for anything else, `fd` closed."""
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode):
        os.set_blocking(fd, True)
        return status.st_size
    os.close(fd)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(21, "Is a directory", path)
    raise OSError(22, "Not a regular file", path)


class DirectLauncher:
    """Plain processes of this machine: no isolation at all. They are found again by a mark in their environment."""

    def __init__(self, mark: tuple[str, str], limits: Sequence[tuple[int, int]]) -> None:
        self._mark = mark
        self._limits = limits
        self._children: set[subprocess.Popen[bytes]] = set()
        self.ended = "the sandbox was not started"

    async def start(self) -> None:
        """Nothing runs until the first program."""
        self.ended = ""

    async def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, stdin: int, stdout: int, stderr: int
    ) -> Child:
        """Start `argv` as the leader of a new session."""
        name, value = self._mark
        process = subprocess.Popen(  # noqa: ASYNC220 - waited for without a thread
            [*self._prefix(), *argv],
            env={**env, name: value},
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        self._children = {child for child in self._children if child.returncode is None} | {process}
        return _DirectChild(process)

    def _prefix(self) -> list[str]:
        return (
            ["prlimit", *(f"--{_PRLIMIT[kind]}={value}" for kind, value in self._limits), "--"] if self._limits else []
        )

    async def open_file(self, path: str, *, write: bool, mode: int | None = None) -> int:
        """Open `path` on this machine."""
        if not write:
            return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(path, flags, 0o666 if mode is None else mode)
        if mode is not None:
            os.fchmod(fd, mode)
        return fd

    async def stop(self) -> None:
        """Kill what this launcher started, what descends from it, and what carries its mark."""
        self.ended = self.ended or "the sandbox was stopped"
        entry = "=".join(self._mark).encode()
        for child in self._children:
            if child.poll() is None:
                kill_tree(child.pid)
        for _ in range(50):  # a process that forks while it is hunted needs more than one round
            marked = await asyncio.to_thread(marked_processes, entry)
            for pid in marked:
                kill_tree(pid)
            for child in self._children:
                child.poll()
            if not marked:
                return
            await asyncio.sleep(0.02)


class _DirectChild:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    async def wait(self) -> int:
        return await wait_process(self._process)


class HostShellProcess:
    """A bash on this machine for PipeShell, signalled by process id, inside a namespace or not."""

    ordered = True

    def __init__(self, child: Child, *, stdin: int, stdout: int, control: int) -> None:
        self._child = child
        self._spare: list[int] = []
        self._gone = False
        self.stdin = stdin
        self.stdout = stdout
        self.control = control

    async def wait(self) -> int:
        """The exit code."""
        code = await self._child.wait()
        self._gone = True
        return code

    async def started(self, pid: int) -> None:
        """The launcher knows the process id on the host already."""

    async def mark(self) -> None:
        """Background jobs of earlier commands are not to be signalled."""
        self._spare = children_of(self._child.pid)

    async def signal_command(self, number: int) -> None:
        """Signal the groups below the shell that were not there at `mark`."""
        signal_descendants(self._child.pid, number, spare=self._spare)

    async def signal_shell(self, number: int) -> None:
        """Signal bash."""
        send_signal(self._child.pid, number)

    async def kill(self) -> None:
        """Kill bash and everything below it, background jobs too."""
        if self._gone:  # its number may be another's by now
            return
        signal_descendants(self._child.pid, signal.SIGKILL)
        send_signal(self._child.pid, signal.SIGKILL)


async def open_shell(launcher: Launcher, argv: Sequence[str], *, env: Mapping[str, str], cwd: str) -> HostShellProcess:
    """Start `argv`, a bash, with three pipes to this process."""
    stdin_read, stdin_write = os.pipe()
    out_read, out_write = os.pipe()
    control_read, control_write = os.pipe()
    try:
        child = await launcher.spawn(argv, env=env, cwd=cwd, stdin=stdin_read, stdout=out_write, stderr=control_write)
    except BaseException:
        for fd in (stdin_write, out_read, control_read):
            os.close(fd)
        raise
    finally:
        for fd in (stdin_read, out_write, control_write):
            os.close(fd)
    for fd in (stdin_write, out_read, control_read):
        os.set_blocking(fd, False)
    return HostShellProcess(child, stdin=stdin_write, stdout=out_read, control=control_read)
