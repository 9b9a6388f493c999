"""The pipeline that processes of verl are told of by its file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uni_agent.pipeline import PipelineConfig


def load_pipeline(path: Path) -> PipelineConfig:
    """The pipeline in a YAML file. Raises ConfigError."""
    from uni_agent.config.load import load_config
    from uni_agent.pipeline import PipelineConfig

    return load_config(PipelineConfig, path).config
