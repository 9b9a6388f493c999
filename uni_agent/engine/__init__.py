"""Engines: token ids in, token ids and logprobs out."""

from uni_agent.engine.base import SamplingBackend, SamplingParams, TokenOutput, WeightSpan
from uni_agent.engine.config import EngineConfig

__all__ = ["EngineConfig", "SamplingBackend", "SamplingParams", "TokenOutput", "WeightSpan"]
