"""The error tree. Every error that crosses a module boundary is one of these.

    UniAgentError
    ├── ConfigError            a file, key, name or path the user can mend; the CLI exits 2
    │   └── MissingExtraError  an optional dependency is not installed
    ├── ModelError             the model endpoint or engine failed           → exit reason model_error
    │   ├── ContextLengthError the context window is full                    → token_limit
    │   └── TurnTooLongError   a model call ran past its deadline            → timeout_error
    ├── SandboxError           the sandbox failed                            → sandbox_error
    │   ├── SandboxStartError  it never came up
    │   ├── SandboxLostError   it was alive and is gone
    │   └── ShellLostError     the sandbox lives, its shell cannot be had    → terminal_not_alive
    ├── AgentError             a black-box agent crashed by itself           → agent_error
    ├── RewardError            grading failed, which says nothing of the work → reward_error
    ├── StoreError             the run's store cannot be written or read
    └── DataError              a task source holds something that is not a task

The exit reason that each class stands for is `exit_reason_of`, the only place where errors become endings.
A plug-in raises ordinary exceptions: `boundary` names the seam they crossed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from uni_agent.types import ExitReason


class UniAgentError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigError(UniAgentError, ValueError):
    """Something the user wrote is wrong; the message names the file, the key and the cure."""


class MissingExtraError(ConfigError):
    """An optional dependency is missing; the message names the extra to install."""

    def __init__(self, package: str, extra: str, needed_for: str) -> None:
        super().__init__(f"{needed_for} needs {package!r}: pip install 'uni-agent[{extra}]'")


class ModelError(UniAgentError, RuntimeError):
    """The model endpoint or the engine failed after its retries."""


class ContextLengthError(ModelError):
    """The prompt leaves no room for a single new token."""


class TurnTooLongError(ModelError, TimeoutError):
    """One model call ran past its deadline."""


class SandboxError(UniAgentError, RuntimeError):
    """The sandbox failed."""


class SandboxStartError(SandboxError):
    """The sandbox did not come up."""


class SandboxLostError(SandboxError):
    """The sandbox was alive and is gone."""


class ShellLostError(SandboxError):
    """The sandbox answers, but no shell session can be had in it."""


class AgentError(UniAgentError, RuntimeError):
    """A black-box agent crashed by itself."""


class RewardError(UniAgentError, RuntimeError):
    """Grading failed for a reason that says nothing about the agent's work."""


class StoreError(UniAgentError, RuntimeError):
    """The run's store cannot be written or read."""


class DataError(ConfigError):
    """A task source holds something that is not a task; the message names file and line."""


_EXIT_REASONS: tuple[tuple[type[BaseException], ExitReason], ...] = (
    (ContextLengthError, ExitReason.TOKEN_LIMIT),
    (TurnTooLongError, ExitReason.TIMEOUT_ERROR),
    (ModelError, ExitReason.MODEL_ERROR),
    (ShellLostError, ExitReason.TERMINAL_NOT_ALIVE),
    (SandboxError, ExitReason.SANDBOX_ERROR),
    (RewardError, ExitReason.REWARD_ERROR),
    (AgentError, ExitReason.AGENT_ERROR),
    (asyncio.CancelledError, ExitReason.CANCELLED),
)


def exit_reason_of(error: BaseException) -> ExitReason:
    """The exit reason that `error` stands for; `unknown_error` for anything outside the tree."""
    for cls, reason in _EXIT_REASONS:
        if isinstance(error, cls):
            return reason
    return ExitReason.UNKNOWN_ERROR


@contextmanager
def boundary(cls: type[UniAgentError], what: str) -> Generator[None]:
    """Turn any exception that escapes the block into `cls(what: cause)`, chained.

    Errors of this tree pass unchanged: the seam nearest to the fault has already named it. `BaseException`s that are
    not `Exception`s (cancellation, Ctrl-C) pass too.
    """
    try:
        yield
    except UniAgentError:
        raise
    except Exception as error:
        raise cls(f"{what}: {type(error).__name__}: {error}") from error
