"""Which engine samples: the union behind `model.engine`."""

from __future__ import annotations

import importlib.util
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from uni_agent.config.base import Config, ConfigPath, PluginConfig, build_object, part_tag
from uni_agent.engine.base import SamplingBackend
from uni_agent.errors import ConfigError, MissingExtraError


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


class ScriptedEngineConfig(Config):
    """Plays fixed token ids; for tests and benchmarks."""

    type: Literal["scripted"] = "scripted"
    """`scripted`"""
    turns: list[ScriptedTurnConfig]
    """What every request plays, turn by turn."""
    repeat: bool = False
    """Start again after the last turn instead of failing."""
    max_context: int | None = Field(default=None, ge=2)
    """Context window in tokens."""

    def build(self) -> SamplingBackend:
        """The engine, not started."""
        from uni_agent.engine.scripted import ScriptedBackend, ScriptedTurn

        turns = [ScriptedTurn(t.ids, t.finish_reason, delay=t.delay, fault=t.fault) for t in self.turns]
        return ScriptedBackend(turns, repeat=self.repeat, max_context=self.max_context)


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
    | Annotated[PluginEngineConfig, Tag("plugin")],
    Discriminator(part_tag),
]
"""Any engine, told apart by `type`."""


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # a half-made module in sys.modules
        return False
