"""Verl's own configuration files, read without importing verl."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

import yaml

from uni_agent.data.report import suggestion
from uni_agent.errors import ConfigError, MissingExtraError, boundary

_GENERATED = (
    "trainer/config/_generated_ppo_trainer.yaml",
    "trainer/config/_generated_ppo_megatron_trainer.yaml",
    "experimental/fully_async_policy/config/fully_async_ppo_trainer.yaml",
)
_FREE = ("override_config", "override_optimizer_config", "override_transformer_config", "engine_kwargs", "custom")
"""Tables that verl passes on as they are."""
_FREE_KEYS = ("ray_kwargs.ray_init.", "trainer.v1.sampler.sampler_kwargs.")


def verl_folder() -> Path:
    """Where verl is installed. Raises MissingExtraError."""
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("verl", "train", "a `train:` block")
    return Path(spec.submodule_search_locations[0])


def read(name: str) -> dict[str, Any]:
    """The content of the file `name` of verl's. Raises ConfigError when it is not there."""
    with boundary(ConfigError, f"verl's own configuration {name} cannot be read: is it verl 0.9.1?"):
        return yaml.safe_load((verl_folder() / name).read_text(encoding="utf-8"))


@cache
def known_keys() -> frozenset[str]:
    """Every dotted key of verl's files, tables included."""
    found: set[str] = set()
    for name in _GENERATED:
        for key, _ in flat(read(name)):
            steps = key.split(".")
            found.update(".".join(steps[: i + 1]) for i in range(len(steps)))
    return frozenset(found)


def check_keys(stated: Mapping[str, Any], where: str) -> None:
    """Refuse keys that verl would pass over in silence; `stated` is dotted.

    A key that is in none of verl's files is written with a `+`, as on verl's own command line. Raises ConfigError that
    names the key and the nearest one.
    """
    known = known_keys()
    for key in stated:
        if key.startswith("+") or key in known or key == "defaults":
            continue
        if key.startswith(_FREE_KEYS) or set(_FREE) & set(key.split(".")):
            continue
        raise ConfigError(
            f"{where}.{key}: verl's configuration has no such key{suggestion(key, known) or '.'} "
            f"Write +{key} for one that its files do not name"
        )


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of the leaves of a nested table; an empty table is a leaf."""
    for key, value in values.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping) and value:
            yield from flat(cast("Mapping[str, Any]", value), name)
        else:
            yield name, value
