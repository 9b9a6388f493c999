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
    omegaconf = load("omegaconf", extra="train", needed_for="training")
    settings = composed(folder)
    try:
        if entry == "verl.trainer.main_ppo":
            _check(settings)
        plain: dict[str, Any] = omegaconf.OmegaConf.to_container(settings, resolve=True)
    except Exception as error:  # whatever Hydra, OmegaConf or verl's asserts raise is about the configuration
        raise ConfigError(f"train: verl does not take this configuration: {type(error).__name__}: {error}") from error
    return plain


def composed(folder: Path) -> Any:
    """The configuration `train.yaml` of `folder` over verl's defaults, as Hydra's DictConfig. Raises ConfigError."""
    hydra = load("hydra", extra="train", needed_for="verl's configuration")
    try:
        with hydra.initialize_config_dir(str(folder.absolute()), version_base=None):
            return hydra.compose("train")
    except Exception as error:  # Hydra's errors have no common base
        raise ConfigError(f"verl does not take this configuration: {type(error).__name__}: {error}") from error


def _check(settings: Any) -> None:
    utils = load("verl.trainer.ppo.utils", extra="train", needed_for="training")
    config = load("verl.utils.config", extra="train", needed_for="training")
    config.validate_config(
        config=settings,
        use_reference_policy=utils.need_reference_policy(settings),
        use_critic=utils.need_critic(settings),
    )
