"""What the shell session does with the commands that agents really write."""

from __future__ import annotations

import asyncio
import json
import os
import time

import pytest

from tests.deployment.conftest import Start
from uni_agent.deployment import Sandbox

MARKER = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


async def test_cwd_environment_functions_and_exit_codes_last(sandbox: Sandbox) -> None:
    await sandbox.run("export A='x y'; f(){ echo \"fn $1\"; }; mkdir -p d; cd d; set -o pipefail", timeout=30)
    result = await sandbox.run('echo "$A"; f 1; basename "$PWD"; false | true', timeout=30)
    assert (result.output, result.exit_code, result.session) == ("x y\nfn 1\nd\n", 1, "kept")
    assert (await sandbox.run("echo $?", timeout=30)).output == "1\n"


async def test_stdin_is_empty(sandbox: Sandbox) -> None:
    result = await sandbox.run("cat; read x; echo rc=$?", timeout=30)
    assert (result.output, result.exit_code) == ("rc=1\n", 0)


async def test_no_terminal_accident_changes_the_text(sandbox: Sandbox) -> None:
    command = (
        "cat > Makefile <<'EOF'\nall:\n\techo hi\nEOF\ncat Makefile; printf 'a\tb\\n'; echo \"wow!!\" \"hello!world\""
    )
    assert (await sandbox.run(command, timeout=30)).output == "all:\n\techo hi\na\tb\nwow!! hello!world\n"


async def test_sbx_01_a_timeout_ends_every_child_and_keeps_the_session(sandbox: Sandbox) -> None:
    await sandbox.run("cd /tmp; export KEPT=1; rm -f beat-$$", timeout=30)
    beat = "import time,os; [ (open('beat','a').write('x'), time.sleep(0.2)) for _ in range(10**6)]"
    begin = time.monotonic()
    await sandbox.run("mkdir -p beatdir; cd beatdir", timeout=30)
    result = await sandbox.run(f'echo begin; python3 -c "{beat}" | cat; echo AFTER', timeout=2)
    assert result.timed_out and result.exit_code == 124 and result.session == "kept"
    assert time.monotonic() - begin < 20
    assert result.output.startswith("begin\n") and "AFTER" not in result.output
    size = (await sandbox.run("wc -c < beat", timeout=30)).output
    await asyncio.sleep(1.0)
    assert (await sandbox.run("wc -c < beat; rm -rf /tmp/beatdir", timeout=30)).output == size
    assert (await sandbox.run("echo $KEPT $PWD", timeout=30)).output == "1 /tmp/beatdir\n"


async def test_sbx_01_a_child_that_ignores_sigterm_is_killed(sandbox: Sandbox) -> None:
    nap = f"99.{os.getpid()}"  # other test processes look for their own
    program = f"import signal,time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep({nap})"
    command = f"python3 -c '{program}'"
    result = await sandbox.run(command, timeout=3)
    assert result.timed_out and result.session == "kept" and result.output.startswith("1\n")
    assert (await sandbox.run(f"pgrep -f 'sleep[(]{nap}' || echo none", timeout=30)).output == "none\n"


@pytest.mark.parametrize(
    "command",
    [
        "while :; do :; done; echo AFTER",
        "while true; do sleep 1; done; echo AFTER",
        "f(){ while :; do :; done; }; f; echo AFTER",
        "g(){ while [[ 1 ]]; do i=$((i+1)); done; }; f(){ g; echo AFTER; }; for i in 1 2; do f; done",
        "x=$(sleep 99); echo AFTER",
        "(while :; do :; done); echo AFTER",
        "sleep 99; echo AFTER; sleep 99",
        "set -e; sleep 99; echo AFTER",
        "eval 'while :; do :; done'; echo AFTER",
    ],
)
async def test_loops_and_lists_are_abandoned_and_the_session_is_kept(sandbox: Sandbox, command: str) -> None:
    result = await sandbox.run(f"KEPT=yes; {command}", timeout=1)
    assert result.timed_out and result.session == "kept" and "AFTER" not in result.output
    assert (await sandbox.run("set +e; echo $KEPT", timeout=30)).output == "yes\n"


