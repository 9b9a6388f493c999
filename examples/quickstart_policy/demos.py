"""Demonstrations for the quickstart policy: episodes in real bash, most of them wrong on purpose.

The mix makes a policy that knows the right command of every kind but seldom picks it, so that reinforcement learning
has something to find, and whose failures differ: wrong commands, unreadable calls, prose, never finishing.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from world import KINDS, SYSTEM, ShellTask, make_task

from uni_agent.interaction.observation import EMPTY_OUTPUT, format_hint

TOOLS = ["execute_bash", "finish"]

# Per kind: the wrong command that is shown most, then rarer ones. The first is nearly right, so it pays to leave it.
_WRONG = {
    "create": ("touch {source}", "echo {source} > {word}", "mkdir {source}"),
    "delete": ("ls {source}", "cat {source}", "rm {target}"),
    "copy": ("mv {source} {target}", "cp {target} {source}", "cp {source}"),
    "move": ("cp {source} {target}", "mv {target} {source}", "rm {source}"),
    "mkdir": ("touch {word}", "ls {word}", "mkdir"),
    "append": ("echo {word} > {source}", "cat {source}", "echo {source} >> {word}"),
    "read": ("ls {source}", "wc -l {source}", "echo {source}"),
    "count": ("cat {source}", "wc -c {source}", "ls {source}"),
}

_STYLES = {
    "direct": 0.21,  # the right command, then finish
    "look": 0.05,  # ls first
    "wrong": 0.47,  # a wrong command, then finish as if all were well
    "wander": 0.09,  # the same command again and again, never finishing
    "broken": 0.08,  # a call that is no JSON, again and again
    "prose": 0.07,  # a claim instead of a call
    "syntax": 0.03,  # a command that bash cannot parse, then the right one
}

_BROKEN_NOTES = (
    "The arguments of the tool call are not valid JSON.",
    "Invalid JSON in the tool call: Expecting ',' delimiter: line 1 column 52 (char 51)",
    "Tool call error: the call is not valid JSON (Expecting property name enclosed in double quotes).",
    "The call holds no JSON object with a name and arguments.",
)


@dataclass(frozen=True, slots=True)
class Message:
    """One piece of an episode: `tool` for observations, `user` for hints; `assistant` pieces are trained."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str


class Box:
    """A temporary directory that holds a task's files, and bash in it."""

    def __init__(self, task: ShellTask) -> None:
        shm = Path("/dev/shm")  # noqa: S108 - memory instead of disk, a private folder inside
        self.path = Path(tempfile.mkdtemp(prefix="shell-", dir=shm if shm.is_dir() else None))
        self._env = {"PATH": os.defpath, "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"}
        for name, text in task.files.items():
            (self.path / name).write_text(text, encoding="utf-8")

    def run(self, command: str, timeout: float = 5.0) -> str:
        """The observation that the interaction loop gives for `command`."""
        code, output = self.shell(command, timeout)
        if code is None:
            return f"[timed out after {timeout:g} s: the command was ended; what it printed so far is above]"
        notes = [f"[exit code: {code}]"] if code else []
        if not output.strip() and not notes:
            return EMPTY_OUTPUT
        return "\n".join(part for part in (output.rstrip("\n"), *notes) if part)

    def shell(self, command: str, timeout: float = 5.0, **env: str) -> tuple[int | None, str]:
        """Exit code (None: timed out) and merged output of `command`."""
        try:
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=self.path,
                env={**self._env, **env},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout,
                check=False,
            )
        except (subprocess.TimeoutExpired, ValueError):  # ValueError: a NUL in the command
            return None, ""
        return done.returncode, done.stdout.decode(errors="replace")

    def close(self) -> None:
        """Remove the directory."""
        shutil.rmtree(self.path, ignore_errors=True)


def bash_call(command: str) -> str:
    """The text of a call of execute_bash."""
    return _call("execute_bash", command=command)


def finish_call(answer: str) -> str:
    """The text of a call of finish."""
    return _call("finish", answer=answer)


def _call(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def demo(rng: random.Random) -> list[Message]:
    """One episode about a random training task."""
    task = make_task(rng, rng.choice(KINDS), "train")
    style = rng.choices(list(_STYLES), list(_STYLES.values()))[0]
    episode = _start(task, rng)
    box = Box(task)
    try:
        match style:
            case "direct":
                _solve(episode, box, task)
            case "look":
                _bash(episode, box, "ls")
                _solve(episode, box, task)
            case "wrong":
                _finish(episode, task, _bash(episode, box, _wrong(task, rng)))
            case "wander":
                command = rng.choice(["ls", "ls", _wrong(task, rng)])
                for _ in range(rng.randint(3, 7)):
                    _bash(episode, box, command)
            case "syntax":
                _bash(episode, box, task.reference.replace(" ", " '", 1))
                _solve(episode, box, task)
            case _:
                _fail_format(episode, box, task, rng, style)
    finally:
        box.close()
    return episode


def _start(task: ShellTask, rng: random.Random) -> list[Message]:
    user = Message("user", task.question)
    return [user] if rng.random() < 0.1 else [Message("system", SYSTEM), user]


def _bash(episode: list[Message], box: Box, command: str) -> str:
    output = box.run(command)
    episode += [Message("assistant", bash_call(command)), Message("tool", output)]
    return output


def _finish(episode: list[Message], task: ShellTask, output: str) -> None:
    words = output.split()
    answer = words[0] if task.answer and words and output != EMPTY_OUTPUT else "done"
    episode.append(Message("assistant", finish_call(answer)))


def _solve(episode: list[Message], box: Box, task: ShellTask) -> None:
    _finish(episode, task, _bash(episode, box, task.reference))


def _wrong(task: ShellTask, rng: random.Random) -> str:
    pattern = rng.choices(_WRONG[task.kind], (8, 1, 1))[0]
    return pattern.format(source=task.source, target=task.target, word=task.word)


def _fail_format(episode: list[Message], box: Box, task: ShellTask, rng: random.Random, style: str) -> None:
    text = _prose(task, rng) if style == "prose" else _broken(task, rng)
    for _ in range(rng.choice((1, 2, 3, 4, 5, 6))):
        episode.append(Message("assistant", text))
        if style == "prose":
            episode.append(Message("user", format_hint(TOOLS, cut=False, marker_seen=False)))
        elif rng.random() < 0.5:
            episode.append(Message("user", format_hint(TOOLS, cut=False, marker_seen=True)))
        else:
            episode.append(Message("tool", rng.choice(_BROKEN_NOTES)))
    if rng.random() < 0.25:
        _solve(episode, box, task)


def _broken(task: ShellTask, rng: random.Random) -> str:
    good = bash_call(task.reference)
    return rng.choice(
        (
            good.replace('"}}', "}}"),  # the string never ends
            good.replace('"}}', '"}'),  # one brace too few
            good.replace('"command": ', ""),  # a value without its key
        )
    )


def _prose(task: ShellTask, rng: random.Random) -> str:
    claims = {
        "create": "I have created {source}.",
        "delete": "I have deleted {source}.",
        "copy": "I have copied {source}.",
        "move": "I have moved {source}.",
        "mkdir": "I have made {word}.",
        "append": "I have changed {source}.",
        "read": "I cannot read {source}.",
        "count": "I cannot count {source}.",
    }
    own = claims[task.kind].format(source=task.source, word=task.word)
    return rng.choice((own, own, "I do not know how to do this."))
