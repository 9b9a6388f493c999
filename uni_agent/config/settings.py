"""Secrets and paths of this machine, from `UNI_AGENT_…` variables. What a run does is never set here."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from uni_agent.config.problems import ConfigReport, Problem
from uni_agent.config.report import problems
from uni_agent.config.secrets import secret

__all__ = ["Settings", "load_settings", "secret"]

PREFIX = "UNI_AGENT_"


class Settings(BaseSettings):
    """What this machine or this user fixes for every run."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="ignore", use_attribute_docstrings=True, env_ignore_empty=True
    )

    runs_dir: Path = Path("runs")
    """Folder where viewers look for runs."""
    cache_dir: Path = Path("~/.cache/uni-agent")
    """Folder for what can be fetched or built again."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """How much is logged."""
    admin_token: SecretStr | None = None
    """Password of the dashboard's and the gateway's control endpoints; without it they are off."""


def load_settings() -> Settings:
    """The settings of this environment. Raises ConfigReport that names the variable."""
    try:
        settings = Settings()
    except ValidationError as error:
        raise ConfigReport(
            Problem("environment", PREFIX + text.partition(":")[0].upper(), text.partition(": ")[2])
            for text in problems(error, Settings)
        ) from error
    return settings.model_copy(
        update={"runs_dir": settings.runs_dir.expanduser(), "cache_dir": settings.cache_dir.expanduser()}
    )
