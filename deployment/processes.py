"""Processes of this machine as /proc shows them: exits, descendants, signals. Linux only."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Collection
from pathlib import Path

from uni_agent.deployment.aio import wait_readable

_PROC = Path("/proc")


def exit_code_of(returncode: int) -> int:
    """A shell's number for `returncode` as `subprocess` gives it: 128 + signal for a killed process."""
    return 128 - returncode if returncode < 0 else returncode


async def wait_process(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end of `process` without a thread; its exit code, 128 + signal when killed."""
    while (code := process.poll()) is None:
        try:
            fd = os.pidfd_open(process.pid)
        except OSError:  # old kernel, or a filter that does not know the call
            await asyncio.sleep(0.02)
            continue
        try:
            await wait_readable(fd)
        finally:
            os.close(fd)
    return exit_code_of(code)


def children_of(pid: int) -> list[int]:
    """Direct children of `pid`, those of all its threads; empty when it is gone."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - a hot path, names suffice
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_bytes().split())
    except FileNotFoundError:
        # Either it has just ended, or the kernel was built without CONFIG_PROC_CHILDREN.
        return _children_by_scan(pid) if Path(f"/proc/{pid}").exists() else found
    except ProcessLookupError:
        pass
    return found


def _children_by_scan(pid: int) -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit() and parent_of(int(entry.name)) == pid]


def parent_of(pid: int) -> int | None:
    """The parent of `pid`; None when it is gone."""
    fields = _stat_of(pid)
    return int(fields[1]) if fields else None


def state_of(pid: int) -> str:
    """The state of `pid` as one letter, `T` when it is stopped; "" when it is gone."""
    fields = _stat_of(pid)
    return fields[0].decode() if fields else ""


def _stat_of(pid: int) -> list[bytes]:
    """What follows the name in /proc/<pid>/stat; empty when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return stat.rpartition(b")")[2].split()


def descendants_of(pid: int, *, spare: Collection[int] = ()) -> list[int]:
    """All descendants of `pid`; the children in `spare` and what is below them are left out."""
    found: list[int] = []
    queue = [child for child in children_of(pid) if child not in spare]
    while queue:
        child = queue.pop()
        found.append(child)
        queue += children_of(child)
    return found


def signal_descendants(pid: int, number: int, *, spare: Collection[int] = ()) -> None:
    """Send `number` to every process group below `pid`, and to those that share the group of `pid` one by one."""
    targets = descendants_of(pid, spare=spare)
    own_group = _group_of(pid)
    spared = {own_group, os.getpgrp(), *map(_group_of, spare)}
    for group in {_group_of(target) for target in targets} - spared:
        if group is not None and group > 1:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)
    for target in targets:
        if _group_of(target) in spared:
            send_signal(target, number)


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def send_signal(pid: int, number: int) -> None:
    """Send `number` to `pid`; a process that is gone is fine. Never to 0, 1 or -1, which stand for more than one."""
    if pid <= 1:
        raise ValueError(f"{pid} is no process that may be signalled")
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def kill_tree(pid: int) -> None:
    """Kill `pid`, the group it leads, and all descendants with their groups."""
    if pid <= 1:
        raise ValueError(f"{pid} is no process that may be killed")
    # Stopped first: a shell that sees its child killed goes on with the next command before its own turn comes.
    send_signal(pid, signal.SIGSTOP)
    signal_descendants(pid, signal.SIGSTOP)
    signal_descendants(pid, signal.SIGKILL)
    if _group_of(pid) == pid:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    send_signal(pid, signal.SIGKILL)


def marked_processes(entry: bytes) -> list[int]:
    """Processes whose initial environment holds `entry` (`NAME=value`), this one left out."""
    found: list[int] = []
    for process in _PROC.iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        try:
            environment = (process / "environ").read_bytes()
        except OSError:  # gone, or another user's
            continue
        if entry in environment.split(b"\0"):
            found.append(int(process.name))
    return found
