"""Packages that are imported where they are used, and may be missing."""

from __future__ import annotations

import importlib
from typing import Any

from uni_agent.errors import MissingExtraError


def load(module: str, *, extra: str, needed_for: str) -> Any:
    """The module. Raises MissingExtraError that names the extra when it, or something it needs, is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(module.partition(".")[0], extra, needed_for) from error