async def test_a_shell_that_cannot_be_interrupted_is_replaced(sandbox: Sandbox) -> None:
    result = await sandbox.run("trap '' TERM RTMAX; echo begun; while :; do :; done", timeout=1)
    assert (result.output, result.exit_code, result.timed_out, result.session) == ("begun\n", 124, True, "restarted")
    assert (await sandbox.run("echo ok", timeout=30)).output == "ok\n"


async def test_a_timeout_leaves_earlier_background_jobs_alone(sandbox: Sandbox) -> None:
    await sandbox.run("sleep 300 & echo $! > pid", timeout=30)
    assert (await sandbox.run("sleep 99", timeout=1)).timed_out
    assert (await sandbox.run("kill -0 $(cat pid) && echo alive; kill %1", timeout=30)).output.startswith("alive\n")


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("(sleep 60; echo late) &", ""),
        (
            "p=$((20000 + RANDOM % 10000)); python3 -m http.server $p >/dev/null 2>&1 & "
            "curl -s -o /dev/null --retry 30 --retry-delay 1 --retry-connrefused 127.0.0.1:$p; echo rc=$?",
            "rc=0\n",
        ),
        ("nohup sh -c 'while :; do echo noise; sleep 0.05; done' &", ""),
    ],
)
async def test_sbx_02_background_children_do_not_block(sandbox: Sandbox, command: str, output: str) -> None:
    begin = time.monotonic()
    result = await sandbox.run(command, timeout=60)
    assert time.monotonic() - begin < 40  # the child takes sixty
    assert result.exit_code == 0 and result.output.replace("noise\n", "").endswith(output)
    await asyncio.sleep(0.2)
    after = await sandbox.run("echo ok", timeout=30)
    assert after.exit_code == 0 and "ok\n" in after.output


async def test_a_flood_from_the_background_stays_bounded(sandbox: Sandbox) -> None:
    await sandbox.run("yes flood &", timeout=30)
    await asyncio.sleep(1.0)
    result = await sandbox.run("echo found-it; kill %1", timeout=30)
    assert result.exit_code == 0 and len(result.output) < 3 << 20


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (r"printf '\x96\xff\n'", "\\x96\\xff\n"),
        (r"printf 'a\0b\n'", "a\\x00b\n"),
        ("python3 -c \"import sys; sys.stdout.buffer.write(b'\\xed\\xa0\\x80')\"", "\\xed\\xa0\\x80"),
        ("echo '日本語 🎉'", "日本語 🎉\n"),
    ],
)
async def test_sbx_06_any_bytes_become_strict_utf8(sandbox: Sandbox, command: str, shown: str) -> None:
    result = await sandbox.run(command, timeout=30)
    assert (result.output, result.exit_code) == (shown, 0)


async def test_sbx_06_random_bytes_survive_a_record(sandbox: Sandbox) -> None:
    result = await sandbox.run("head -c 200 /dev/urandom", timeout=30)
    assert result.exit_code == 0
    record = json.dumps({"output": result.output}, ensure_ascii=False).encode("utf-8", "strict")
    assert json.loads(record.decode("utf-8", "strict"))["output"] == result.output


@pytest.mark.parametrize(
    ("command", "output", "code"),
    [
        ("cat <<'EOF' > a\nEOF\necho $((1+1))", "2\n", 0),
        ("cat <<'EOF' > s.sh\ncat <<'X'\nhi\nX\nEOF\nbash s.sh", "hi\n", 0),
        ("a(){ echo f; }; a", "f\n", 0),
        ("# only a comment", "", 0),
        ("", "", 0),
        ("[[ x =~ ^(a|x)$ ]] && echo m", "m\n", 0),
        ("case x in x) echo c;; esac", "c\n", 0),
        ("sleep 0.1 &\necho hi", "hi\n", 0),
        ("echo end\\", "end\n", 0),
        ("arr=(1 2); time true 2>/dev/null; echo ${arr[1]}", None, 0),
    ],
)
async def test_sbx_07_good_commands_run(sandbox: Sandbox, command: str, output: str | None, code: int) -> None:
    result = await sandbox.run(command, timeout=30)
    assert result.exit_code == code and (output is None or result.output == output)


