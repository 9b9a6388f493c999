"""The engine and the renderer of one gateway, made in its own process."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from uni_agent.engine.verl import VerlBackend
from uni_agent.errors import ConfigError
from uni_agent.gateway.config import GatewayConfig
from uni_agent.gateway.ray import GatewayParts
from uni_agent.optional import load
from uni_agent.tokens.base import Renderer
from uni_agent.tokens.config import RendererConfig
from uni_agent.training.framework.config import FrameworkSettings

MODEL = "policy"
"""The name under which agents find the model."""

_TOKENIZER_FILES = ("*.json", "*.jinja", "*.txt", "*.model")


@dataclass(frozen=True, slots=True)
class VerlGatewayFactory:
    """Makes the parts of a gateway over verl's client; a GatewayFactory. Pickled with the client."""

    client: Any
    settings: FrameworkSettings

    def __call__(self) -> GatewayParts:
        """Called once in each actor. Raises ConfigError for a model folder or a tool parser that does not fit."""
        settings = self.settings
        engine: Literal["vllm", "sglang", "other"] = "other"
        if settings.engine in ("vllm", "sglang"):
            engine = settings.engine  # pyright: ignore[reportAssignmentType] - one of the two
        backend = VerlBackend(self.client, engine=engine, max_context=settings.max_context, own_aborts=True)
        return GatewayParts(backend, build_renderer(settings), model_name=MODEL)


def build_renderer(settings: FrameworkSettings) -> Renderer:
    """The renderer of the model that is trained; proving its template takes a second. Raises ConfigError."""
    config = settings.renderer
    if settings.chat_template and isinstance(config, RendererConfig):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja", delete=False, encoding="utf-8") as file:
            file.write(settings.chat_template)
        config = config.model_copy(update={"chat_template": Path(file.name)})
    return config.build(model_folder(settings.model_path))


def gateway_config(settings: FrameworkSettings) -> GatewayConfig:
    """The gateways' configuration: the user's own, with the trainer's sampling and window."""
    given = settings.framework.gateway
    session = given.session.model_copy(update={"sampling": settings.sampling})
    return given.model_copy(update={"session": session, "max_context": settings.max_context})


def model_folder(path: str) -> Path:
    """A local folder with the tokenizer's files of the model that verl calls `path`. Raises ConfigError."""
    if Path(path).is_dir():
        return Path(path)
    if "://" in path:
        fs = load("verl.utils.fs", extra="train", needed_for=f"actor_rollout_ref.model.path {path}")
        return Path(fs.copy_to_local(path))
    hub = load("huggingface_hub", extra="train", needed_for=f"actor_rollout_ref.model.path {path}")
    try:
        return Path(hub.snapshot_download(path, allow_patterns=list(_TOKENIZER_FILES)))
    except Exception as error:  # the hub's own tree of errors, and the network's
        raise ConfigError(
            f"actor_rollout_ref.model.path {path!r} is no folder, and the hub does not give it: {error}"
        ) from error
