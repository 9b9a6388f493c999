"""How a command's ending is told apart: time-out, dead shell, dead sandbox, plain exit code."""

from __future__ import annotations

from typing import Any

import pytest
from swerex.deployment.local import LocalDeployment
from swerex.exceptions import BashIncorrectSyntaxError, CommandTimeoutError
from swerex.runtime.abstract import Action, BashAction, BashObservation, IsAliveResponse, Observation

from tests.deployment.conftest import Start
from uni_agent.deployment import DummyConfig, DummyDeployment, Sandbox, SandboxSpec
from uni_agent.deployment.dummy import DummyReply, DummyRuntime, dummy_sandbox
from uni_agent.errors import SandboxError, SandboxLostError, exit_reason_of
from uni_agent.types import ExitReason


async def opened(respond: Any = None, **options: Any) -> Sandbox:
    deployment = dummy_sandbox(respond, **options)
    await deployment.start()
    sandbox = Sandbox(deployment)
    await sandbox.open()
    return sandbox


async def test_sbx_15_minus_one_is_a_timeout() -> None:
    sandbox = await opened(replies={"test": DummyReply(exit_code=-1, output="partial")}, responder=None)
    result = await sandbox.run("test", timeout=5)
    assert (result.exit_code, result.timed_out, result.output) == (124, True, "partial")
    assert (await sandbox.execute(["test"], timeout=5)).timed_out


@pytest.mark.parametrize(
    ("code", "state"), [(137, "terminated"), (0, "timed_out"), (-1, "terminated"), (1, "timed_out")]
)
async def test_sbx_15_a_sandbox_that_ended_is_lost_whatever_the_code(code: int, state: str) -> None:
    for method in ("run", "execute"):
        sandbox = await opened(replies={"test": DummyReply(exit_code=code, sandbox_state=state)})  # type: ignore[arg-type]
        with pytest.raises(SandboxLostError, match=state) as caught:
            await (sandbox.run("test", timeout=5) if method == "run" else sandbox.execute(["test"], timeout=5))
        assert exit_reason_of(caught.value) is ExitReason.SANDBOX_ERROR and not ExitReason.SANDBOX_ERROR.trusted


async def test_sbx_15_137_in_a_living_sandbox_is_an_exit_code(start: Start) -> None:
    sandbox = await opened(replies={"test": DummyReply(exit_code=137)})
    result = await sandbox.run("test", timeout=5)
    assert (result.exit_code, result.session, result.timed_out) == (137, "kept", False)
    real = await start("bwrap")
    result = await real.run("sh -c 'kill -9 $$'", timeout=60)
    assert (result.exit_code, result.session, result.timed_out) == (137, "kept", False)


async def test_a_dead_shell_in_a_living_sandbox() -> None:
    sandbox = await opened(replies={"test": DummyReply(fault="shell_exits", exit_code=3)}, fail_sessions_after=2)
    assert (await sandbox.run("test", timeout=5)).session == "restarted"
    result = await sandbox.run("test", timeout=5)
    assert (result.exit_code, result.session) == (3, "dead")
    assert (await sandbox.run("anything", timeout=5)).session == "dead"
    assert await sandbox.is_alive()


async def test_a_timeout_keeps_output_and_session() -> None:
    def respond(command: str) -> DummyReply:
        return DummyReply(fault="timeout", output="half") if command == "test" else _echo(command)

    sandbox = await opened(respond)
    result = await sandbox.run("test", timeout=0.05)
    assert (result.output, result.exit_code, result.timed_out, result.session) == ("half", 124, True, "kept")


def _echo(command: str) -> DummyReply:
    return DummyReply(output=command.rsplit(maxsplit=1)[-1] + "\n")


