"""A bash session over pipes, without a terminal: any bytes in, exact bytes out, exit codes on a channel of their own.

bash reads commands from its stdin. Each command travels in a heredoc with a random delimiter and is sourced with
stdin at /dev/null; what it prints goes to stdout. bash's original stderr becomes the control channel (fd 3, closed
for commands), where a line with the command's nonce and exit code ends it. Nothing that a command prints is ever
taken for that line.

A command that runs too long is ended from three sides: its process groups get TERM and, half a second later, KILL,
while the shell gets a private signal whose trap returns from the sourced text, so that neither the rest of the list
nor a loop in bash itself goes on, and the session survives. Only a shell that does not come back from that is killed.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import signal
from dataclasses import dataclass
from typing import Protocol

from uni_agent.deployment.aio import PipeReader, finish, read_available, write_all
from uni_agent.deployment.errors import CommandTimedOut, ShellExited
from uni_agent.deployment.output import DEFAULT_MAX_OUTPUT_BYTES, HeadTail

BASH_ARGV = ("bash", "--noprofile", "--norc")

INTERRUPT_SIGNAL = int(signal.SIGRTMAX)
"""Sent to the shell alone to abandon the running command. Programs never see it: traps are not inherited."""

# The trap leaves the sourced text. `return` ends one level at a time, so inside of functions it makes every next
# command of an outer level return too. (Raising the signal again from its own trap crashes bash 5.2.)
_RETURN = "case ${#BASH_SOURCE[@]} in 0) builtin trap - DEBUG ;; *) return 0 ;; esac"
_ABANDON = (
    f"case ${{#BASH_SOURCE[@]}} in 0) ;; 1) return 0 ;; *) builtin trap {shlex.quote(_RETURN)} DEBUG; return 0 ;; esac"
)
_PRELUDE = f"""exec 3>&2 2>&1; set -m; trap {shlex.quote(_ABANDON)} RTMAX
unset PS1 PROMPT_COMMAND HISTFILE BASH_ENV ENV; export TERM=dumb PAGER=cat GIT_PAGER=cat
"""

_GRACE = 0.5
"""Seconds between TERM and KILL."""
_LAST_RESORT = 2.0
"""Seconds after the first KILL until the shell itself is killed."""


class ShellProcess(Protocol):
    """A bash that was just launched, on this host or through something like `podman exec -i`.

    `stdin`, `stdout` and `control` (its stderr) are this side's non-blocking pipe ends; the shell closes them.
    `ordered` says that output is in `stdout` before a later write is in `control`, as with plain pipes; when False, a
    random marker on stdout tells where a command's output ends.
    """

    stdin: int
    stdout: int
    control: int
    ordered: bool

    async def wait(self) -> int:
        """The exit code, 128 + signal when killed."""
        ...

    async def started(self, pid: int) -> None:
        """`pid` is the shell's own as it sees it itself. Called once, before anything else."""
        ...

    async def mark(self) -> None:
        """Called before each command: what runs below the shell now is not part of it."""
        ...

    async def signal_command(self, number: int) -> None:
        """Signal the process groups that were started below the shell since `mark`."""
        ...

    async def signal_shell(self, number: int) -> None:
        """Signal the shell alone."""
        ...

    async def kill(self) -> None:
        """Kill the shell and what is below it; a process that is gone is fine."""
        ...


def _report(nonce: bytes, value: bytes = b"$?") -> bytes:
    return b"builtin printf '%%s %%d\\n' %s %s >&3;" % (nonce, value)


@dataclass(frozen=True, slots=True)
class ShellResult:
    """One command's output (clean text, cut in the middle by `omitted` bytes) and exit code."""

    output: str
    exit_code: int
    omitted: int


