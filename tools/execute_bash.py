"""`execute_bash`: the agent's shell."""

from __future__ import annotations

from uni_agent.tools.base import AbstractTool, Arguments


class ExecuteBashArguments(Arguments):
    """Arguments of `execute_bash`."""

    command: str
    """The bash command to execute. Several commands can be joined with `&&`, `;` or newlines."""


class ExecuteBash(AbstractTool):
    """Runs the command as it is in the agent's shell session."""

    name = "execute_bash"
    description = """
        Execute a bash command in the terminal.
        * The shell is one session: the current directory, variables and functions last from call to call.
        * A command that does not end by itself (a server, a watcher) has to run in the background with its output in \
a file, e.g. `python3 app.py > server.log 2>&1 &`.
        * Standard input is empty: commands that ask questions need their own options to go on (`-y`, `--no-pager`).
    """

    Arguments = ExecuteBashArguments

    def command(self, arguments: ExecuteBashArguments) -> str:
        """The command, unchanged: it is meant to be shell."""
        return arguments.command
