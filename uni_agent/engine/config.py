"""Which engine samples: the union behind `model.engine`."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from uni_agent.config.base import Config, ConfigPath, PluginConfig, build_object, part_tag
from uni_agent.engine.base import SamplingBackend
from uni_agent.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from uni_agent.engine.http import ReplicaPool


class EmbeddedEngineConfig(Config):
    """A Hugging Face model run inside this process with torch: exact, for small models."""

    type: Literal["embedded"] = "embedded"
    """`embedded`"""
    path: ConfigPath
    """Model folder (config.json, *.safetensors), or `pkg://uni_agent/assets/quickstart_policy`."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes a GPU when there is one."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto` is float32 on the CPU and bfloat16 on a GPU. Only float32 gives logprobs that re-score exactly."""
    threads: int = Field(default=1, ge=1)
    """Torch threads on the CPU, for the whole process. More than one is slower on a machine that is busy otherwise."""
    max_batch: int = Field(default=64, ge=1)
    """Most requests that are decoded together; others wait."""
    cache_sessions: int = Field(default=256, ge=0)
    """Most conversations whose keys and values are kept between turns."""
    cache_mib: int = Field(default=1024, ge=0)
    """Most memory for them, in MiB."""
    max_context: int | None = Field(default=None, ge=2)
    """A smaller context window than the model's own, in tokens."""
    seed: int | None = None
    """Root of all sampling without a seed of its own; None: a new one in each run."""

    def build(self) -> SamplingBackend:
        """The engine, not started. Raises ConfigError for a folder without a model, MissingExtraError without torch."""
        for package in ("torch", "transformers"):
            if not _installed(package):
                raise MissingExtraError(package, "embedded", "engine.type 'embedded'")
        from uni_agent.engine.embedded import EmbeddedBackend

        return EmbeddedBackend(
            self.path,
            device=self.device,
            dtype=self.dtype,
            threads=self.threads,
            max_batch=self.max_batch,
            cache_sessions=self.cache_sessions,
            cache_bytes=self.cache_mib * 2**20,
            max_context=self.max_context,
            seed=self.seed,
        )


class RemoteEngineConfig(Config):
    """What every engine behind HTTP is told."""

    url: str | None = None
    """Address of the server, such as `http://127.0.0.1:8000`; or give `urls`."""
    urls: list[str] = []
    """Addresses of several servers with the same model. A conversation stays on one while that one works."""
    path: ConfigPath | None = None
    """Folder with the model's tokenizer; None: set `renderer.tokenizer`."""
    api_key_env: str | None = None
    """Environment variable that holds the API key; None: the server needs none."""
    connect_timeout: float = Field(default=10.0, gt=0)
    """Seconds to connect."""
    read_timeout: float = Field(default=600.0, gt=0)
    """Seconds for one answer; past it the call is aborted on the server."""
    retries: int = Field(default=3, ge=0)
    """Further rounds over the servers after 429, 5xx and connection faults, with growing waits."""
    backoff: float = Field(default=0.5, ge=0)
    """Seconds before the second round; doubles each time."""
    cooldown: float = Field(default=10.0, ge=0)
    """Seconds for which a server that failed is asked last."""
    extra_body: dict[str, Any] = {}
    """Further fields of every request, as the server defines them."""

    @field_validator("url", "urls")
    @classmethod
    def _addresses(cls, value: str | list[str] | None) -> str | list[str] | None:
        for url in [value] if isinstance(value, str) else value or []:
            parts = urlsplit(url)  # ValueError for a broken one
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"{url!r} is no http:// or https:// address")
        return value

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.url is None) == (not self.urls):
            raise ValueError("give either `url` or `urls`")
        if len(set(self.urls)) != len(self.urls):
            raise ValueError("`urls` names a server twice")
        return self

    def pool(self, session_header: str | None) -> ReplicaPool:
        """The servers, not connected."""
        from uni_agent.engine.http import ReplicaPool

        return ReplicaPool(
            self.urls or [self.url or ""],
            api_key_env=self.api_key_env,
            session_header=session_header,
            connect_timeout=self.connect_timeout,
            read_timeout=self.read_timeout,
            cooldown=self.cooldown,
        )


class VllmEngineConfig(RemoteEngineConfig):
    """A vLLM server, asked with token ids."""

    type: Literal["vllm"]
    """`vllm`"""
    model: str | None = None
    """Served model name, or a LoRA adapter's; None: the server's own."""
    endpoint: Literal["auto", "generate", "completions"] = "auto"
    """`generate` needs vLLM's `--enable-scale-out`; `auto` takes `completions` where it is missing."""
    session_header: str | None = "X-Session-ID"
    """Header with the conversation's id, for a router in front; None sends none."""

    def build(self) -> SamplingBackend:
        """The engine, not connected."""
        from uni_agent.engine.vllm import VllmBackend

        return VllmBackend(
            self.pool(self.session_header),
            model=self.model,
            endpoint=self.endpoint,
            extra_body=self.extra_body,
            retries=self.retries,
            backoff=self.backoff,
        )


