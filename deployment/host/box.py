"""The host's end of a bubblewrap sandbox: one namespace, one launcher inside, programs started through its socket."""

from __future__ import annotations

import array
import asyncio
import contextlib
import functools
import json
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from uni_agent.deployment.aio import finish, wait_readable
from uni_agent.deployment.host.bwrap import BwrapCall, Layout, bwrap_options, mount_points
from uni_agent.deployment.host.launch import Child
from uni_agent.deployment.processes import (
    children_of,
    exit_code_of,
    kill_tree,
    parent_of,
    send_signal,
    state_of,
    wait_process,
)

_LARGE = 32 << 10
_CREDENTIALS = struct.Struct("3i")


@functools.cache
def _launcher_source() -> str:
    return Path(__file__).with_name("launcher.py").read_text()


class BoxEndedError(ConnectionError):
    """The sandbox ended while something was asked of it."""


class Box:
    """A Launcher inside bubblewrap. Everything the launcher says may be forged by the agent and is checked."""

    def __init__(
        self,
        layout: Layout,
        workdir: str,
        *,
        network: bool,
        read_only_binds: Sequence[str],
        limits: Sequence[tuple[int, int]],
    ) -> None:
        self._layout = layout
        self._mount_points = mount_points(workdir, read_only_binds)
        self._workdir = workdir
        self._network = network
        self._binds = list(read_only_binds)
        self._limits = [list(limit) for limit in limits]
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._init: int | None = None
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._children: dict[int, _BoxChild] = {}
        self._next = 1
        self.ended = "the sandbox was not started"

    async def start(self) -> None:
        """Start the namespace and wait for its launcher. Raises BoxEndedError with what bubblewrap said."""
        for name in self._mount_points:
            if (self._layout.root / name).is_symlink():
                raise BoxEndedError(f"/{name} was replaced by a link: the sandbox cannot be started again")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket = ours
        options = bwrap_options(self._layout, self._workdir, network=self._network, read_only_binds=self._binds)
        call = BwrapCall(options, _launcher_source())
        log = self._layout.folder / "bwrap.log"
        with theirs, call, log.open("wb") as stderr:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - waited for without a thread
                call.argv(str(theirs.fileno())),
                executable=call.program,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                pass_fds=(theirs.fileno(), *call.descriptors),
                start_new_session=True,
                cwd="/",
                env={},
            )
        self.ended = ""
        asyncio.get_running_loop().add_reader(ours.fileno(), self._on_events)
        try:
            launcher_pid = await self._expect(0)
        except BaseException:
            await finish(self.stop())
            raise
        self._open_init(launcher_pid)

    def _open_init(self, launcher_pid: int) -> None:
        # Process 1 of the namespace: when it dies the kernel kills the rest, and it is gone only after all of them.
        init = parent_of(launcher_pid)
        if init is not None:
            with contextlib.suppress(OSError):
                self._init = os.pidfd_open(init)

    async def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, stdin: int, stdout: int, stderr: int
    ) -> Child:
        """Start `argv` in the namespace, as the leader of a new session."""
        number = self._number()
        child = self._children[number] = _BoxChild()
        request = {"op": "spawn", "argv": list(argv), "env": dict(env), "cwd": cwd, "limits": self._limits}
        try:
            child.pid = await self._ask(number, request, [stdin, stdout, stderr])
        except BaseException:
            self._children.pop(number, None)
            raise
        return child

    async def open_file(self, path: str, *, write: bool, mode: int | None = None) -> int:
        """A descriptor of a file as the sandbox sees it, opened with the sandbox's rights."""
        return await self._ask(self._number(), {"op": "open", "path": path, "write": write, "mode": mode}, [])

    async def stop(self) -> None:
        """Kill the namespace and wait until its last process is gone."""
        self._end("the sandbox was stopped")
        process, self._process = self._process, None
        init, self._init = self._init, None
        if init is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(init, signal.SIGKILL)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(20.0):
                    await wait_readable(init)
            os.close(init)
        if process is not None:
            if init is None:
                await _kill_starting(process)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await wait_process(process)

    # ------------------------------------------------------------------------------------------ messages

    def _number(self) -> int:
        self._next += 1
        return self._next

    async def _ask(self, number: int, request: dict[str, Any], descriptors: list[int]) -> Any:
        if self.ended or self._socket is None:
            raise BoxEndedError(self.ended)
        data = json.dumps({"id": number, **request}).encode()
        memory = -1
        try:
            if len(data) > _LARGE:
                memory = os.memfd_create("request", os.MFD_CLOEXEC)
                os.write(memory, data)
                os.lseek(memory, 0, os.SEEK_SET)
                data, descriptors = b'{"op": "memory"}', [*descriptors, memory]
            await self._send(data, descriptors)
        finally:
            if memory >= 0:
                os.close(memory)
        return await self._expect(number)

    async def _send(self, data: bytes, descriptors: list[int]) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        while True:
            if self.ended or self._socket is None:
                raise BoxEndedError(self.ended)
            try:
                self._socket.sendmsg([data], rights)
                return
            except BlockingIOError:
                await asyncio.sleep(0.005)  # the launcher is behind; its queue is short
            except OSError as error:
                self._end(f"the sandbox ended: {error}")

    async def _expect(self, number: int) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            return await answer
        finally:
            self._answers.pop(number, None)

    def _on_events(self) -> None:
        while self._socket is not None:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(1 << 16, 512, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except OSError as error:
                self._end(f"the sandbox ended: {error}")
                return
            pid, descriptors = _unpack(ancillary)
            if not data:
                self._end("the sandbox ended" + self._said())
                return
            try:
                event = json.loads(data)
                self._on_event(event["event"], int(event["id"]), event, pid, descriptors)
            except (ValueError, KeyError, TypeError, AttributeError):
                self._end("the sandbox broke its launcher's protocol")
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def _on_event(self, kind: str, number: int, event: dict[str, Any], pid: int, descriptors: list[int]) -> None:
        answer, child = self._answers.get(number), self._children.get(number)
        waiting = answer is not None and not answer.done()
        if kind == "started":
            if pid <= 1:
                raise ValueError("no process id")  # signalling 0 or -1 would hit this process
            if waiting and answer:
                answer.set_result(pid)
            else:
                kill_tree(pid)  # whoever asked for it was cancelled
        elif kind == "opened" and waiting and answer:
            answer.set_result(descriptors.pop())
        elif kind == "failed":
            error = OSError(int(event["errno"]), str(event["text"])[:1000])
            if waiting and answer:
                answer.set_exception(error)
            elif child is not None:
                child.failed = error
        elif kind == "exit" and child is not None:
            child.set_code(int(event["code"]))
            del self._children[number]

    def _end(self, reason: str) -> None:
        self.ended = self.ended or reason
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(BoxEndedError(self.ended))
        for child in self._children.values():
            child.set_code(exit_code_of(-signal.SIGKILL))
        self._children.clear()

    def _said(self) -> str:
        try:
            with (self._layout.folder / "bwrap.log").open("rb") as file:
                text = file.read(1000).decode("utf-8", "replace").strip()
        except OSError:
            return ""
        return f": {text}" if text else ""


async def _kill_starting(process: subprocess.Popen[bytes]) -> None:
    """Kill what a bubblewrap that is still starting has made: without its parent it would wait for ever."""
    if process.poll() is not None:
        return
    send_signal(process.pid, signal.SIGSTOP)  # so that it makes no more
    for _ in range(200):
        if process.poll() is not None or state_of(process.pid) in ("T", "Z", ""):
            break
        await asyncio.sleep(0.005)
    for child in children_of(process.pid):
        kill_tree(child)


class _BoxChild:
    def __init__(self) -> None:
        self.pid = 0
        self.failed: OSError | None = None
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def set_code(self, code: int) -> None:
        if not self._code.done():
            self._code.set_result(code)

    async def wait(self) -> int:
        code = await asyncio.shield(self._code)
        if self.failed is not None:
            raise self.failed
        return code


def _unpack(ancillary: list[tuple[int, int, bytes]]) -> tuple[int, list[int]]:
    pid, descriptors = 0, array.array("i")
    for level, kind, payload in ancillary:
        if level != socket.SOL_SOCKET:
            continue
        if kind == socket.SCM_CREDENTIALS:
            pid = _CREDENTIALS.unpack(payload[: _CREDENTIALS.size])[0]
        elif kind == socket.SCM_RIGHTS:
            descriptors.frombytes(payload[: len(payload) - len(payload) % descriptors.itemsize])
    return pid, list(descriptors)
