"""Task sources: where tasks come from, and what they refer to."""

from uni_agent.data.config import (
    BaseDataConfig,
    DataConfig,
    HuggingFaceDataConfig,
    JsonlDataConfig,
    ParquetDataConfig,
    PluginDataConfig,
)
from uni_agent.data.hashing import task_hash
from uni_agent.data.source import TaskSource

__all__ = [
    "BaseDataConfig",
    "DataConfig",
    "HuggingFaceDataConfig",
    "JsonlDataConfig",
    "ParquetDataConfig",
    "PluginDataConfig",
    "TaskSource",
    "task_hash",
]
