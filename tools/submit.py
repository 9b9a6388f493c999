"""`submit`: ends the episode with the work as it stands in the sandbox."""

from __future__ import annotations

from uni_agent.tools.base import AbstractTool, Arguments


class SubmitArguments(Arguments):
    """`submit` has no arguments."""


class Submit(AbstractTool):
    """Ends the episode; what is printed ends nothing, only the call does."""

    name = "submit"
    description = "Submit the work as it now stands in the working directory and end the task. Takes no arguments."
    ends_episode = True

    Arguments = SubmitArguments

    def command(self, arguments: SubmitArguments) -> str:
        """A word of confirmation."""
        del arguments
        return "echo Submitted."
