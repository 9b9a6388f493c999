"""Requests for the scenario tests, read without the protocol adapters: the rules look at the wire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from uni_agent.gateway.canonical import ModelRequest, ProtocolName, Wire
from uni_agent.types import Message, Role

PATHS: dict[ProtocolName, str] = {
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
    "anthropic_messages": "/v1/messages",
}


def request(
    body: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
    *,
    protocol: ProtocolName = "openai_chat",
    path: str | None = None,
) -> ModelRequest:
    """The request with `body`, as far as the rules read it."""
    cap = body.get("max_tokens") or body.get("max_completion_tokens") or body.get("max_output_tokens")
    wire = Wire(protocol, path or PATHS[protocol], headers or {}, body)
    return ModelRequest(
        wire,
        tuple(_messages(body)),
        max_tokens=cap,
        previous_response_id=body.get("previous_response_id") or "",
    )


def chat(
    system: str = "",
    *said: str,
    tools: bool = False,
    max_tokens: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> ModelRequest:
    """A Chat request: a system prompt, then user and assistant texts in turns."""
    messages = [{"role": "system", "content": system}] if system else []
    messages += [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(said)]
    body: dict[str, Any] = {"model": "m", "messages": messages}
    if tools:
        body["tools"] = [{"type": "function", "function": {"name": "bash"}}]
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    return request(body, headers)


def _messages(body: Mapping[str, Any]) -> Iterator[Message]:
    for key in ("system", "instructions"):
        if body.get(key):
            yield Message("system", _text(body[key]))
    entries = body.get("messages", body.get("input", []))
    if isinstance(entries, str):
        entries = [{"role": "user", "content": entries}]
    for entry in entries:
        yield Message(_role(entry), _text(entry.get("content")))


def _role(entry: Mapping[str, Any]) -> Role:
    role = str(entry.get("role") or entry.get("type"))
    if role.endswith("_output"):
        return "tool"
    return cast("Role", {"developer": "system"}.get(role, role)) if entry.get("role") else "assistant"


def _text(content: Any) -> str:
    if isinstance(content, list):
        parts = cast("list[Any]", content)
        return "".join(part["text"] for part in parts if "text" in part)
    return content if isinstance(content, str) else ""
