"""Responses and errors as OpenAI's own types read them."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import Response

from tests.gateway.protocols.responses.support import (
    ADAPTER,
    BASH,
    HEAD,
    TOOLS,
    read,
    read_body,
    recordings,
    say,
    streamed,
    user,
)
from uni_agent.gateway.errors import ErrorKind, GatewayError

LS = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
EDIT = '<tool_call>\n{"name": "apply_patch", "arguments": {"input": "x"}}\n</tool_call>'


def test_openais_types_accept_the_whole_response() -> None:
    request = read(reasoning={"summary": "auto"}, include=["reasoning.encrypted_content"], tools=[BASH, TOOLS[1]])
    said = say(request, f"<think>\nhm\n</think>\n\nhi\n{LS}\n{EDIT}")
    for body in (ADAPTER.response(request, [said.turn]), streamed(request, said)[-1]["response"]):
        response = Response.model_validate(body, strict=True)
        assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "custom_tool_call"]
        assert response.output_text == "hi" and response.status == "completed" and response.error is None
        assert response.usage and response.usage.input_tokens_details.cached_tokens == 3
        assert response.usage.output_tokens_details.reasoning_tokens == 2


def test_a_response_repeats_what_was_asked() -> None:
    asked: dict[str, Any] = {
        "instructions": "Be brief.",
        "max_output_tokens": 64,
        "temperature": 0.5,
        "top_p": 0.9,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "metadata": {"k": "v"},
        "previous_response_id": "resp_x",
        "prompt_cache_key": "pk",
        "reasoning": {"effort": "low", "summary": "auto"},
        "truncation": "auto",
        "store": False,
        "tools": [{**BASH, "description": "run"}],
        "text": {"format": {"type": "json_object"}},
    }
    request = read(**asked)
    response = ADAPTER.response(request, [say(request, "{}").turn])
    assert {key: response[key] for key in asked} == asked
    bare = read_body({"model": "m", "input": "go"})
    response = ADAPTER.response(bare, [say(bare, "hi").turn])
    assert response["tools"] == [] and response["tool_choice"] == "auto" and response["parallel_tool_calls"] is True
    assert response["text"] == {"format": {"type": "text"}} and response["temperature"] is None
    assert response["id"] == f"resp_{HEAD.id}" and response["created_at"] == HEAD.created


@pytest.mark.parametrize("name", ["codex/basic", "codex/applypatch", "codex/codemode_nons", "openclaw/responses.think"])
def test_answers_to_recorded_requests_are_read_by_openais_types(name: str) -> None:
    for recorded in recordings()[name]:
        request = read_body(recorded.body)
        events = streamed(request, say(request, "<think>\nhm\n</think>\n\nhi"))
        response = Response.model_validate(events[-1]["response"])
        assert response.output_text == "hi" and len(response.tools) == len(recorded.body.get("tools") or [])


def test_proto_09_only_what_was_said_is_an_item() -> None:
    request = read()
    for text, expected in ((LS, ["function_call"]), ("hi", ["message"]), ("", [])):
        response = ADAPTER.response(request, [say(request, text, finish="tool_calls").turn])
        assert [item["type"] for item in response["output"]] == expected
        assert response["status"] == "completed" and response["incomplete_details"] is None


def test_proto_19_a_full_window_is_said_so_that_clients_compact() -> None:
    error = GatewayError(ErrorKind.CONTEXT_LENGTH, "too long", details={"prompt_tokens": 140, "limit": 100})
    status, headers, body = ADAPTER.error(error)
    assert status == 400 and headers == {}
    assert body["error"]["code"] == "context_length_exceeded" and body["error"]["type"] == "invalid_request_error"
    message = body["error"]["message"]
    assert "exceeds the context window" in message and "maximum context length is 100 tokens" in message
    assert "140" in message


@pytest.mark.parametrize(
    ("error", "status", "code", "headers"),
    [
        (GatewayError(ErrorKind.INVALID_REQUEST, "x", param="input"), 400, "invalid_value", {}),
        (GatewayError(ErrorKind.UNSUPPORTED, "x", param="prompt"), 400, "unsupported_value", {}),
        (GatewayError(ErrorKind.AUTHENTICATION, "x"), 401, "invalid_api_key", {}),
        (GatewayError(ErrorKind.NOT_FOUND, "x"), 404, "not_found", {}),
        (GatewayError(ErrorKind.NOT_FOUND, "x", param="previous_response_id"), 400, "previous_response_not_found", {}),
        (GatewayError(ErrorKind.GONE, "x"), 410, "session_gone", {"x-should-retry": "false"}),
        (GatewayError(ErrorKind.TOO_LARGE, "x"), 413, "request_too_large", {}),
        # Without the header Codex gives up at once, which is what an exhausted budget is meant to do.
        (GatewayError(ErrorKind.RATE_LIMITED, "x"), 429, "rate_limit_exceeded", {"Retry-After": "1"}),
        (GatewayError(ErrorKind.RATE_LIMITED, "x", retry_after=7), 429, "rate_limit_exceeded", {"Retry-After": "7"}),
        (GatewayError(ErrorKind.BUDGET, "x"), 429, "insufficient_quota", {"x-should-retry": "false"}),
        (GatewayError(ErrorKind.SERVER_ERROR, "x"), 500, "server_error", {}),
        (GatewayError(ErrorKind.ENGINE, "x"), 502, "engine_error", {}),
        (GatewayError(ErrorKind.OVERLOADED, "x", retry_after=3), 503, "overloaded", {"Retry-After": "3"}),
        (GatewayError(ErrorKind.TIMEOUT, "x"), 504, "timeout", {}),
    ],
)
def test_errors_in_openais_dialect(error: GatewayError, status: int, code: str, headers: dict[str, str]) -> None:
    got, sent, body = ADAPTER.error(error)
    assert (got, dict(sent)) == (status, headers)
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert body["error"]["code"] == code and body["error"]["param"] == (error.param or None)


def test_every_kind_of_error_has_words() -> None:
    for kind in ErrorKind:
        status, _, body = ADAPTER.error(GatewayError(kind, "what happened"))
        assert 400 <= status < 600 and "what happened" in body["error"]["message"] and body["error"]["code"]


def test_the_order_of_a_whole_answer_is_thinking_text_calls() -> None:
    request = read(user("go"))
    output = ADAPTER.response(request, [say(request, f"a\n{LS}\nb\n<think>\nhm\n</think>\nc").turn])["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call"]
    assert output[1]["content"][0]["text"] == "a\nb\nc"