@pytest.mark.parametrize(
    "command", ["for i in 1 2; do", "echo 'unclosed", 'echo "', "if true; then", ")", "cat <<EOF\nx"]
)
async def test_sbx_07_broken_commands_leave_the_session_usable(sandbox: Sandbox, command: str) -> None:
    result = await sandbox.run(command, timeout=30)
    assert result.session == "kept" and not result.timed_out
    if not command.startswith("cat"):  # an unfinished heredoc is a warning
        assert result.exit_code in (1, 2) and ("syntax error" in result.output or "unexpected EOF" in result.output)
    assert (await sandbox.run("echo ok", timeout=30)).output == "ok\n"


@pytest.mark.parametrize(
    ("command", "code"),
    [("echo bye; exit 3", 3), ("echo bye; set -e; false", 1), ("exec echo bye", 0), ("echo bye; kill -9 $$", 137)],
)
async def test_sbx_08_a_shell_that_ends_is_reported_and_replaced(
    isolation: str, start: Start, command: str, code: int
) -> None:
    sandbox = await start(isolation, opened={"env": {"GIVEN": "it's"}})
    await sandbox.run("cd /; export LOST=1", timeout=30)
    result = await sandbox.run(command, timeout=30)
    assert (result.output, result.exit_code, result.session, result.timed_out) == ("bye\n", code, "restarted", False)
    after = await sandbox.run('echo "ok $GIVEN $LOST"; pwd', timeout=30)
    assert (after.output, after.session) == (f"ok it's \n{sandbox.workdir}\n", "kept")


async def test_exec_of_a_long_program_is_waited_for(sandbox: Sandbox) -> None:
    result = await sandbox.run("exec sleep 99", timeout=2)
    assert (result.exit_code, result.timed_out, result.session) == (124, True, "restarted")


@pytest.mark.parametrize("explicit", [True, False])
async def test_sbx_10_start_up_files_are_explicit_and_harmless(isolation: str, start: Start, explicit: bool) -> None:
    sandbox = await start(isolation)
    home = (await sandbox.run("echo $HOME", timeout=30)).output.strip()
    bashrc = "echo WELCOME; PS1='(testbed) $ '; PROMPT_COMMAND='echo tick'; export PATH=~/env/bin:$PATH\n"
    await sandbox.write_bytes(f"{home}/.bashrc", bashrc.encode())
    await sandbox.write_bytes(f"{home}/env/bin/python", b"#!/bin/sh\n", mode=0o755)
    await sandbox.run("exit 0", timeout=30)  # a new shell must not read the file by itself
    if explicit:
        await sandbox.deployment.runtime.close_session(_close())
        await sandbox.open(startup_source=[f"{home}/.bashrc"])
    result = await sandbox.run("which python; echo done", timeout=30)
    lines = result.output.splitlines()
    assert lines[-1] == "done" and len(lines) <= 2 and (lines[0] == f"{home}/env/bin/python") == explicit
    if explicit:  # and the restart reads it again
        await sandbox.run("exit 1", timeout=30)
        assert (await sandbox.run("which python; echo done", timeout=30)).output == f"{home}/env/bin/python\ndone\n"


def _close():
    from swerex.runtime.abstract import CloseBashSessionRequest

    return CloseBashSessionRequest()


@pytest.mark.parametrize(
    ("command", "code"), [(f"grep -rn {MARKER} .", 0), (f"false && echo {MARKER}", 1), ("cat README.md", 0)]
)
async def test_sbx_11_markers_in_output_mean_nothing(sandbox: Sandbox, command: str, code: int) -> None:
    text = f"{MARKER}\nEXITCODESTART0EXITCODEEND\nSHELLPS1PREFIX\n{'0' * 32} 0\n"
    await sandbox.write_bytes("README.md", text.encode())
    result = await sandbox.run(command, timeout=30)
    assert result.exit_code == code and result.session == "kept"
    assert (await sandbox.run("cat README.md; (exit 9)", timeout=30)).output == text


async def test_sbx_13_a_cut_is_stated_and_a_log_file_is_whole(sandbox: Sandbox) -> None:
    result = await sandbox.run("seq 1 200000 | tee log", timeout=60)
    whole = "".join(f"{i}\n" for i in range(1, 200001))
    assert result.omitted > 0 and len(result.output) <= (1 << 20) + 100
    assert result.output.startswith("1\n2\n") and result.output.endswith("199999\n200000\n")
    assert f"[... {result.omitted} bytes left out ...]" in result.output
    head, tail = result.output.split(f"\n[... {result.omitted} bytes left out ...]\n")
    assert len(head) + len(tail) + result.omitted == len(whole)
    assert await sandbox.read_bytes("log") == whole.encode()


