"""verl's configuration of a small pipeline, made once; tests that need verl say so through these fixtures."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from tests.training.local_server import POLICY

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def verl_installed() -> None:
    """Skips where verl is missing."""
    if importlib.util.find_spec("verl") is None or importlib.util.find_spec("transfer_queue") is None:
        pytest.skip("verl is not installed: pip install 'uni-agent[train]'")
    os.environ.setdefault("VERL_PLATFORM", "cpu")
    os.environ.setdefault("VERL_USE_EXTERNAL_MODULES", "uni_agent.training.plugin")


def pipeline_text(**train: Any) -> dict[str, Any]:
    """A pipeline like the quickstart's, of which `train` says how it is trained."""
    return {
        "name": "small",
        "data": {"type": "jsonl", "path": "pkg://uni_agent/data/suites/shell_basics.jsonl"},
        "model": {"type": "verl", "path": str(POLICY), "sampling": {"max_tokens": 96}},
        "tools": ["execute_bash", "finish"],
        "deployment": {"type": "host", "isolation": "none"},
        "reward": {"type": "command", "command": "false"},
        "interaction": {"max_turns": 6, "action_timeout": 10, "format_error_budget": 1},
        "run": {"samples_per_task": 2, "concurrency": 8, "seed": 0, "retries": 0},
        "train": {
            "device": "cpu",
            "steps": 2,
            "tasks_per_step": 4,
            "max_prompt_tokens": 256,
            "max_response_tokens": 512,
            **train,
        },
    }
