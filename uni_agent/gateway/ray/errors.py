"""What goes wrong between the manager and its actors, and how errors cross from one to the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import uni_agent.errors
from uni_agent.errors import UniAgentError
from uni_agent.gateway.errors import ErrorKind, GatewayError


class GatewayLostError(UniAgentError, RuntimeError):
    """The gateway process of a session is gone, and the session with it. Other sessions and new ones are not affected.

    `session_id` is "" when no gateway at all could be had for a new session.
    """

    def __init__(self, message: str, session_id: str = "") -> None:
        super().__init__(message)
        self.session_id = session_id


@dataclass(frozen=True, slots=True)
class Answer:
    """What an actor answers: a value, or an error of this package as plain data, which any process can read."""

    value: Any = None
    error: str = ""
    """The name of the error's class; "" when there is none."""
    message: str = ""
    kind: str = ""
    param: str = ""
    retry_after: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def of(cls, error: UniAgentError) -> Answer:
        """The answer that raises `error`, or the nearest class that is known everywhere, in `unpack`."""
        if isinstance(error, GatewayError):
            kind, param = error.kind.value, error.param
            return cls(None, "GatewayError", error.message, kind, param, error.retry_after, error.details)
        known = next(c.__name__ for c in type(error).__mro__ if getattr(uni_agent.errors, c.__name__, None) is c)
        return cls(None, known, str(error))

    def unpack(self) -> Any:
        """The value. Raises the error."""
        if not self.error:
            return self.value
        if self.error == "GatewayError":
            raise GatewayError(
                ErrorKind(self.kind),
                self.message,
                param=self.param,
                retry_after=self.retry_after,
                details=self.details,
            )
        found = getattr(uni_agent.errors, self.error)
        raise (UniAgentError if found is uni_agent.errors.MissingExtraError else found)(self.message)
