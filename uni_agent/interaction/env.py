"""The environment of one episode: a sandbox prepared for a task, with the agent's tools installed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from uni_agent.deployment.sandbox import CommandResult, Sandbox
from uni_agent.errors import SandboxError
from uni_agent.interaction.config import InteractionConfig
from uni_agent.interaction.observation import is_syntax_error, observation_text
from uni_agent.interaction.prepare import base_commit, prepare, snapshot_patch
from uni_agent.tools.toolset import BoundCall, Toolset
from uni_agent.types import Task, ToolCall, ToolResult

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    """A tool result, and what it says about the episode.

    `finished`: a tool that ends the episode succeeded, with `answer`. `shell_dead`: no command can run any more.
    """

    result: ToolResult
    finished: bool = False
    answer: str = ""
    shell_dead: bool = False


class AgentEnv:
    """Runs tool calls of one episode in its sandbox. Commands run one after another in one shell session."""

    def __init__(
        self,
        sandbox: Sandbox,
        toolset: Toolset,
        config: InteractionConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sandbox = sandbox
        self.toolset = toolset
        self._config = config
        self._clock = clock
        self._base: str | None = None
        self._task: Task | None = None

    async def setup(self, task: Task) -> None:
        """Prepare the sandbox from `task`, install the tools in one round trip and open the agent's shell.

        Raises SandboxError when any of it fails.
        """
        self._task = task
        await prepare(self.sandbox, task)
        if task.repo is not None:
            self._base = await base_commit(self.sandbox)
        env = {**task.env, **self.toolset.env()}
        if self.toolset.scripts():
            tool_dir = self.sandbox.tool_install_dir
            await self.sandbox.write_tree(tool_dir, self.toolset.install_archive())
            env["UNI_AGENT_TOOL_DIR"] = tool_dir  # tools are still found after the agent has broken its PATH
            env["PATH"] = f"{tool_dir}:{task.env.get('PATH') or await self._path()}"
        await self.sandbox.open(env=env)

    async def run_action(self, call: ToolCall) -> ActionOutcome:
        """Run one tool call. Never raises for what the model wrote or the command did, only for a lost sandbox."""
        bound = self.toolset.bind(call)
        if isinstance(bound, str):
            return ActionOutcome(ToolResult(call.id, call.name, f"Error: {bound}", status="format_error"))
        started = self._clock()
        command = await self.sandbox.run(bound.command, timeout=self._config.action_timeout)
        return self._outcome(call, bound, command, self._clock() - started)

    async def snapshot(self) -> bytes | None:
        """The agent's change against the base commit; None when the task has no repository."""
        if self._base is None:
            return None
        return await snapshot_patch(self.sandbox, self._base, task=self._task)

    def _outcome(self, call: ToolCall, bound: BoundCall, command: CommandResult, seconds: float) -> ActionOutcome:
        text = observation_text(command, limit=self._config.observation_limit, timeout=self._config.action_timeout)
        if call.note:
            text = f"{text}\n[note: {call.note}]"
        status = "ok" if command.exit_code == 0 else "error"
        if command.timed_out:
            status = "timeout"
        elif is_syntax_error(command):
            status = "syntax_error"
        finished = bound.ends_episode and status == "ok"
        return ActionOutcome(
            ToolResult(call.id, call.name, text, status=status, exit_code=command.exit_code, seconds=seconds),
            finished=finished,
            answer=bound.answer if finished else "",
            shell_dead=command.session == "dead",
        )

    async def _path(self) -> str:
        """The PATH that programs of this sandbox start with."""
        result = await self.sandbox.execute('printf "%s" "$PATH"', timeout=60)
        if result.exit_code != 0:
            raise SandboxError(f"the sandbox has no working bash: {result.output[-500:]}")
        return result.output or _DEFAULT_PATH
