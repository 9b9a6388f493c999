"""One process's share of a gateway, without a network: engine, sessions, turns."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

from uni_agent.engine.base import SamplingBackend, SamplingParams, media_backend
from uni_agent.gateway.canonical import ModelRequest
from uni_agent.gateway.codec import MessageCodec
from uni_agent.gateway.config import GatewayConfig
from uni_agent.gateway.errors import ErrorKind, GatewayError, unsupported
from uni_agent.gateway.journal import Journal
from uni_agent.gateway.metrics import GatewayMetrics
from uni_agent.gateway.session import Session
from uni_agent.gateway.sessions import Sessions
from uni_agent.gateway.turns import TurnPolicy, TurnService
from uni_agent.tokens.base import Renderer
from uni_agent.tokens.graph.session import RendererFor
from uni_agent.tokens.media import processor_of
from uni_agent.types import Media, Message

_IMAGE = "[image]"


class GatewayNode:
    """Everything of a gateway but HTTP. Belongs to one event loop.

    `journal` is open and owned: it is closed with the node. `secret` signs session keys. `owns`: see Sessions.
    """

    def __init__(
        self,
        backend: SamplingBackend,
        renderer: Renderer,
        config: GatewayConfig | None = None,
        *,
        model_name: str = "model",
        sampling: SamplingParams | None = None,
        journal: Journal | None = None,
        secret: bytes | None = None,
        renderer_for: RendererFor | None = None,
        owns: Callable[[str], bool] = lambda _: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.config = config or GatewayConfig()
        self.backend = backend
        self.model_name = model_name
        self.metrics = GatewayMetrics()
        self.sessions = Sessions(
            self.config,
            renderer,
            self.metrics,
            journal=journal,
            secret=secret,
            renderer_for=renderer_for,
            owns=owns,
            clock=clock,
        )
        self.turns = TurnService(backend, MessageCodec(renderer), TurnPolicy.of(self.config, sampling), self.metrics)
        self._journal = journal
        self._in_flight = 0
        self._created = int(time.time())

    async def start(self) -> None:
        """Load the engine and rebuild the sessions of the journal. Raises ConfigError, ModelError, StoreError."""
        await self.backend.start()
        self.sessions.restore()

    async def close(self) -> None:
        """End what is under way, close engine and journal. Sessions stay in the journal as they are."""
        self.turns.close()
        try:
            await self.backend.close()
        finally:
            if self._journal is not None:
                self._journal.close()

    @contextlib.contextmanager
    def admitted(self, session: Session) -> Generator[None]:
        """A place for one request. Raises GatewayError when the session or the gateway has none.

        Raises StoreError while the journal cannot be written: what could not be kept is not sampled.
        """
        if self._in_flight >= self.config.max_in_flight:
            raise GatewayError(
                ErrorKind.RATE_LIMITED,
                f"the gateway has {self._in_flight} turns in flight, the most it may have",
                retry_after=1.0,
            )
        session.admit()
        self.sessions.check_writable()
        self._in_flight += 1
        session.requests += 1
        self.metrics.in_flight.inc()
        try:
            yield
        finally:
            self._in_flight -= 1
            session.requests -= 1
            self.metrics.in_flight.dec()

    def checked(self, request: ModelRequest) -> ModelRequest:
        """`request` as the model can read it. Raises GatewayError for images that it cannot."""
        if not any(message.parts for message in request.messages) or not (reason := self._no_images()):
            return request
        if self.config.media == "refuse":
            where = next(i for i, message in enumerate(request.messages) if message.parts)
            raise unsupported(
                f"message {where} holds an image, which this model does not read ({reason}). "
                "Set gateway.media to 'placeholder' to show it as text",
                "messages",
            )
        return replace(request, messages=tuple(_without_media(message) for message in request.messages))

    def _no_images(self) -> str:
        """Why images cannot be read here; "" when they can."""
        renderer = self.turns.codec.renderer
        if processor_of(renderer) is None:
            return getattr(renderer, "no_media", "") or "no image processor is known"
        return "" if media_backend(self.backend) is not None else "its engine takes no images beside token ids"

    def model_card(self, name: str) -> dict[str, Any]:
        """One model for `/v1/models`, readable by the clients of all three protocols. Any name is served."""
        return {
            "id": name,
            "object": "model",
            "type": "model",
            "created": self._created,
            "created_at": "1970-01-01T00:00:00Z",
            "owned_by": "uni-agent",
            "display_name": name,
            "max_model_len": self.turns.max_context,
        }

    def health(self) -> dict[str, Any]:
        """`status` is `ok`, or `degraded` while the journal cannot be written."""
        return {
            "status": "ok" if self.sessions.healthy else "degraded",
            "sessions": len(self.sessions),
            "in_flight": self._in_flight,
            "journal": self.sessions.healthy,
        }


def _without_media(message: Message) -> Message:
    if not message.parts:
        return message
    text = "".join(_IMAGE if isinstance(part, Media) else part for part in message.parts)
    return replace(message, content=text, parts=())
