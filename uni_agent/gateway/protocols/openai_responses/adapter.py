"""The OpenAI Responses API, as Codex and the SDKs speak it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from uni_agent.gateway.canonical import FinishedTurn, ModelRequest, ProtocolName, TurnHead, Wire
from uni_agent.gateway.errors import GatewayError
from uni_agent.gateway.protocols.openai_responses.errors import http_error
from uni_agent.gateway.protocols.openai_responses.request import read_request
from uni_agent.gateway.protocols.openai_responses.response import finished_response, output_items
from uni_agent.gateway.protocols.openai_responses.stream import ResponsesStream


class OpenAIResponsesAdapter:
    """Reads `POST /v1/responses` and writes its answers; see `ProtocolAdapter`.

    A response is named `resp_` and the turn's id; what comes back as `previous_response_id` is handed on as it stands.
    """

    @property
    def name(self) -> ProtocolName:
        """The API that it speaks."""
        return "openai_responses"

    def read(self, wire: Wire) -> ModelRequest:
        """The request in canonical form. Raises GatewayError that names the path of what cannot be read."""
        return read_request(wire)

    def response(self, request: ModelRequest, turns: Sequence[FinishedTurn]) -> dict[str, Any]:
        """The Response object of the turn: thinking, then the text as one message, then the calls."""
        (turn,) = turns
        return finished_response(request, turn, output_items(request, turn))

    def stream(self, request: ModelRequest, head: TurnHead) -> ResponsesStream:
        """The events of one answer."""
        return ResponsesStream(request, head)

    def error(self, error: GatewayError) -> tuple[int, Mapping[str, str], dict[str, Any]]:
        """Status, headers and body in OpenAI's dialect."""
        return http_error(error)
