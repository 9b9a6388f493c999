"""Errors as OpenAI's API writes them."""

from __future__ import annotations

from typing import Any

from uni_agent.gateway.errors import ErrorKind, GatewayError

_INVALID = "invalid_request_error"
_KINDS: dict[ErrorKind, tuple[str, str | None]] = {
    ErrorKind.INVALID_REQUEST: (_INVALID, None),
    ErrorKind.UNSUPPORTED: (_INVALID, "unsupported_value"),
    ErrorKind.CONTEXT_LENGTH: (_INVALID, "context_length_exceeded"),
    ErrorKind.AUTHENTICATION: (_INVALID, "invalid_api_key"),
    ErrorKind.PERMISSION: (_INVALID, "insufficient_permissions"),
    ErrorKind.NOT_FOUND: (_INVALID, "not_found"),
    ErrorKind.GONE: (_INVALID, "session_gone"),
    ErrorKind.TOO_LARGE: (_INVALID, "request_too_large"),
    ErrorKind.RATE_LIMITED: ("rate_limit_error", "rate_limit_exceeded"),
    ErrorKind.BUDGET: ("insufficient_quota", "insufficient_quota"),
    ErrorKind.SERVER_ERROR: ("server_error", None),
    ErrorKind.ENGINE: ("server_error", "engine_error"),
    ErrorKind.OVERLOADED: ("server_error", "overloaded"),
    ErrorKind.TIMEOUT: ("server_error", "timeout"),
}
"""Kind → `type` and `code`."""


def error_body(error: GatewayError) -> dict[str, Any]:
    """`{"error": {message, type, param, code}}`."""
    kind, code = _KINDS[error.kind]
    param = error.param or ("messages" if error.kind is ErrorKind.CONTEXT_LENGTH else None)
    return {"error": {"message": _message(error), "type": kind, "param": param, "code": code}}


def error_headers(error: GatewayError) -> dict[str, str]:
    """The error's own headers; a 429 or 503 that is worth a retry always says when, for some clients give up else."""
    headers = error.headers
    if error.kind in (ErrorKind.RATE_LIMITED, ErrorKind.OVERLOADED):
        headers.setdefault("Retry-After", "1")
    return headers


def _message(error: GatewayError) -> str:
    """For a full window OpenAI's own sentence: clients look for its words before they compact."""
    if error.kind is not ErrorKind.CONTEXT_LENGTH:
        return error.message
    limit, used = error.details.get("limit"), error.details.get("prompt_tokens")
    if limit is None or used is None:
        return f"This model's maximum context length is exceeded. {error.message}"
    return (
        f"This model's maximum context length is {limit} tokens. However, your messages resulted in {used} tokens. "
        "Please reduce the length of the messages."
    )
