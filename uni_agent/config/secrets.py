"""Secrets: named in a configuration by their environment variable, never written in it."""

from __future__ import annotations

import os

from uni_agent.errors import ConfigError


def secret(env_name: str, asked_by: str = "model.api_key_env") -> str:
    """The value of the environment variable `env_name`, stripped.

    `asked_by` is the key that names the variable. Raises ConfigError when it is not set or empty.
    """
    value = os.environ.get(env_name, "").strip()
    if not value:
        state = "is empty" if env_name in os.environ else "is not set"
        raise ConfigError(f"{asked_by} names {env_name}, which {state}: export {env_name}=…")
    return value
