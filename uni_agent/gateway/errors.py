"""What goes wrong between a client and the gateway. Each protocol says it in its own dialect."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from uni_agent.errors import UniAgentError


class ErrorKind(StrEnum):
    """What a client should make of an error; its HTTP status decides whether clients try again."""

    INVALID_REQUEST = "invalid_request"
    """400: the same request can never work."""
    UNSUPPORTED = "unsupported"
    """400: asks for something that cannot be honoured; `param` names it."""
    CONTEXT_LENGTH = "context_length"
    """400: the prompt leaves no room for a token; `details` has `prompt_tokens` and `limit`."""
    AUTHENTICATION = "authentication"
    """401: no key, or one that is not known."""
    PERMISSION = "permission"
    """403: a known key that may not do this."""
    NOT_FOUND = "not_found"
    """404: no such session, response or route."""
    GONE = "gone"
    """410: the session is finalized, aborted or expired."""
    TOO_LARGE = "too_large"
    """413: the body exceeds the limit."""
    RATE_LIMITED = "rate_limited"
    """429: too much at once; `retry_after` says when to come back."""
    BUDGET = "budget"
    """429 that is not worth a retry: the session has used up its turns or tokens."""
    SERVER_ERROR = "server_error"
    """500: a fault of the gateway."""
    ENGINE = "engine"
    """502: the engine failed after its retries."""
    OVERLOADED = "overloaded"
    """503: the gateway cannot take the request now; `retry_after` says when to come back."""
    TIMEOUT = "timeout"
    """504: the engine did not answer in time."""


STATUS: Mapping[ErrorKind, int] = {
    ErrorKind.INVALID_REQUEST: 400,
    ErrorKind.UNSUPPORTED: 400,
    ErrorKind.CONTEXT_LENGTH: 400,
    ErrorKind.AUTHENTICATION: 401,
    ErrorKind.PERMISSION: 403,
    ErrorKind.NOT_FOUND: 404,
    ErrorKind.GONE: 410,
    ErrorKind.TOO_LARGE: 413,
    ErrorKind.RATE_LIMITED: 429,
    ErrorKind.BUDGET: 429,
    ErrorKind.SERVER_ERROR: 500,
    ErrorKind.ENGINE: 502,
    ErrorKind.OVERLOADED: 503,
    ErrorKind.TIMEOUT: 504,
}


class GatewayError(UniAgentError):
    """An answer that is no turn. `param` is the path in the request (`messages[3].content[0]`), or ""."""

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        param: str = "",
        retry_after: float | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.param = param
        self.retry_after = retry_after
        self.details = dict(details or {})

    @property
    def status(self) -> int:
        """The HTTP status."""
        return STATUS[self.kind]

    @property
    def headers(self) -> dict[str, str]:
        """`Retry-After` in whole seconds, and `x-should-retry` where the status alone would mislead an SDK.

        What is worth a retry always says when: some clients give up at once on an answer that names no time.
        """
        out: dict[str, str] = {}
        if self.retry_after is not None:
            out["Retry-After"] = str(max(1, round(self.retry_after)))
        elif self.kind in (ErrorKind.RATE_LIMITED, ErrorKind.OVERLOADED):
            out["Retry-After"] = "1"
        if self.kind in (ErrorKind.BUDGET, ErrorKind.GONE):
            out["x-should-retry"] = "false"
        return out


def invalid(message: str, param: str = "") -> GatewayError:
    """A request that can never work."""
    return GatewayError(ErrorKind.INVALID_REQUEST, message, param=param)


def unsupported(message: str, param: str) -> GatewayError:
    """A request for something that cannot be honoured."""
    return GatewayError(ErrorKind.UNSUPPORTED, message, param=param)