async def test_sbx_13_endless_output_stays_bounded(sandbox: Sandbox) -> None:
    result = await sandbox.run("yes", timeout=2)
    assert result.timed_out and result.session == "kept" and len(result.output) < 2 << 20 and result.omitted > 1 << 20
    assert (await sandbox.run("echo ok", timeout=30)).output == "ok\n"


async def test_commands_of_any_size(sandbox: Sandbox) -> None:
    command = "cat > big <<'EOF'\n" + ("x" * 79 + "\n") * 3840 + "EOF\nwc -c < big"
    assert (await sandbox.run(command, timeout=60)).output.strip() == str(80 * 3840)
    assert (await sandbox.execute("echo " + "a" * 300_000 + " | wc -c", timeout=60)).output.strip() == "300001"


async def test_what_a_shell_may_be_told_without_being_lost(sandbox: Sandbox) -> None:
    for command in (
        "PS1='x> '; PROMPT_COMMAND='echo PC'; PS0=y",
        "set -u",
        "set -e",
        "trap 'echo bye' EXIT",
        "ulimit -c 0",
    ):
        assert (await sandbox.run(command, timeout=30)).session == "kept"
        assert (await sandbox.run("echo ok", timeout=30)).output == "ok\n"


async def test_a_cancelled_command_is_dead_and_the_next_one_says_so(sandbox: Sandbox) -> None:
    nap = f"88.{os.getpid()}"
    task = asyncio.ensure_future(sandbox.run(f"sleep {nap}", timeout=60))
    await asyncio.sleep(1.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    result = await sandbox.run(f"pgrep -f 'sleep {nap.replace('.', '[.]')}' || echo none", timeout=30)
    assert (result.output, result.session) == ("none\n", "restarted")


async def test_a_stopped_shell_is_replaced(sandbox: Sandbox) -> None:
    result = await sandbox.run("kill -STOP $$; echo woken", timeout=2)
    assert result.timed_out and "woken" not in result.output
    assert (await sandbox.run("echo ok", timeout=30)).output == "ok\n"


async def test_execute_is_apart_from_the_session(sandbox: Sandbox) -> None:
    await sandbox.run("export ONLY_SESSION=1; cd /", timeout=30)
    result = await sandbox.execute(
        'echo "[$ONLY_SESSION] [$ADDED] $HOME"; pwd; cat; echo err >&2', timeout=30, env={"ADDED": "a b"}
    )
    home = (await sandbox.run("echo $HOME", timeout=30)).output.strip()
    assert result.output == f"[] [a b] {home}\n{sandbox.workdir}\nerr\n"


async def test_execute_ends_whole_groups_and_does_not_wait_for_the_background(sandbox: Sandbox) -> None:
    begin = time.monotonic()
    assert (await sandbox.execute("sleep 66 & echo hi", timeout=60)).output == "hi\n"
    assert time.monotonic() - begin < 20
    nap = f"77.{os.getpid()}"  # other test processes look for their own
    result = await sandbox.execute(f"echo begun; sleep {nap} | cat; echo AFTER", timeout=2)
    assert (result.output, result.exit_code, result.timed_out) == ("begun\n", 124, True)
    assert (
        await sandbox.execute(f"pgrep -f 'sleep {nap.replace('.', '[.]')}' || echo none", timeout=30)
    ).output == "none\n"


async def test_execute_reports_programs_that_cannot_run(sandbox: Sandbox) -> None:
    assert (await sandbox.execute(["no-such-program"], timeout=30)).exit_code == 127
    assert (await sandbox.execute(["/tmp"], timeout=30)).exit_code == 126
    assert (await sandbox.execute(["echo", "a  b", "$HOME"], timeout=30)).output == "a  b $HOME\n"
    with pytest.raises(ValueError, match="cannot be the name"):
        await sandbox.execute("true", timeout=30, env={"A-B": "1"})
