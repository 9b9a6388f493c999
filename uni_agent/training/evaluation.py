"""Evaluation through verl's own rollout servers: the loop, the tokens and the record of training, without a trainer."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uni_agent.engine.embedded import model_window
from uni_agent.engine.verl import VerlBackend
from uni_agent.errors import ConfigError, MissingExtraError, ModelError, boundary
from uni_agent.optional import load
from uni_agent.training.command import Keys, hydra_overrides, with_plugin, yaml_text
from uni_agent.training.resolve import composed

if TYPE_CHECKING:
    from uni_agent.model.config import VerlModelConfig
    from uni_agent.model.tokens import AgentChatModel, AgentChatSession
    from uni_agent.tokens.base import ToolSchema
    from uni_agent.types import Message


class VerlChatModel:
    """A ChatModel whose turns verl's servers sample.

    `start` starts them in the Ray cluster that `RAY_ADDRESS` names, else in one of its own, which `close` ends.
    Raises MissingExtraError without verl.
    """

    def __init__(self, config: VerlModelConfig, *, seed: int | None) -> None:
        for package in ("verl", "ray"):
            if importlib.util.find_spec(package) is None:
                raise MissingExtraError(package, "train", "model.type 'verl'")
        self._config = config
        self._seed = seed
        self.renderer = config.renderer.build(config.path)
        self._lock = asyncio.Lock()
        self._model: AgentChatModel | None = None
        self._manager: Any = None
        self._own_cluster = False

    async def start(self) -> None:
        """Start the servers. Raises ConfigError for settings that verl does not take, ModelError when they fail."""
        async with self._lock:
            if self._model is not None:
                return
            settings = await asyncio.to_thread(self._prepared)
            await asyncio.to_thread(self._join_cluster, settings)
            servers = load("verl.workers.rollout.llm_server", extra="train", needed_for="model.type 'verl'")
            with boundary(ModelError, "verl's rollout servers did not start"):
                self._manager = await servers.LLMServerManager.create(config=settings)
            name = str(settings.actor_rollout_ref.rollout.name)
            backend = VerlBackend(
                self._manager.get_client(),
                engine="vllm" if name == "vllm" else "sglang" if name == "sglang" else "other",
                max_context=self._window(),
                own_aborts=True,
            )
            self._model = self._config.over(backend, self.renderer, seed=self._seed)
            await self._model.start()

    async def probe(self) -> None:
        """Sample one token. Raises ConfigError with the reason."""
        await self._started().probe()

    async def open(self, request_id: str, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> AgentChatSession:
        """A conversation whose prompt is `messages`, rendered with `tools`."""
        return await self._started().open(request_id, messages, tools)

    async def close(self) -> None:
        """Let go of the servers, and of the cluster if it is our own."""
        async with self._lock:
            model, self._model = self._model, None
            manager, self._manager = self._manager, None
            if model is not None:
                await model.close()
            ray = load("ray", extra="train", needed_for="model.type 'verl'")
            for server in getattr(manager, "server_handles", ()):  # their names are taken while they live
                ray.kill(server)
            if self._own_cluster:
                self._own_cluster = False
                await asyncio.to_thread(ray.shutdown)

    def _started(self) -> AgentChatModel:
        if self._model is None:
            raise ModelError("the model is not started")
        return self._model

    def _window(self) -> int | None:
        own = model_window(self._config.path)
        return own if self._config.max_context is None else min(self._config.max_context, own or 1 << 31)

    def _prepared(self) -> Any:
        """Verl's configuration; the environment and the plugin are in place afterwards."""
        keys = evaluation_keys(self._config, self._window())
        os.environ["VERL_USE_EXTERNAL_MODULES"] = with_plugin(os.environ.get("VERL_USE_EXTERNAL_MODULES", ""))
        if _on_cpu(self._config):
            from uni_agent.training import cpu

            for name, value in cpu.environment().items():
                os.environ.setdefault(name, value)
        with tempfile.TemporaryDirectory() as folder, boundary(ConfigError, "model.overrides"):
            Path(folder, "train.yaml").write_text(yaml_text(keys), encoding="utf-8")
            settings = composed(Path(folder))
        load("uni_agent.training.plugin", extra="train", needed_for="model.type 'verl'")
        return settings

    def _join_cluster(self, settings: Any) -> None:
        ray = load("ray", extra="train", needed_for="model.type 'verl'")
        if ray.is_initialized():
            return
        omegaconf = load("omegaconf", extra="train", needed_for="model.type 'verl'")
        options: dict[str, Any] = omegaconf.OmegaConf.to_container(settings.ray_kwargs.ray_init, resolve=True)
        if os.environ.get("RAY_ADDRESS"):
            options = {"address": "auto"}
        with boundary(ModelError, "Ray did not start"):
            ray.init(log_to_driver=False, **options)
        self._own_cluster = True


def evaluation_keys(model: VerlModelConfig, window: int | None) -> dict[str, Any]:
    """Verl's configuration (nested) for servers alone. Raises ConfigError for overrides that contradict a field."""
    keys = Keys()
    rollout = "actor_rollout_ref__rollout__"
    keys.set("model.path", actor_rollout_ref__model__path=str(model.path.absolute()))
    keys.set("model.engine", **{f"{rollout}name": model.engine or ("uni_agent_cpu" if _on_cpu(model) else "vllm")})
    keys.set("model.max_context", **{f"{rollout}max_model_len": window})
    keys.default(
        {
            "actor_rollout_ref.rollout.nnodes": 1,
            "actor_rollout_ref.rollout.n_gpus_per_node": 1,
            "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
        }
    )
    if _on_cpu(model):
        from uni_agent.training import cpu

        keys.default(hydra_overrides(cpu.overrides("sync")))
    # verl's default is `dummy`: random weights, until a trainer brings its own.
    keys.default({"actor_rollout_ref.rollout.load_format": "auto"})
    return keys.merged(model.overrides, where="model.overrides")


def _on_cpu(model: VerlModelConfig) -> bool:
    if model.engine is not None:
        return model.engine == "uni_agent_cpu"
    torch = load("torch", extra="train", needed_for="model.type 'verl'")
    return not torch.cuda.is_available()
