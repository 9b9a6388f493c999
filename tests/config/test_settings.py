"""Secrets and machine paths come from the environment, and from nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from uni_agent.config import ConfigReport, secret
from uni_agent.config.redact import HIDDEN, redact
from uni_agent.config.settings import load_settings
from uni_agent.errors import ConfigError


def test_a_secret_is_read_from_the_variable_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", " sk-1\n")
    assert secret("SOME_KEY") == "sk-1"


def test_a_missing_secret_names_the_key_and_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"^model\.api_key_env names SOME_KEY, which is not set"):
        secret("SOME_KEY")
    monkeypatch.setenv("SOME_KEY", "")
    with pytest.raises(ConfigError, match=r"^reward\.key_env names SOME_KEY, which is empty"):
        secret("SOME_KEY", "reward.key_env")


def test_settings_come_from_prefixed_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNI_AGENT_RUNS_DIR", "~/runs")
    monkeypatch.setenv("UNI_AGENT_LOG_LEVEL", "DEBUG")
    settings = load_settings()
    assert settings.runs_dir == Path("~/runs").expanduser()
    assert settings.log_level == "DEBUG"


def test_a_bad_setting_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNI_AGENT_LOG_LEVEL", "LOUD")
    with pytest.raises(ConfigReport, match=r"UNI_AGENT_LOG_LEVEL: expected one of 'DEBUG'"):
        load_settings()


def test_redaction_hides_secrets_and_keeps_what_only_sounds_like_one() -> None:
    data = {
        "api_key": "a",
        "api_key_env": "OPENAI_API_KEY",
        "headers": {"Authorization": "b", "x-api-key": "c"},
        "env": {"HF_TOKEN": "d", "PATH": "/bin"},
        "url": "https://user:pw@host/x",
        "max_tokens": 5,
        "pad_token": "<pad>",
        "list": [{"password": "e"}],
        "token": None,
    }
    assert redact(data) == {
        "api_key": HIDDEN,
        "api_key_env": "OPENAI_API_KEY",
        "headers": {"Authorization": HIDDEN, "x-api-key": HIDDEN},
        "env": {"HF_TOKEN": HIDDEN, "PATH": "/bin"},
        "url": f"https://{HIDDEN}@host/x",
        "max_tokens": 5,
        "pad_token": "<pad>",
        "list": [{"password": HIDDEN}],
        "token": None,
    }
