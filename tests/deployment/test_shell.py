"""PipeShell by itself, launched as a container engine would: only three pipes, in no promised order."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uni_agent.deployment.errors import CommandTimedOut, ShellExited
from uni_agent.deployment.output import HeadTail, clean_text, limit_text
from uni_agent.deployment.processes import children_of, wait_process
from uni_agent.deployment.shell import BASH_ARGV, PipeShell


class RemoteLikeProcess:
    """Signals go by what runs inside; the order between stdout and control is not relied on."""

    ordered = False

    def __init__(self, *prefix: str) -> None:
        self.process = subprocess.Popen(
            [*prefix, *BASH_ARGV],
            stdin=-1,
            stdout=-1,
            stderr=-1,
            start_new_session=True,
            env={"PATH": os.environ["PATH"]},
        )
        pipes = (self.process.stdin, self.process.stdout, self.process.stderr)
        self.stdin, self.stdout, self.control = (os.dup(pipe.fileno()) for pipe in pipes if pipe is not None)
        for pipe in pipes:
            assert pipe is not None
            pipe.close()
        for fd in (self.stdin, self.stdout, self.control):
            os.set_blocking(fd, False)
        self.pid = 0

    async def wait(self) -> int:
        return await wait_process(self.process)

    async def started(self, pid: int) -> None:
        self.pid = pid

    async def mark(self) -> None:
        pass

    async def signal_command(self, number: int) -> None:
        for child in children_of(self.process.pid):
            os.killpg(child, number) if os.getpgid(child) == child else os.kill(child, number)

    async def signal_shell(self, number: int) -> None:
        os.kill(self.pid, number)

    async def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()


@pytest.fixture
async def shell() -> AsyncIterator[PipeShell]:
    shell = PipeShell(RemoteLikeProcess(), max_output_bytes=100_000)
    await shell.start()
    yield shell
    await shell.close()
    await shell.close()


async def test_only_three_pipes_are_needed(shell: PipeShell) -> None:
    for index in range(50):
        result = await shell.run(f"echo {index}; (exit {index})", timeout=30)
        assert (result.output, result.exit_code) == (f"{index}\n", index)
    assert (await shell.run("printf 'no newline'", timeout=30)).output == "no newline"
    assert (await shell.run("head -c 300000 /dev/zero | tr '\\0' a", timeout=30)).omitted == 200_000
    with pytest.raises(CommandTimedOut) as caught:
        await shell.run("echo half; sleep 99; echo AFTER", timeout=1)
    assert caught.value.output.startswith("half\n") and "AFTER" not in caught.value.output
    assert (await shell.run("echo ok", timeout=30)).output == "ok\n"


async def test_a_command_that_sends_the_output_away_for_good_still_ends(shell: PipeShell) -> None:
    assert (await shell.run("exec >/dev/null 2>&1; echo x; (exit 5)", timeout=30)).exit_code == 5
    assert (await shell.run("echo x; (exit 6)", timeout=30)).exit_code == 6


async def test_calls_queue_up(shell: PipeShell) -> None:
    results = await asyncio.gather(*(shell.run(f"sleep 0.05; echo {i}", timeout=30) for i in range(5)))
    assert [result.output for result in results] == [f"{i}\n" for i in range(5)]


async def test_every_kind_of_text_arrives_exactly(shell: PipeShell) -> None:
    text = "".join(map(chr, range(1, 0x250))) + "'\"$`\\!\u2028🎉\r\n\t"
    quoted = "'" + text.replace("'", "'\\''") + "'"
    result = await shell.run(f"printf %s {quoted}", timeout=30)
    assert result.output == text


async def test_a_launcher_that_fails_says_why() -> None:
    shell = PipeShell(RemoteLikeProcess("sh", "-c", "echo no such container >&2; exit 125"))
    with pytest.raises(ShellExited, match="no such container") as caught:
        await shell.start()
    assert caught.value.exit_code == 125 and shell.closed


async def test_a_launcher_that_hangs_is_given_up() -> None:
    shell = PipeShell(RemoteLikeProcess("sleep", "99", "#"))
    with pytest.raises((CommandTimedOut, ShellExited)):
        await shell.start(timeout=0.5)
    hanging = RemoteLikeProcess("sh", "-c", "sleep 99")
    with pytest.raises(CommandTimedOut, match=r"within 0\.5 s"):
        await PipeShell(hanging).start(timeout=0.5)
    assert hanging.process.returncode == -signal.SIGKILL


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(2, 60))
def test_head_and_tail_keep_what_they_say(chunks: list[bytes], limit: int) -> None:
    buffer = HeadTail(limit)
    for chunk in chunks:
        buffer.feed(chunk)
    whole = b"".join(chunks)
    half = limit // 2
    assert buffer.omitted == max(0, len(whole) - 2 * half)
    if not buffer.omitted:
        assert buffer.text() == whole.replace(b"\0", b"\\x00").decode("utf-8", "backslashreplace")


@given(st.text(st.characters(codec=None, categories=None), max_size=200))
def test_clean_text_is_strict_utf8(text: str) -> None:
    clean = clean_text(text)
    assert clean.encode("utf-8", "strict").decode() == clean and "\0" not in clean
    assert limit_text(text, 10_000) == (clean, 0)
