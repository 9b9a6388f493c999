"""The adapter of OpenAI Chat Completions, with the extensions of vLLM that clients use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from uni_agent.gateway.canonical import FinishedTurn, ModelRequest, ProtocolName, TurnHead, Wire
from uni_agent.gateway.errors import GatewayError
from uni_agent.gateway.protocols.base import StreamEncoder
from uni_agent.gateway.protocols.openai_chat.dialect import dialect_of
from uni_agent.gateway.protocols.openai_chat.errors import error_body
from uni_agent.gateway.protocols.openai_chat.request import read_request
from uni_agent.gateway.protocols.openai_chat.response import completion
from uni_agent.gateway.protocols.openai_chat.stream import ChatStream


class OpenAIChatAdapter:
    """`ProtocolAdapter` of `POST /v1/chat/completions`."""

    @property
    def name(self) -> ProtocolName:
        """`openai_chat`."""
        return "openai_chat"

    def read(self, wire: Wire) -> ModelRequest:
        """See `ProtocolAdapter.read`."""
        return read_request(wire)

    def response(self, request: ModelRequest, turns: Sequence[FinishedTurn]) -> dict[str, Any]:
        """A `chat.completion` with one choice per turn."""
        return completion(dialect_of(request), turns)

    def stream(self, request: ModelRequest, head: TurnHead) -> StreamEncoder:
        """Writes `chat.completion.chunk` events, with `[DONE]` behind a committed turn."""
        return ChatStream(dialect_of(request), head)

    def error(self, error: GatewayError) -> tuple[int, Mapping[str, str], dict[str, Any]]:
        """The status, headers and `{"error": …}` that OpenAI's clients know."""
        return error.status, error.headers, error_body(error)