class SglangEngineConfig(RemoteEngineConfig):
    """An SGLang server or router, asked with token ids."""

    type: Literal["sglang"]
    """`sglang`"""
    session_header: str | None = "X-SMG-Routing-Key"
    """Header with the conversation's id, for a router in front; None sends none."""
    routed_experts: tuple[int, int] | None = None
    """Layers, and experts per token, of a mixture model: asks for each token's experts. None: not asked."""

    def build(self) -> SamplingBackend:
        """The engine, not connected."""
        from uni_agent.engine.sglang import SglangBackend

        return SglangBackend(
            self.pool(self.session_header),
            routed_experts=self.routed_experts,
            extra_body=self.extra_body,
            retries=self.retries,
            backoff=self.backoff,
        )


class TinkerEngineConfig(Config):
    """The Tinker service, through its SDK."""

    type: Literal["tinker"]
    """`tinker`"""
    model_path: str | None = Field(default=None, pattern=r"^tinker://")
    """Saved weights (`tinker://…`); or give `base_model`."""
    base_model: str | None = None
    """A model that the service offers, such as `Qwen/Qwen3-8B`."""
    base_url: str | None = None
    """Address of the service; None: the SDK's own."""
    path: ConfigPath | None = None
    """Folder with the model's tokenizer; None: set `renderer.tokenizer`."""
    api_key_env: str | None = None
    """Environment variable that holds the API key; None: the SDK's `TINKER_API_KEY`."""
    max_context: int | None = Field(default=None, ge=2)
    """Context window in tokens, which the service does not tell; None: `sampling.max_tokens` is needed."""

    @model_validator(mode="after")
    def _one_model(self) -> Self:
        if (self.model_path is None) == (self.base_model is None):
            raise ValueError("give either `model_path` or `base_model`")
        return self

    def build(self) -> SamplingBackend:
        """The engine, not connected. Raises MissingExtraError without the SDK."""
        if not _installed("tinker"):
            raise MissingExtraError("tinker", "tinker", "engine.type 'tinker'")
        from uni_agent.engine.tinker import TinkerBackend

        return TinkerBackend(
            model_path=self.model_path,
            base_model=self.base_model,
            base_url=self.base_url,
            api_key_env=self.api_key_env,
            max_context=self.max_context,
        )


class ScriptedTurnConfig(Config):
    """One generation that the scripted engine plays."""

    ids: list[int]
    """Token ids; the request's first stop id is appended when the turn ends by `stop`."""
    finish_reason: Literal["stop", "length", "abort"] = "stop"
    """How the generation ends."""
    delay: float = Field(default=0.0, ge=0)
    """Seconds before it comes back."""
    fault: Literal["raise", "abort", "hang"] | None = None
    """Fail, give up, or never come back."""
    piece: int = Field(default=1, ge=1)
    """Tokens that a streaming caller is handed at a time."""
    token_delay: float = Field(default=0.0, ge=0)
    """Seconds before each piece."""
    fail_after: int | None = Field(default=None, ge=0)
    """Break off after so many tokens."""
    weight_version: str | None = None
    """Name of the weights that sample it."""


class ScriptedEngineConfig(Config):
    """Plays fixed token ids; for tests and benchmarks."""

    type: Literal["scripted"] = "scripted"
    """`scripted`"""
    turns: list[ScriptedTurnConfig]
    """What every request plays, turn by turn."""
    repeat: bool = False
    """Start again after the last turn instead of failing."""
    shared: bool = False
    """All requests take turns from one list, in order of arrival, instead of each playing it from its start."""
    max_context: int | None = Field(default=None, ge=2)
    """Context window in tokens."""

    def build(self) -> SamplingBackend:
        """The engine, not started."""
        from uni_agent.engine.scripted import ScriptedBackend, ScriptedTurn

        turns = [ScriptedTurn(t.ids, **t.model_dump(exclude={"ids"})) for t in self.turns]
        return ScriptedBackend(turns, repeat=self.repeat, shared=self.shared, max_context=self.max_context)


class PluginEngineConfig(PluginConfig):
    """An engine that this package does not ship."""

    def build(self) -> SamplingBackend:
        """`Class(**options)`. Raises ConfigError when it cannot be made or is no SamplingBackend."""
        engine = build_object(self.type, self.options)
        if not isinstance(engine, SamplingBackend):
            raise ConfigError(f"engine.type {self.type!r} is no SamplingBackend: see uni_agent.engine.base")
        return engine


EngineConfig = Annotated[
    Annotated[EmbeddedEngineConfig, Tag("embedded")]
    | Annotated[ScriptedEngineConfig, Tag("scripted")]
    | Annotated[VllmEngineConfig, Tag("vllm")]
    | Annotated[SglangEngineConfig, Tag("sglang")]
    | Annotated[TinkerEngineConfig, Tag("tinker")]
    | Annotated[PluginEngineConfig, Tag("plugin")],
    Discriminator(part_tag),
]
"""Any engine, told apart by `type`."""


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # a half-made module in sys.modules
        return False
