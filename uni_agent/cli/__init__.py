"""The command line: one module for each command, imported when it is the one called."""

from uni_agent.cli.main import main

__all__ = ["main"]
