"""What belongs to this machine, from `UNI_AGENT_…` variables. What a run does is never set here."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from uni_agent.config.problems import ConfigReport, Problem
from uni_agent.config.report import problems

PREFIX = "UNI_AGENT_"


class Settings(BaseSettings):
    """What this machine or this user fixes for every run."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="ignore", use_attribute_docstrings=True, env_ignore_empty=True
    )

    runs_dir: Path = Path("runs")
    """Folder where `show` and `export` look for runs."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """How much a run writes to its `run.log`."""


def load_settings() -> Settings:
    """The settings of this environment. Raises ConfigReport that names the variable."""
    try:
        settings = Settings()
    except ValidationError as error:
        raise ConfigReport(
            Problem("environment", PREFIX + text.partition(":")[0].upper(), text.partition(": ")[2])
            for text in problems(error, Settings)
        ) from error
    return settings.model_copy(update={"runs_dir": settings.runs_dir.expanduser()})
