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
from uni_agent.data.verl_rows import read_verl_parquet, task_of, task_row, write_verl_parquet

__all__ = [
    "BaseDataConfig",
    "DataConfig",
    "HuggingFaceDataConfig",
    "JsonlDataConfig",
    "ParquetDataConfig",
    "PluginDataConfig",
    "TaskSource",
    "read_verl_parquet",
    "task_hash",
    "task_of",
    "task_row",
    "write_verl_parquet",
]
