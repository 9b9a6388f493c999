"""Errors as OpenAI's clients read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uni_agent.gateway.errors import ErrorKind, GatewayError

_DEFAULT_WAIT = 1.0
"""Seconds. Codex gives up at once on a 429 that names none."""

_CODES: Mapping[ErrorKind, tuple[str, str | None]] = {
    ErrorKind.INVALID_REQUEST: ("invalid_request_error", "invalid_value"),
    ErrorKind.UNSUPPORTED: ("invalid_request_error", "unsupported_value"),
    ErrorKind.CONTEXT_LENGTH: ("invalid_request_error", "context_length_exceeded"),
    ErrorKind.AUTHENTICATION: ("invalid_request_error", "invalid_api_key"),
    ErrorKind.PERMISSION: ("invalid_request_error", "insufficient_permissions"),
    ErrorKind.NOT_FOUND: ("invalid_request_error", "not_found"),
    ErrorKind.GONE: ("invalid_request_error", "session_closed"),
    ErrorKind.TOO_LARGE: ("invalid_request_error", "request_too_large"),
    ErrorKind.RATE_LIMITED: ("rate_limit_error", "rate_limit_exceeded"),
    ErrorKind.BUDGET: ("insufficient_quota", "insufficient_quota"),
    ErrorKind.SERVER_ERROR: ("server_error", "server_error"),
    ErrorKind.ENGINE: ("server_error", "server_error"),
    ErrorKind.OVERLOADED: ("server_error", "server_error"),
    ErrorKind.TIMEOUT: ("server_error", "server_error"),
}
"""The `type` and `code` of each kind."""

_FAILED: Mapping[ErrorKind, str] = {
    ErrorKind.CONTEXT_LENGTH: "context_length_exceeded",
    ErrorKind.RATE_LIMITED: "rate_limit_exceeded",
    # "server_is_overloaded" would be the truer word, but Codex does not come back after it.
    ErrorKind.OVERLOADED: "rate_limit_exceeded",
    ErrorKind.BUDGET: "insufficient_quota",
    ErrorKind.SERVER_ERROR: "server_error",
    ErrorKind.ENGINE: "server_error",
    ErrorKind.TIMEOUT: "server_error",
}
"""The `code` in response.failed. All others are `invalid_prompt`, which ends the client's attempts."""


def http_error(error: GatewayError) -> tuple[int, Mapping[str, str], dict[str, Any]]:
    """Status, headers and body.

    An unknown `previous_response_id` is a 400, as at OpenAI: it is the request that is wrong, not the route.
    """
    kind, code = _CODES[error.kind]
    status, headers = error.status, error.headers
    if error.kind is ErrorKind.RATE_LIMITED:
        headers.setdefault("Retry-After", "1")
    if error.kind is ErrorKind.NOT_FOUND and error.param == "previous_response_id":
        status, code = 400, "previous_response_not_found"
    body = {"message": message_of(error), "type": kind, "param": error.param or None, "code": code}
    return status, headers, {"error": body}


def failed_error(error: GatewayError) -> dict[str, str]:
    """The `error` of a response that failed after its stream had begun."""
    code = _FAILED.get(error.kind, "invalid_prompt")
    message = message_of(error)
    if code == "rate_limit_exceeded":
        # Codex reads the pause out of this sentence; there are no headers any more.
        message = f"{message.rstrip('. ')}. Please try again in {error.retry_after or _DEFAULT_WAIT:g}s."
    return {"code": code, "message": message}


def message_of(error: GatewayError) -> str:
    """The error's message; a full window in the words by which clients know that they must compact."""
    if error.kind is not ErrorKind.CONTEXT_LENGTH:
        return error.message
    limit, tokens = error.details.get("limit"), error.details.get("prompt_tokens")
    if limit is None or tokens is None:
        return f"Your input exceeds the context window of this model. {error.message}"
    return (
        f"Your input exceeds the context window of this model. This model's maximum context length is {limit} tokens. "
        f"However, your input has {tokens} tokens. Please shorten it and try again."
    )
