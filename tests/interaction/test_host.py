"""AgentEnv in a real sandbox: what the shell's own words become."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from uni_agent.deployment.base import SandboxSpec
from uni_agent.deployment.config import HostConfig
from uni_agent.deployment.start import start_sandbox
from uni_agent.interaction import AgentEnv, InteractionConfig
from uni_agent.tools.execute_bash import ExecuteBash
from uni_agent.tools.str_replace_editor import StrReplaceEditor
from uni_agent.tools.toolset import Toolset
from uni_agent.types import Repo, Task, ToolCall


@pytest.fixture
async def env(tmp_path: Path) -> AsyncGenerator[AgentEnv]:
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "a.py").write_text("def f():\n\treturn 1\n")
    sandbox = await start_sandbox(HostConfig(), SandboxSpec(name="t"))
    try:
        env = AgentEnv(sandbox, Toolset([ExecuteBash(), StrReplaceEditor()]), InteractionConfig(action_timeout=20))
        await env.setup(Task(id="t", prompt="x", repo=Repo(path=str(repo)), env={"GREETING": "hello"}))
        yield env
    finally:
        await sandbox.stop()


async def bash(env: AgentEnv, command: str) -> tuple[str, str]:
    result = (await env.run_action(ToolCall("c", "execute_bash", {"command": command}))).result
    return result.status, result.output


@pytest.mark.parametrize("command", ["for i in 1 2; do", "echo 'unclosed", "if true; then echo x; done", ")"])
async def test_what_the_shell_cannot_parse_is_a_syntax_error_and_the_session_goes_on(
    env: AgentEnv, command: str
) -> None:
    """SBX-07."""
    status, output = await bash(env, command)
    assert status == "syntax_error", output
    assert await bash(env, 'echo "$GREETING"') == ("ok", "hello")


@pytest.mark.parametrize(
    "command", ["python3 -c 'x ='", "cat missing", "echo 'bash: line 1: syntax error'; false; true"]
)
async def test_a_failing_program_is_no_syntax_error(env: AgentEnv, command: str) -> None:
    status, _ = await bash(env, command)
    assert status in ("error", "ok")


async def test_tools_still_run_after_the_agent_broke_its_path(env: AgentEnv) -> None:
    await bash(env, "export PATH=/nowhere")
    arguments = {"command": "view", "path": "a.py"}
    outcome = await env.run_action(ToolCall("c", "str_replace_editor", arguments))
    assert outcome.result.status == "ok", outcome.result.output


async def test_the_patch_is_the_agents_change_and_nothing_of_the_tools(env: AgentEnv) -> None:
    edit = {"command": "str_replace", "path": "a.py", "old_str": "\treturn 1", "new_str": "\treturn 2"}
    outcome = await env.run_action(ToolCall("c", "str_replace_editor", edit))
    assert outcome.result.status == "ok", outcome.result.output
    patch = await env.snapshot()
    assert patch is not None
    assert patch.count(b"diff --git") == 1
    assert b"-\treturn 1\n+\treturn 2\n" in patch
