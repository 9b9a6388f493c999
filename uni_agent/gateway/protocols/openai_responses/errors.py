"""Errors as clients of the Responses API read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uni_agent.gateway.errors import ErrorKind, GatewayError
from uni_agent.gateway.protocols.openai_errors import openai_error

_DEFAULT_WAIT = 1.0
"""Seconds that Codex is told to wait when the error names none."""

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
    status, body = error.status, openai_error(error, message_of(error))
    if error.kind is ErrorKind.NOT_FOUND and error.param == "previous_response_id":
        status = 400
        body["error"]["code"] = "previous_response_not_found"
    return status, error.headers, body


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