class ForeignRuntime(DummyRuntime):
    """Raises what remote runtimes raise, once, and forgets the session after it when told so."""

    def __init__(self, error: Exception, *, dead: bool = False, blocked: bool = False) -> None:
        super().__init__(DummyConfig(), "/")
        self.error: Exception | None = error
        self.dead = dead
        self.blocked = blocked

    async def run_in_session(self, action: Action) -> Observation:
        if isinstance(action, BashAction) and action.command == "test" and self.error is not None:
            error, self.error = self.error, None
            if self.dead:
                self.end("gone")
            raise error
        self._check()
        if self.blocked and isinstance(action, BashAction):
            raise CommandTimeoutError("still busy")
        text = action.command.split()[-1] if isinstance(action, BashAction) else ""
        return BashObservation(output=text, exit_code=0)

    async def create_session(self, request: Any) -> Any:
        self.blocked = False
        return await super().create_session(request)


class ForeignDeployment(DummyDeployment):
    def __init__(self, runtime: ForeignRuntime) -> None:
        super().__init__(DummyConfig(), SandboxSpec(name="foreign"))
        self._runtime = runtime

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        return await self.runtime.is_alive()


@pytest.mark.parametrize(
    ("error", "blocked", "code", "timed_out", "session"),
    [
        (CommandTimeoutError("timeout after 5 seconds"), False, 124, True, "kept"),
        (CommandTimeoutError("timeout after 5 seconds"), True, 124, True, "restarted"),
        (
            BashIncorrectSyntaxError("bad", extra_info={"bash_stderr": "bash: line 1: syntax error"}),
            False,
            2,
            False,
            "kept",
        ),
        (ConnectionResetError("peer"), False, 1, False, "restarted"),
        (RuntimeError("pexpect EOF"), False, 1, False, "restarted"),
    ],
)
async def test_errors_of_foreign_runtimes(
    error: Exception, blocked: bool, code: int, timed_out: bool, session: str
) -> None:
    runtime = ForeignRuntime(error)
    sandbox = Sandbox(ForeignDeployment(runtime))
    await sandbox.open()
    runtime.blocked = blocked
    result = await sandbox.run("test", timeout=5)
    assert (result.exit_code, result.timed_out, result.session) == (code, timed_out, session)
    assert (await sandbox.run("echo again", timeout=5)).output == "again"


@pytest.mark.parametrize("error", [CommandTimeoutError("t"), ConnectionResetError("c"), RuntimeError("r")])
async def test_the_same_errors_from_a_sandbox_that_is_gone(error: Exception) -> None:
    sandbox = Sandbox(ForeignDeployment(ForeignRuntime(error, dead=True)))
    await sandbox.open()
    with pytest.raises(SandboxLostError):
        await sandbox.run("test", timeout=5)


async def test_a_lost_sandbox_is_named_in_every_call() -> None:
    sandbox = await opened()
    assert isinstance(sandbox.deployment.runtime, DummyRuntime)
    sandbox.deployment.runtime.end("evicted")
    for call in (
        sandbox.run("x", timeout=1),
        sandbox.execute("x", timeout=1),
        sandbox.read_bytes("/x"),
        sandbox.write_bytes("/x", b""),
        sandbox.write_tree("/x", b""),
        sandbox.open(),
    ):
        with pytest.raises(SandboxLostError):
            await call
    assert not await sandbox.is_alive()
    await sandbox.stop()


async def test_a_session_that_cannot_be_set_up_is_an_error(start: Start) -> None:
    sandbox = await start("bwrap")
    with pytest.raises(ValueError, match="NUL"):
        await sandbox.open(env={"A": "\0"})
    with pytest.raises(SandboxError):  # it is open already
        await sandbox.open()


async def test_swerex_own_deployment_works_too(tmp_path: Any) -> None:
    deployment = LocalDeployment()
    await deployment.start()
    sandbox = Sandbox(deployment, workdir=str(tmp_path / "w d"))
    await sandbox.open(env={"GIVEN": "a'b"})
    assert (await sandbox.run('echo "$GIVEN"; basename "$PWD"', timeout=30)).output.split() == ["a'b", "w", "d"]
    assert (await sandbox.run("for i in 1 2; do", timeout=30)).exit_code == 2
    result = await sandbox.execute('cat; echo "$ADDED $(basename "$PWD")"', timeout=30, env={"ADDED": "1"})
    assert result.output == "1 w d\n"
    assert (await sandbox.execute("sleep 60", timeout=1)).timed_out
    await sandbox.stop()
