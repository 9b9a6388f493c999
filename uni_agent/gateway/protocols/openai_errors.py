"""What both of OpenAI's APIs call an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uni_agent.gateway.errors import ErrorKind, GatewayError

_INVALID = "invalid_request_error"
_NAMES: Mapping[ErrorKind, tuple[str, str]] = {
    ErrorKind.INVALID_REQUEST: (_INVALID, "invalid_value"),
    ErrorKind.UNSUPPORTED: (_INVALID, "unsupported_value"),
    ErrorKind.CONTEXT_LENGTH: (_INVALID, "context_length_exceeded"),
    ErrorKind.AUTHENTICATION: (_INVALID, "invalid_api_key"),
    ErrorKind.PERMISSION: (_INVALID, "insufficient_permissions"),
    ErrorKind.NOT_FOUND: (_INVALID, "not_found"),
    ErrorKind.GONE: (_INVALID, "session_gone"),
    ErrorKind.TOO_LARGE: (_INVALID, "request_too_large"),
    ErrorKind.RATE_LIMITED: ("rate_limit_error", "rate_limit_exceeded"),
    ErrorKind.BUDGET: ("insufficient_quota", "insufficient_quota"),
    ErrorKind.SERVER_ERROR: ("server_error", "server_error"),
    ErrorKind.ENGINE: ("server_error", "engine_error"),
    ErrorKind.OVERLOADED: ("server_error", "overloaded"),
    ErrorKind.TIMEOUT: ("server_error", "timeout"),
}
"""Kind → `type` and `code`."""


def openai_error(error: GatewayError, message: str) -> dict[str, Any]:
    """`{"error": {message, type, param, code}}`; `param` is null for an error that names none."""
    kind, code = _NAMES[error.kind]
    return {"error": {"message": message, "type": kind, "param": error.param or None, "code": code}}
