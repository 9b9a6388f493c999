"""Verl's configuration as Hydra composes it from ours, without starting anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from uni_agent.errors import ConfigError
from uni_agent.optional import load


def resolved_config(folder: Path, entry: str = "verl.trainer.main_ppo") -> dict[str, Any]:
    """The configuration `train.yaml` of `folder`, verl's defaults included, interpolations resolved.

    Verl's own checks of it are made as well. Raises ConfigError with the reason of Hydra or verl, MissingExtraError
    when verl is not installed.
    """
    load("verl", extra="train", needed_for="training")
    hydra = load("hydra", extra="train", needed_for="training")
    omegaconf = load("omegaconf", extra="train", needed_for="training")
    try:
        with hydra.initialize_config_dir(str(folder.absolute()), version_base=None):
            composed = hydra.compose("train")
        if entry == "verl.trainer.main_ppo":
            _check(composed)
        plain: dict[str, Any] = omegaconf.OmegaConf.to_container(composed, resolve=True)
    except Exception as error:  # whatever Hydra, OmegaConf or verl's asserts raise is about the configuration
        raise ConfigError(f"train: verl does not take this configuration: {type(error).__name__}: {error}") from error
    return plain


def _check(composed: Any) -> None:
    utils = load("verl.trainer.ppo.utils", extra="train", needed_for="training")
    config = load("verl.utils.config", extra="train", needed_for="training")
    config.validate_config(
        config=composed,
        use_reference_policy=utils.need_reference_policy(composed),
        use_critic=utils.need_critic(composed),
    )
