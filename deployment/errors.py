"""Errors that a runtime raises through SWE-ReX's interface, with what SWE-ReX's own leave out."""

from __future__ import annotations

from swerex.exceptions import CommandTimeoutError, DeploymentStartupError, SwerexException


class CommandTimedOut(CommandTimeoutError):
    """A command ran past its timeout and was ended; `output` is what it had printed until then.

    Raised by a session, it promises that the session is kept. `omitted` counts bytes cut from the middle of `output`.
    """

    def __init__(self, message: str, *, output: str = "", omitted: int = 0) -> None:
        super().__init__(message)
        self.output = output
        self.omitted = omitted


class ShellExited(SwerexException, RuntimeError):
    """The session's shell ended with `exit_code` (128 + signal when killed); the session is closed.

    `output` is what was printed until then, `omitted` counts bytes cut from its middle. `timed_out` says that the shell
    was killed because its command could not be ended otherwise. Creating the session again gives a fresh shell.
    """

    def __init__(
        self, message: str, *, exit_code: int, output: str = "", omitted: int = 0, timed_out: bool = False
    ) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.output = output
        self.omitted = omitted
        self.timed_out = timed_out


class ProviderBusyError(DeploymentStartupError):
    """The backend takes no new sandbox for now (429, a quota): the start is worth repeating later."""
