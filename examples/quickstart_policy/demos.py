"""Demonstrations for the quickstart policy: episodes in real bash, most of them wrong on purpose.

The mix makes a policy that knows the right command of every kind but seldom picks it, so that reinforcement learning
has something to find, and whose failures differ: wrong commands, unreadable calls, prose, never finishing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Generator

from world import ShellTask

from uni_agent.interaction.observation import EMPTY_OUTPUT

Script = Generator[str, str, None]
"""What the assistant says, turn by turn; it is sent what it observes."""

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


def demonstration(task: ShellTask, rng: random.Random) -> Script:
    """One episode about `task`. It may end without `finish`."""
    style = rng.choices(list(_STYLES), list(_STYLES.values()))[0]
    match style:
        case "direct":
            yield from _solve(task)
        case "look":
            yield bash_call("ls")
            yield from _solve(task)
        case "wrong":
            output = yield bash_call(wrong_command(task, rng))
            yield _finish(task, output)
        case "wander":
            command = rng.choice(["ls", "ls", wrong_command(task, rng)])
            for _ in range(rng.randint(3, 7)):
                yield bash_call(command)
        case "syntax":
            yield bash_call(task.reference.replace(" ", " '", 1))
            yield from _solve(task)
        case _:
            text = prose(task, rng) if style == "prose" else broken_call(task, rng)
            for _ in range(rng.randint(1, 6)):
                yield text
            if rng.random() < 0.25:
                yield from _solve(task)


def _solve(task: ShellTask) -> Script:
    output = yield bash_call(task.reference)
    yield _finish(task, output)


def _finish(task: ShellTask, output: str) -> str:
    words = output.split()
    return finish_call(words[0] if task.answer and words and output != EMPTY_OUTPUT else "done")


def bash_call(command: str) -> str:
    """The text of a call of execute_bash."""
    return _call("execute_bash", command=command)


def finish_call(answer: str) -> str:
    """The text of a call of finish."""
    return _call("finish", answer=answer)


def _call(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def wrong_command(task: ShellTask, rng: random.Random) -> str:
    """A command that does not solve the task, most often the nearly right one."""
    pattern = rng.choices(_WRONG[task.kind], (8, 1, 1))[0]
    return pattern.format(source=task.source, target=task.target, word=task.word)


def broken_call(task: ShellTask, rng: random.Random) -> str:
    """The right command in a call that cannot be read."""
    good = bash_call(task.reference)
    return rng.choice(
        (
            good.replace('"}}', "}}"),  # the string never ends
            good.replace('"}}', '"}'),  # one brace too few
            good.replace('"command": ', ""),  # a value without its key
        )
    )


_CLAIMS = {
    "create": "I have created {source}.",
    "delete": "I have deleted {source}.",
    "copy": "I have copied {source}.",
    "move": "I have moved {source}.",
    "mkdir": "I have made {word}.",
    "append": "I have changed {source}.",
    "read": "I cannot read {source}.",
    "count": "I cannot count {source}.",
}


def prose(task: ShellTask, rng: random.Random) -> str:
    """A claim without a call."""
    own = _CLAIMS[task.kind].format(source=task.source, word=task.word)
    return rng.choice((own, own, "I do not know how to do this."))
