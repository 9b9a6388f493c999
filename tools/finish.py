"""`finish`: ends the episode with an answer."""

from __future__ import annotations

import shlex

from uni_agent.tools.base import AbstractTool, Arguments


class FinishArguments(Arguments):
    """Arguments of `finish`."""

    answer: str
    """The final answer to the task."""


class Finish(AbstractTool):
    """Ends the episode; what is printed ends nothing, only the call does."""

    name = "finish"
    description = "Finish the task and give the final answer. Call it once, when nothing is left to do."
    ends_episode = True

    Arguments = FinishArguments

    def command(self, arguments: FinishArguments) -> str:
        """Prints the answer; `printf` is part of bash, so its length has no limit."""
        return f"printf '%s\\n' {shlex.quote(arguments.answer)}"

    def answer(self, arguments: FinishArguments) -> str:
        """The answer."""
        return arguments.answer
