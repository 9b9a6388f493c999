"""A whole gateway as one YAML: engine, renderer, sampling, and the gateway itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from uni_agent.config.base import Config, ConfigPath
from uni_agent.engine.base import SamplingBackend
from uni_agent.engine.config import EngineConfig, ScriptedEngineConfig
from uni_agent.errors import ConfigError
from uni_agent.gateway.config import GatewayConfig
from uni_agent.model.config import SamplingConfig
from uni_agent.tokens.config import AnyRendererConfig, RendererConfig

if TYPE_CHECKING:
    from uni_agent.gateway.node import GatewayNode
    from uni_agent.tokens.foreign.package import PackageRenderer
    from uni_agent.tokens.renderer import ChatTemplateRenderer


class GatewayAppConfig(Config):
    """What `uni-agent gateway` serves."""

    engine: EngineConfig
    """What samples."""
    script: ConfigPath | None = None
    """JSON lines that the scripted engine plays, one generation a line, to each session from the first one."""
    script_shared: bool = False
    """All sessions take their turns from the one script, in the order in which they ask."""
    renderer: AnyRendererConfig = RendererConfig()
    """How messages become tokens."""
    template_variables: list[str] = ["enable_thinking", "thinking", "reasoning_effort"]
    """Template variables that a client may set (`chat_template_kwargs`)."""
    sampling: SamplingConfig = SamplingConfig()
    """How turns are sampled where neither the client nor the session says so."""
    model_name: str = Field(default="model", min_length=1)
    """What `/v1/models` lists. Requests may name any model."""
    gateway: GatewayConfig = GatewayConfig()
    """The address, its sessions and limits."""

    def build_renderer(self) -> ChatTemplateRenderer | PackageRenderer:
        """The renderer, its chat template proved. Raises ConfigError."""
        return self.renderer.build(self._folder)

    @property
    def _folder(self) -> Path | None:
        folder: Any = getattr(self.engine, "path", None)
        return folder if isinstance(folder, Path) else None

    def build_backend(self, renderer: ChatTemplateRenderer | PackageRenderer) -> SamplingBackend:
        """The engine, not started. Raises ConfigError."""
        if self.script is None:
            return self.engine.build()
        if not isinstance(self.engine, ScriptedEngineConfig):
            raise ConfigError("script: only the scripted engine plays a script; set engine.type to 'scripted'")
        from uni_agent.engine.script_file import read_script
        from uni_agent.engine.scripted import ScriptedBackend

        return ScriptedBackend(
            read_script(self.script, renderer.tokenizer.encode),
            shared=self.script_shared,
            repeat=self.engine.repeat,
            max_context=self.engine.max_context,
            record=False,
        )

    def build(self, *, shard: int = 0, shards: int = 1) -> GatewayNode:
        """A node, not started: number `shard` of `shards`. Raises ConfigError, StoreError for a journal in use."""
        from uni_agent.gateway.node import GatewayNode
        from uni_agent.gateway.renderers import VariableRenderers
        from uni_agent.gateway.sharding import owner_of

        renderer = self.build_renderer()
        backend = self.build_backend(renderer)
        variables = VariableRenderers(self.renderer, self._folder, frozenset(self.template_variables))
        return GatewayNode(
            backend,
            renderer,
            self.gateway,
            model_name=self.model_name,
            sampling=self.sampling.params(),
            journal=self.gateway.journal.open(shard),
            secret=self.gateway.secret(),
            renderer_for=variables,
            owns=lambda session_id: owner_of(session_id, shards) == shard,
        )
