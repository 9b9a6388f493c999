"""`uni-agent`: finds the command, runs it, and turns how it ended into an exit code.

0 done · 1 the run failed · 2 bad configuration or usage · 130 interrupted.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import importlib.util
import io
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from uni_agent.errors import ConfigError, UniAgentError

COMMANDS = {
    "run": "carry out a pipeline, as the YAML says",
    "check": "resolve and validate a YAML, print it, and say what it needs",
    "view": "open the dashboard",
    "show": "a run's numbers and trajectories, for people and scripts",
    "grade": "grade saved trajectories again, or a dataset by its reference patches",
    "export": "a run or a gateway's journals as parquet, JSON lines, SFT messages, or for verl",
    "gateway": "a stand-alone gateway in front of an engine",
    "data": "tasks of any source as verl's parquet, and back",
    "schema": "the JSON schema of the YAML, for editors",
    "list": "the parts that can be named in a YAML",
    "doctor": "what this machine offers",
}
"""Command → its help line. `uni_agent.cli.COMMAND` has `add_arguments(parser)` and `execute(args) -> exit code`."""

_LONGEST = 8000
"""Characters of a message; longer ones hold an argument that was pasted by mistake."""

FAILED, USAGE, INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` (default: this process's arguments) and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    _never_fail_to_print()
    if "" not in sys.path:
        sys.path.append(
            ""
        )  # a part named as `my_file:MyClass` is found in the current folder, and shadows nothing there
    try:
        code = _dispatch(words)
        sys.stdout.flush()
    except SystemExit as end:  # argparse: help, version, usage errors
        return end.code if isinstance(end.code, int) else USAGE
    except BrokenPipeError:
        _drop_stdout()
        return FAILED
    except (KeyboardInterrupt, UniAgentError, OSError, BaseExceptionGroup) as error:
        return _ended(error, debug="--debug" in words)
    return code


def _dispatch(words: list[str]) -> int:
    offered = {name: text for name, text in COMMANDS.items() if importlib.util.find_spec(f"uni_agent.cli.{name}")}
    name = next((word for word in words if not word.startswith("-")), None)
    parser = argparse.ArgumentParser(
        prog="uni-agent",
        description="Run language-model agents in sandboxes, and keep what they do as training data.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"uni-agent {_version()}")
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    subparsers = {
        command: commands.add_parser(command, help=text, description=_sentence(text), allow_abbrev=False)
        for command, text in offered.items()
    }
    if name is not None and name not in offered:
        print(_unknown(name, list(offered)), file=sys.stderr)
        return USAGE
    if name is None:
        parser.parse_args(words)
        parser.print_help()
        return USAGE
    module = importlib.import_module(f"uni_agent.cli.{name}")
    subparsers[name].add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    module.add_arguments(subparsers[name])
    return module.execute(parser.parse_args(words))


def _ended(error: BaseException, *, debug: bool) -> int:
    """The exit code of an error that a command let out, told on stderr. Faults of the program are raised again.

    A folder that is gone, a full disk or a name that is too long are the machine's, not the program's: one line each.
    """
    if debug:
        traceback.print_exception(error)
    leaves = list(dict.fromkeys(_leaves(error)))
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    if not all(isinstance(leaf, (UniAgentError, OSError)) for leaf in leaves):
        raise error
    if any(isinstance(leaf, OSError) and leaf.errno == errno.ENOSPC for leaf in leaves):
        _drop_stdout()  # it may hold what could not be written
    for text in dict.fromkeys(str(leaf) for leaf in leaves):
        print(text if len(text) <= _LONGEST else text[:_LONGEST] + " …", file=sys.stderr)
    return USAGE if any(isinstance(leaf, ConfigError) for leaf in leaves) else FAILED


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return [leaf for inner in group.exceptions for leaf in _leaves(inner)]
    return [error]


def _unknown(name: str, offered: list[str]) -> str:
    from uni_agent.config.suggest import closest

    near = closest(name, offered)
    hint = f"did you mean `{near}`?" if near else f"commands: {', '.join(offered)}"
    return f"uni-agent: unknown command {name!r}, {hint}"


def _version() -> str:
    from uni_agent import __version__

    return __version__


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _never_fail_to_print() -> None:
    """A terminal that cannot show a character gets its escape: a message must not end in an encoding error.

    A stream that was closed before the start is None; what is written to it goes nowhere.
    """
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - open to the program's end
    sys.stderr = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _drop_stdout() -> None:
    """Whoever read our output is gone; the interpreter must not fail again when it flushes at exit."""
    target = os.open(os.devnull, os.O_WRONLY)
    os.dup2(target, sys.stdout.fileno())
    os.close(target)
