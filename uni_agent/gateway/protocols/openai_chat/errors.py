"""Errors as Chat Completions writes them."""

from __future__ import annotations

from typing import Any

from uni_agent.gateway.errors import ErrorKind, GatewayError
from uni_agent.gateway.protocols.openai_errors import openai_error


def error_body(error: GatewayError) -> dict[str, Any]:
    """`{"error": {message, type, param, code}}`; a full window is the fault of `messages`."""
    body = openai_error(error, _message(error))
    if error.kind is ErrorKind.CONTEXT_LENGTH and not error.param:
        body["error"]["param"] = "messages"
    return body


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
