"""Errors that a runtime raises through SWE-ReX's interface, with what SWE-ReX's own leave out."""

from __future__ import annotations

from swerex.exceptions import CommandTimeoutError, SwerexException


class CommandTimedOut(CommandTimeoutError):
    """A command ran past its timeout and was ended; `output` is what it had printed until then."""

    def __init__(self, message: str, *, output: str = "") -> None:
        super().__init__(message)
        self.output = output


class ShellExited(SwerexException, RuntimeError):
    """The session's shell ended with `exit_code` (128 + signal when killed); the session is closed.

    `output` is what was printed until then. Creating the session again gives a fresh shell.
    """

    def __init__(self, message: str, *, exit_code: int, output: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.output = output
