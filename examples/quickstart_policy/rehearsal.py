"""An episode without a sandbox: real bash in a temporary folder, everything else as the interaction loop does it.

The training data is made here, so a policy is trained on the very ids that a rollout of Uni-Agent shows it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from uni_agent.deployment.sandbox import CommandResult
from uni_agent.interaction.observation import format_hint, observation_text
from uni_agent.tokens.base import ParsedOutput, Renderer
from uni_agent.tools.execute_bash import ExecuteBash
from uni_agent.tools.finish import Finish
from uni_agent.tools.toolset import Toolset
from uni_agent.types import Message

TIMEOUT = 5.0
# Commands that may run here, outside any sandbox: the programs of this little world on plain names, nothing else.
_SAFE = re.compile(r"(?!.*\.\.)(?:(?:echo|rm|cp|mv|mkdir|cat|wc|ls|touch)(?= |$))[a-z0-9.\-> ']*")


def toolset() -> Toolset:
    """The two tools of the policy."""
    return Toolset([ExecuteBash(), Finish()])


class Box:
    """A temporary folder with files in it, and bash there."""

    def __init__(self, files: Mapping[str, str]) -> None:
        memory = Path("/dev/shm")  # noqa: S108 - memory instead of a disk, with a private folder inside
        self.path = Path(tempfile.mkdtemp(prefix="shell-", dir=memory if memory.is_dir() else None))
        for name, text in files.items():
            (self.path / name).write_text(text, encoding="utf-8")

    def observe(self, command: str) -> str:
        """Run a command of the policy; what the interaction loop shows for it."""
        if not _SAFE.fullmatch(command):
            return "bash: this command is not run here\n[exit code: 1]"
        code, output = self.shell(command)
        result = CommandResult(output, 124 if code is None else code, timed_out=code is None)
        return observation_text(result, limit=2000, timeout=TIMEOUT)

    def shell(self, command: str, **env: str) -> tuple[int | None, str]:
        """Exit code (None: timed out) and output of any `command`: for the graders that belong to the tasks."""
        try:
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=self.path,
                env={"PATH": os.defpath, "HOME": "/nonexistent", "LC_ALL": "C.UTF-8", **env},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None, ""
        return done.returncode, done.stdout.decode(errors="replace")

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Reply:
    """What follows an assistant turn. `answer` is None until the agent finishes, then no `messages` follow."""

    messages: list[Message]
    answer: str | None = None
    usable: bool = True


def reply_to(parsed: ParsedOutput, box: Box, tools: Toolset, *, cut: bool = False) -> Reply:
    """Carry out the calls of one turn."""
    if not parsed.tool_calls:
        hint = format_hint(tools.names, cut=cut, marker_seen=parsed.marker_seen)
        return Reply([Message("user", hint)], usable=False)
    messages: list[Message] = []
    usable = False
    for call in parsed.tool_calls:
        bound = tools.bind(call)
        if isinstance(bound, str):
            output = f"Error: {bound}"
        elif bound.ends_episode:
            return Reply([], answer=bound.answer)
        else:
            usable = True
            output = box.observe(bound.command)
        messages.append(Message("tool", output, tool_call_id=call.id, name=call.name))
    return Reply(messages, usable=usable)


@dataclass(slots=True)
class Chain:
    """The ids of one episode so far; `mask` is 1 on what the assistant said."""

    renderer: Renderer
    tools: Toolset
    history: list[Message]
    ids: list[int] = field(init=False)
    mask: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.ids = self.renderer.initial(self.history, self.tools.schemas())
        self.mask = [0] * len(self.ids)

    def say(self, ids: Sequence[int]) -> ParsedOutput:
        """Add an assistant turn by its ids."""
        parsed = self.renderer.parse(ids, self.tools.schemas())
        self.history.append(Message("assistant", parsed.content, parsed.reasoning, parsed.tool_calls))
        self._add(ids, 1)
        return parsed

    def hear(self, messages: Sequence[Message], *, cut: bool = False) -> None:
        """Add what follows an assistant turn, up to where the next one begins."""
        self._add(self.renderer.extension(self.history, messages, self.tools.schemas(), cut=cut), 0)
        self.history += messages

    def _add(self, ids: Sequence[int], mask: int) -> None:
        self.ids += ids
        self.mask += [mask] * len(ids)
