"""Which conversation a request belongs to, where its client says so."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from uni_agent.gateway.canonical import ModelRequest
from uni_agent.gateway.scenario import wire

CONVERSATION_HEADER = "x-uni-agent-conversation"
"""A client's own name of the conversation that a request is part of."""
_LONGEST = 160


def conversation_key(request: ModelRequest) -> str:
    """The client's name of the conversation, as `client:id`, or "" where it sends none. At most 160 characters.

    Requests with different keys are parts of different conversations. Requests with one key need not be of one:
    opencode asks for a title under the session's own id. Compaction keeps the key.
    """
    headers = request.wire.headers
    if stated := headers.get(CONVERSATION_HEADER):
        return _bounded("stated:" + stated)
    if session := headers.get("x-claude-code-session-id"):
        agent = headers.get("x-claude-code-agent-id")
        return _bounded(f"claude-code:{session}/{agent}" if agent else f"claude-code:{session}")
    if thread := codex_thread(headers, request.wire.body):
        return _bounded("codex:" + thread)
    if session := headers.get("x-session-id"):
        return _bounded("session:" + session)
    return ""


def codex_thread(headers: Mapping[str, str], body: Mapping[str, Any]) -> str:
    """Codex's thread id, from its header or its metadata, or ""."""
    if "x-codex-turn-metadata" in headers or "x-codex-window-id" in headers:
        return headers.get("thread-id", "")
    metadata = body.get("client_metadata")
    if isinstance(metadata, Mapping) and "x-codex-turn-metadata" in metadata:
        return next((wire.word(value) for value in wire.values(body, "client_metadata.thread_id")), "")
    return ""


def _bounded(key: str) -> str:
    clean = "".join(character if character.isprintable() else "?" for character in key[: 4 * _LONGEST])
    if len(key) <= _LONGEST:
        return clean
    return (
        f"{clean[: _LONGEST - 25]}~{hashlib.blake2b(key.encode('utf-8', 'surrogatepass'), digest_size=12).hexdigest()}"
    )
