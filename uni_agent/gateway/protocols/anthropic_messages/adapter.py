"""The adapter of Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from uni_agent.gateway.canonical import FinishedTurn, ModelRequest, ProtocolName, TurnHead, Wire
from uni_agent.gateway.errors import GatewayError
from uni_agent.gateway.protocols.anthropic_messages.errors import error_body, error_headers, error_status
from uni_agent.gateway.protocols.anthropic_messages.request import read_request
from uni_agent.gateway.protocols.anthropic_messages.response import answer
from uni_agent.gateway.protocols.anthropic_messages.stream import MessagesStream


class AnthropicMessagesAdapter:
    """Reads `POST /v1/messages` and `/v1/messages/count_tokens` and writes their answers. See `ProtocolAdapter`."""

    @property
    def name(self) -> ProtocolName:
        """`anthropic_messages`."""
        return "anthropic_messages"

    def read(self, wire: Wire) -> ModelRequest:
        """The request in canonical form. Raises GatewayError with the path."""
        return read_request(wire)

    def response(self, request: ModelRequest, turns: Sequence[FinishedTurn]) -> dict[str, Any]:
        """The message object of the one turn that a request of this API asks for."""
        (turn,) = turns
        return answer(turn)

    def stream(self, request: ModelRequest, head: TurnHead) -> MessagesStream:
        """The same as events."""
        return MessagesStream(head)

    def error(self, error: GatewayError) -> tuple[int, Mapping[str, str], dict[str, Any]]:
        """Status, headers and body; see `errors` for the statuses that clients act on."""
        return error_status(error), error_headers(error), error_body(error)

    def read_count(self, wire: Wire) -> ModelRequest:
        """A request to count tokens: what `read` gives, with nothing to stream. Raises GatewayError."""
        return replace(read_request(wire), stream=False)

    def count_response(self, n: int) -> dict[str, Any]:
        """The answer to it: `n` tokens in the prompt."""
        return {"input_tokens": n}
