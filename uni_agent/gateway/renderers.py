"""Renderers for the template variables that clients send."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from uni_agent.tokens.base import Renderer
from uni_agent.tokens.config import AnyRendererConfig

_MOST = 16


class VariableRenderers:
    """One renderer per set of template variables, each built and proved once.

    `allowed` are the names that a client may set: a variable changes the whole prompt, and each new set costs a proof,
    so there are at most 16 sets.
    """

    def __init__(self, config: AnyRendererConfig, folder: Path | None, allowed: frozenset[str]) -> None:
        self._config = config
        self._folder = folder
        self._allowed = allowed
        self._built: dict[str, Renderer] = {}
        self._lock = threading.Lock()

    def __call__(self, variables: Mapping[str, Any]) -> Renderer:
        """The renderer. Raises ValueError for a name or value that is not allowed, and past the last set."""
        for name, value in variables.items():
            if name not in self._allowed:
                known = ", ".join(sorted(self._allowed)) or "none"
                raise ValueError(f"chat_template_kwargs.{name} may not be set here; allowed are: {known}")
            if not isinstance(value, str | int | bool) or (isinstance(value, str) and len(value) > 100):
                raise ValueError(f"chat_template_kwargs.{name}: expected a boolean, a number or a short text")
        key = json.dumps(dict(variables), sort_keys=True)
        with self._lock:
            if key not in self._built:
                if len(self._built) >= _MOST:
                    raise ValueError(f"chat_template_kwargs: more than {_MOST} different sets were asked for")
                merged = {**self._config.template_kwargs, **variables}
                self._built[key] = self._config.model_copy(update={"template_kwargs": merged}).build(self._folder)
            return self._built[key]
