"""Runs inside a bubblewrap sandbox as its first program and starts all others there. Standard library only.

It is given the number of a SOCK_SEQPACKET descriptor and started as a bare file, so it must not
import the package. Requests are JSON objects, large ones in a memory file; descriptors travel beside them:

    {"op": "spawn", "id", "argv", "env", "cwd", "limits": [[resource, value], ...]}   with stdin, stdout, stderr
    {"op": "open", "id", "path", "write": bool, "mode": int | null}                   answered with a descriptor

Events: {"id", "event": "started" | "failed" | "exit" | "opened", ...}. `started` is sent by the new process itself,
so that the kernel tells the host its process id there. End of file on the socket ends the launcher, and with it the
sandbox.
"""

from __future__ import annotations

import array
import json
import os
import resource
import select
import signal
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes long to import
    from types import FrameType
    from typing import Any, NoReturn

# An agent's `pkill` for its own programs must not end the sandbox.
_IGNORED = (
    signal.SIGPIPE,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


def _send(sock: socket.socket, event: dict[str, Any], descriptors: list[int] | None = None) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    sock.sendmsg([json.dumps(event).encode()], rights)


def _receive(sock: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    data, ancillary, _, _ = sock.recvmsg(1 << 17, socket.CMSG_SPACE(8 * 4), socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(payload[: len(payload) - len(payload) % descriptors.itemsize])
    if not data:
        return None, []
    request, rest = json.loads(data), list(descriptors)
    if request.get("op") == "memory":
        with open(rest.pop(), "rb") as file:  # noqa: PTH123
            request = json.loads(file.read())
    return request, rest


def _child(sock: socket.socket, request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGXFSZ, *_IGNORED):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    _send(sock, {"id": request["id"], "event": "started"})
    try:
        for target, descriptor in enumerate(descriptors[:3]):
            os.dup2(descriptor, target)
        os.chdir(request["cwd"])
        for kind, value in request["limits"]:
            resource.setrlimit(kind, (value, value))
        _execute(request["argv"], request["env"])
    except OSError as error:
        _send(
            sock, {"id": request["id"], "event": "failed", "errno": error.errno, "text": os.strerror(error.errno or 0)}
        )
    except BaseException as error:  # nothing may return into the parent's loop
        _send(sock, {"id": request["id"], "event": "failed", "errno": 0, "text": repr(error)})
    os._exit(127)


def _execute(argv: list[str], env: dict[str, str]) -> None:
    """Become `argv`. `os.execvpe` would import modules in every child, which takes longer than all the rest."""
    names = (
        [argv[0]] if "/" in argv[0] else [f"{place}/{argv[0]}" for place in env.get("PATH", "/bin").split(":") if place]
    )
    refused: OSError | None = None
    for name in names:
        try:
            os.execve(name, argv, env)  # noqa: S606
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            refused = error
    raise refused or FileNotFoundError(2, "No such file or directory")


def _spawn(sock: socket.socket, request: dict[str, Any], descriptors: list[int], running: dict[int, int]) -> None:
    try:
        pid = os.fork()
    except OSError as error:
        _send(
            sock, {"id": request["id"], "event": "failed", "errno": error.errno, "text": os.strerror(error.errno or 0)}
        )
        return
    if pid == 0:
        _child(sock, request, descriptors)
    running[pid] = request["id"]


def _open(sock: socket.socket, request: dict[str, Any]) -> None:
    path = request["path"]
    try:
        if request["write"]:
            os.makedirs(os.path.dirname(path) or "/", exist_ok=True)  # noqa: PTH103, PTH120
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            mode = 0o666 if request["mode"] is None else request["mode"]
        else:
            flags, mode = os.O_RDONLY, 0
        # Not blocking: a FIFO in the way must not stop the launcher.
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, mode)
    except OSError as error:
        _send(
            sock, {"id": request["id"], "event": "failed", "errno": error.errno, "text": os.strerror(error.errno or 0)}
        )
        return
    if request["write"] and request["mode"] is not None:
        os.fchmod(descriptor, request["mode"])
    _send(sock, {"id": request["id"], "event": "opened"}, [descriptor])
    os.close(descriptor)


def _reap(sock: socket.socket, running: dict[int, int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid in running:
            code = os.waitstatus_to_exitcode(status)
            _send(sock, {"id": running.pop(pid), "event": "exit", "code": code if code >= 0 else 128 - code})


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """SIGCHLD only has to wake the loop."""


def main() -> None:
    """Serve requests until the host closes its end."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    os.umask(0o022)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _ignore)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    with open("/proc/self/comm", "w") as file:  # noqa: PTH123
        file.write("sandbox-init")
    running: dict[int, int] = {}
    _send(sock, {"id": 0, "event": "started"})
    while True:
        ready, _, _ = select.select([sock, wake_read], [], [])
        if wake_read in ready:
            os.read(wake_read, 4096)
        _reap(sock, running)
        if sock not in ready:
            continue
        request, descriptors = _receive(sock)
        if request is None:
            return
        if request["op"] == "spawn":
            _spawn(sock, request, descriptors, running)
        else:
            _open(sock, request)
        for descriptor in descriptors:
            os.close(descriptor)


if __name__ == "__main__":
    main()
