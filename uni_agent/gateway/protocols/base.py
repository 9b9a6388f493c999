"""The seam between a client's protocol and the gateway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from uni_agent.gateway.canonical import FinishedTurn, ModelRequest, ProtocolName, TurnHead, Wire
from uni_agent.gateway.errors import GatewayError
from uni_agent.tokens.base import ParserEvent


class StreamEncoder(Protocol):
    """One streamed answer, as bytes of server-sent events. Synchronous and pure; each method returns what to send.

    Order: `opening`, any number of `event` and `heartbeat`, then exactly one of `finish` and `fail`.
    """

    def opening(self) -> bytes:
        """What stands before the first token."""
        ...

    def event(self, event: ParserEvent) -> bytes: ...

    def heartbeat(self) -> bytes:
        """Keeps the client's idle clock from running out, in the form that the protocol's clients count."""
        ...

    def finish(self, turn: FinishedTurn) -> bytes:
        """The terminal events of a committed turn; nothing after them."""
        ...

    def fail(self, error: GatewayError) -> bytes:
        """The protocol's error event. Never a terminal event of success."""
        ...


class ProtocolAdapter(Protocol):
    """Reads requests of one API and writes its answers. Stateless: one object serves all sessions."""

    @property
    def name(self) -> ProtocolName: ...

    def read(self, wire: Wire) -> ModelRequest:
        """The request in canonical form. Unknown fields, roles and vendor tools are tolerated.

        Raises GatewayError (invalid, unsupported) that names the path of what cannot be read. Costs one pass.
        """
        ...

    def response(self, request: ModelRequest, turns: Sequence[FinishedTurn]) -> dict[str, Any]:
        """The whole answer as a JSON object; `turns` has `request.samples` entries."""
        ...

    def stream(self, request: ModelRequest, head: TurnHead) -> StreamEncoder: ...

    def error(self, error: GatewayError) -> tuple[int, Mapping[str, str], dict[str, Any]]:
        """HTTP status, headers and JSON body of an error, with the status that the protocol's clients act on."""
        ...
