"""What an actor serves, and how it is made there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from uni_agent.engine.base import SamplingBackend, SamplingParams
from uni_agent.gateway.app_config import GatewayAppConfig
from uni_agent.gateway.config import GatewayConfig
from uni_agent.tokens.base import Renderer
from uni_agent.tokens.graph.session import RendererFor

if TYPE_CHECKING:
    from uni_agent.gateway.node import GatewayNode


@dataclass(frozen=True, slots=True)
class GatewayParts:
    """What a factory makes: an engine that is not started, and the renderer of its model. See `GatewayNode`."""

    backend: SamplingBackend
    renderer: Renderer
    renderer_for: RendererFor | None = None
    model_name: str = "model"
    sampling: SamplingParams | None = None


GatewayFactory = Callable[[], GatewayParts]
"""Called once in each actor. What it closes over is pickled: handles of other actors, paths, names."""


@dataclass(frozen=True, slots=True)
class GatewaySpec:
    """Everything that actor `number` of `count` needs. `port` 0 takes a free one.

    `environment` is put into the actor's environment before anything is built.
    """

    number: int
    count: int
    source: GatewayAppConfig | GatewayFactory
    config: GatewayConfig
    admin_token: str = field(repr=False)
    port: int = 0
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    def build(self, host: str) -> GatewayNode:
        """The node, not started, that is to listen on `host`. Raises ConfigError, StoreError for a journal in use."""
        config = self.config.model_copy(update={"host": host, "port": self.port, "public_url": None})
        if isinstance(self.source, GatewayAppConfig):
            app = self.source.model_copy(update={"gateway": config})
            return app.build(shard=self.number, shards=self.count)
        return self._assembled(config, self.source())

    def _assembled(self, config: GatewayConfig, parts: GatewayParts) -> GatewayNode:
        from uni_agent.gateway.node import GatewayNode
        from uni_agent.gateway.sharding import owner_of

        number, count = self.number, self.count
        return GatewayNode(
            parts.backend,
            parts.renderer,
            config,
            model_name=parts.model_name,
            sampling=parts.sampling,
            journal=config.journal.open(number),
            secret=config.secret(),
            renderer_for=parts.renderer_for,
            owns=lambda session_id: owner_of(session_id, count) == number,
        )