class PipeShell:
    """One session. Commands run one after another; `run` raises CommandTimedOut (session kept) or ShellExited."""

    def __init__(self, process: ShellProcess, *, max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES) -> None:
        self._process = process
        self._buffer = HeadTail(max_output_bytes)
        self._idle_limit = max_output_bytes
        self._control = bytearray()
        self._nonce = b""
        self._code: int | None = None
        self._changed = asyncio.Event()
        self._turn = asyncio.Lock()
        self._control_ended = False
        self._reader = PipeReader(process.stdout, self._on_output)
        self._marker = b""
        self._carry = b""
        self._exit: asyncio.Task[int] | None = None
        self._last_code = 0
        self.closed = False

    async def start(self, *, timeout: float = 30.0) -> None:
        """Set the shell up. Raises ShellExited when it ends instead, CommandTimedOut when it does not answer."""
        loop = asyncio.get_running_loop()
        self._exit = loop.create_task(self._process.wait(), name="shell exit")
        self._exit.add_done_callback(lambda _: self._changed.set())
        loop.add_reader(self._process.control, self._on_control)
        self._reader.begin()
        try:
            pid = await self._ask(_PRELUDE.encode(), b"$$", timeout)
        except TimeoutError as error:
            await finish(self.close())
            raise CommandTimedOut(f"the shell did not answer within {timeout:g} s") from error
        except BaseException:
            await finish(self.close())
            raise
        if pid is None:
            raise await self._exited(loop.time() + 5.0)
        await self._process.started(pid)
        self._buffer.clear()

    async def run(self, command: str, *, timeout: float | None = None) -> ShellResult:
        """Run `command` (any text, NUL characters are dropped as bash would) in the session.

        `timeout` in seconds, None for none. Raises CommandTimedOut with the output so far, ShellExited when the shell
        ended or had to be killed. A cancelled call kills the shell: nothing of it runs on.
        """
        async with self._turn:
            if self.closed:
                raise ShellExited("the shell is closed", exit_code=self._last_code)
            loop = asyncio.get_running_loop()
            deadline = None if timeout is None else loop.time() + timeout
            try:
                await self._process.mark()
                self._reader.begin()
                return await self._run(command, deadline)
            except asyncio.CancelledError:
                await finish(self.close())
                raise
            finally:
                self._buffer.clear()
                if not self.closed:  # what background programs print until then belongs to the next command
                    self._reader.begin(idle_limit=self._idle_limit)

    async def interrupt(self) -> None:
        """Ask the running command to stop, as Ctrl-C does; nothing happens between commands."""
        if self._turn.locked():
            await self._process.signal_command(signal.SIGINT)

    async def close(self) -> None:
        """Kill the shell and free its descriptors; idempotent."""
        if self.closed:
            return
        self.closed = True
        loop = asyncio.get_running_loop()
        self._reader.pause()
        loop.remove_reader(self._process.control)
        await self._process.kill()
        if self._exit is not None:
            done, _ = await asyncio.wait([self._exit], timeout=10.0)
            if not done:
                self._exit.cancel()
        for fd in (self._process.stdin, self._process.stdout, self._process.control):
            os.close(fd)

    # ------------------------------------------------------------------------------------------ one command

    async def _run(self, command: str, deadline: float | None) -> ShellResult:
        nonce = self._new_nonce()
        self._marker, self._carry = b"" if self._process.ordered else nonce, b""
        try:
            async with asyncio.timeout_at(deadline):
                await self._send(self._script(nonce, command))
                await self._answer()
        except TimeoutError:
            if self._code is None:
                raise await self._time_out() from None
        if self._code is None:
            raise await self._exited(deadline)
        self._last_code = self._code
        await self._drain()
        return ShellResult(self._buffer.text(), self._last_code, self._buffer.omitted)

    def _script(self, nonce: bytes, command: str) -> bytes:
        text = command.replace("\0", "").encode("utf-8", "replace")
        # `$?` of the last command stays visible to the next; not under `set -e`, where the subshell would end the
        # session.
        before = b"[[ $- == *e* ]] || (exit %d)\n" % self._last_code if self._last_code else b""
        marker = b"" if self._process.ordered else b" builtin printf %%s %s;" % nonce
        return (
            before
            + b". /dev/fd/9 9<<'%s' 3>&- </dev/null\n%s\n%s\n" % (nonce, text, nonce)
            + b"{ %s%s } 2>/dev/null\n" % (_report(nonce), marker)
        )

    async def _time_out(self) -> CommandTimedOut | ShellExited:
        """End the command that ran too long; the error that says what became of the session."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _GRACE + _LAST_RESORT
        number, wait_until = signal.SIGTERM, loop.time() + _GRACE
        while self._waiting and loop.time() < end:
            for each in (INTERRUPT_SIGNAL, signal.SIGCONT):
                await self._process.signal_shell(each)
            for each in (number, signal.SIGCONT):
                await self._process.signal_command(each)
            while self._waiting and (left := wait_until - loop.time()) > 0:
                await self._wait_change(left)
            number, wait_until = signal.SIGKILL, loop.time() + 0.05
        if not await self._settled():
            await self._process.kill()
            return await self._exited(loop.time() + 5.0, timed_out=True)
        self._last_code = 124
        await self._drain()
        return CommandTimedOut("the command timed out", output=self._buffer.text(), omitted=self._buffer.omitted)

    async def _settled(self) -> bool:
        """Whether the shell is back and has no interrupt pending that the next command would catch."""
        if self._code is None:
            return False
        try:
            return await self._ask(b"", b"0", 5.0) is not None
        except TimeoutError:
            return False

    async def _ask(self, script: bytes, value: bytes, timeout: float) -> int | None:
        """Run bare `script` and have `value` expanded and reported; None when the shell ended. Raises TimeoutError."""
        nonce = self._new_nonce()
        async with asyncio.timeout(timeout):
            await self._send(script + _report(nonce, value) + b"\n")
            await self._answer()
        return self._code

    async def _exited(self, deadline: float | None, *, timed_out: bool = False) -> ShellExited:
        """The error for a shell that ended, or whose control channel did: `exec` puts a program in its place."""
        assert self._exit is not None  # noqa: S101 - set by start
        if not self._exit.done():
            timeout = None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
            await asyncio.wait([self._exit], timeout=timeout)
        if not self._exit.done():
            timed_out = True
            await self._process.kill()
            await asyncio.wait([self._exit], timeout=5.0)
        self._last_code = self._exit.result() if self._exit.done() else 137
        await self._drain()
        said = bytes(self._control[-500:]).decode("utf-8", "replace").strip()
        error = ShellExited(
            f"the shell exited with code {self._last_code}" + (f": {said}" if said else ""),
            exit_code=self._last_code,
            output=self._buffer.text(),
            omitted=self._buffer.omitted,
            timed_out=timed_out,
        )
        await self.close()
        return error

    # ------------------------------------------------------------------------------------------ channels

    def _new_nonce(self) -> bytes:
        self._nonce, self._code = secrets.token_hex(16).encode(), None
        return self._nonce

    @property
    def _waiting(self) -> bool:
        return self._code is None and not self._ended

    async def _answer(self) -> None:
        while self._waiting:
            await self._wait_change()

    @property
    def _ended(self) -> bool:
        return self._control_ended or (self._exit is not None and self._exit.done())

    async def _send(self, data: bytes) -> None:
        try:
            await write_all(self._process.stdin, data)
        except (BrokenPipeError, ConnectionResetError):
            self._control_ended = True

    async def _wait_change(self, timeout: float | None = None) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            if timeout is None:
                raise

    def _on_control(self) -> None:
        data = read_available(self._process.control)
        if data is None:
            return
        if not data:
            self._control_ended = True
            asyncio.get_running_loop().remove_reader(self._process.control)
        self._control += data
        for line in bytes(self._control).split(b"\n")[:-1]:
            nonce, _, number = line.partition(b" ")
            if nonce == self._nonce and number.isdigit():
                self._code = int(number)
                self._control.clear()
        # What is left is a line still on its way, or what the launcher has to say about its failure.
        del self._control[:-4096]
        self._changed.set()

    def _on_output(self, data: bytes) -> None:
        if self._marker:
            before, found, after = (self._carry + data).partition(self._marker)
            if found:
                self._marker, self._carry, data = b"", b"", before + after
                self._changed.set()
            else:
                self._carry, data = before[-31:], before[:-31]
        self._buffer.feed(data)

    async def _drain(self) -> None:
        """Take what the command left in the pipe."""
        loop = asyncio.get_running_loop()
        limit = loop.time() + 2.0  # the command may have sent its stdout elsewhere for good
        while self._marker and not self._reader.ended and not self._ended and loop.time() < limit:
            await self._wait_change(limit - loop.time())
        self._reader.drain()
        self._buffer.feed(self._carry)
        self._marker, self._carry = b"", b""
