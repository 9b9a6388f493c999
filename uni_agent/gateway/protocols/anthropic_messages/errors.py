"""Errors as Anthropic's API writes them.

What Claude Code 2.1.332 does with a status was measured: 401, 403 and 410 end it at the first request when
`x-should-retry` is false (401 is tried again without it), 400 is sent six times at once, each with one beta less, 404
is asked again without streaming and reported as an unknown model, 413 is reported as too many attachments, 429, 5xx
and 529 are tried for three minutes. So a session that is over answers 410: one request, and the message is shown as
it is.
"""

from __future__ import annotations

from typing import Any

from uni_agent.gateway.errors import ErrorKind, GatewayError

_INVALID = "invalid_request_error"
_TYPES: dict[ErrorKind, str] = {
    ErrorKind.INVALID_REQUEST: _INVALID,
    ErrorKind.UNSUPPORTED: _INVALID,
    ErrorKind.CONTEXT_LENGTH: _INVALID,
    ErrorKind.AUTHENTICATION: "authentication_error",
    ErrorKind.PERMISSION: "permission_error",
    ErrorKind.NOT_FOUND: "not_found_error",
    ErrorKind.GONE: "not_found_error",
    ErrorKind.TOO_LARGE: "request_too_large",
    ErrorKind.RATE_LIMITED: "rate_limit_error",
    ErrorKind.BUDGET: "rate_limit_error",
    ErrorKind.SERVER_ERROR: "api_error",
    ErrorKind.ENGINE: "api_error",
    ErrorKind.OVERLOADED: "overloaded_error",
    ErrorKind.TIMEOUT: "timeout_error",
}
_OVERLOADED = 529


def error_status(error: GatewayError) -> int:
    """The HTTP status: the error's own, but 529 for an overload."""
    return _OVERLOADED if error.kind is ErrorKind.OVERLOADED else error.status


def error_headers(error: GatewayError) -> dict[str, str]:
    """The error's own headers; a wrong key is not worth a retry."""
    headers = error.headers
    if error.kind is ErrorKind.AUTHENTICATION:
        headers["x-should-retry"] = "false"
    return headers


def error_body(error: GatewayError) -> dict[str, Any]:
    """`{"type": "error", "error": {type, message}, "request_id"}`.

    `error.details` is there when the error's details hold an `error_code`: SDKs choose the exception by it.
    `request_id` is the one of the details, else null.
    """
    inner: dict[str, Any] = {"type": _TYPES[error.kind], "message": _message(error)}
    details = {key: value for key, value in error.details.items() if key != "request_id"}
    if isinstance(details.get("error_code"), str):
        inner["details"] = details
    return {"type": "error", "error": inner, "request_id": error.details.get("request_id")}


def thread_unsupported() -> GatewayError:
    """Conversations are not held for the client.

    With exactly these details the SDK sends its whole history instead; any other refusal ends the agent, and answering
    would lose the conversation.
    """
    return GatewayError(
        ErrorKind.UNSUPPORTED,
        "thread: conversations are not kept here; send the whole history without `thread`",
        param="thread",
        details={"error_code": "thread_unsupported_request", "unsupported": ["thread"]},
    )


def _message(error: GatewayError) -> str:
    """For a full window Anthropic's own sentence: clients look for its words before they compact."""
    if error.kind is not ErrorKind.CONTEXT_LENGTH:
        return error.message
    used, limit = error.details.get("prompt_tokens"), error.details.get("limit")
    if used is None or limit is None:
        return f"prompt is too long: {error.message}"
    return f"prompt is too long: {used} tokens > {limit} maximum"
