"""The `reward:` block: how a finished episode is graded."""

from __future__ import annotations

import functools
import shutil
import subprocess
from abc import abstractmethod
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from uni_agent.config.base import Config, ConfigPath, PluginConfig, build_object, part_tag
from uni_agent.errors import ConfigError
from uni_agent.reward.base import AbstractRewardSpec


@functools.lru_cache(maxsize=1024)
def _unparsable(command: str) -> str:
    """What this machine's bash says against the syntax of `command`, "" for nothing (or without a bash to ask)."""
    bash = shutil.which("bash")
    if bash is None:
        return ""
    try:
        done = subprocess.run([bash, "-n"], input=command.encode(), capture_output=True, check=False, timeout=30)
    except subprocess.TimeoutExpired:
        return ""
    return done.stderr.decode("utf-8", "replace").strip() if done.returncode else ""


class BaseRewardConfig(Config):
    """Base of every member of `RewardConfig`; members add `type: Literal[...]`."""

    @abstractmethod
    def build(self) -> AbstractRewardSpec:
        """The spec. Imports what it needs here, not at module level."""


class GradingFile(Config):
    """A file that is written when grading starts, after the agent is gone. Exactly one of the three sources."""

    text: str | None = None
    """UTF-8 text."""
    base64: str | None = None
    """Any bytes."""
    path: ConfigPath | None = None
    """A local file; relative to the YAML file it is written in, in a task's overrides to the task file."""
    mode: int = 0o644
    """Permission bits."""

    @model_validator(mode="after")
    def _one_source(self) -> GradingFile:
        if sum(source is not None for source in (self.text, self.base64, self.path)) != 1:
            raise ValueError("give exactly one of `text`, `base64` and `path`")
        return self


class RegexScore(Config):
    """The score is a number in the command's output."""

    regex: str
    """Python regular expression, multi-line mode; the last match counts, its first group (or all of it) is the number.
    `{nonce}` stands for the value of UNI_AGENT_NONCE."""
    scale: float = 1.0
    """The number is multiplied by this."""

    @field_validator("regex")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        import re

        try:
            re.compile(pattern.replace("{nonce}", "0"))
        except re.error as error:
            raise ValueError(f"no regular expression: {error}") from error
        return pattern


class JsonScore(Config):
    """The score is a number in a JSON file that the command writes."""

    json_file: str
    """Path of the file, absolute or relative to `cwd`. A file of that name is removed before the command runs."""
    key: str = "score"
    """Where the number is, as `a.b`. Not used when the file holds a bare number."""
    scale: float = 1.0
    """The number is multiplied by this."""


class CommandRewardConfig(BaseRewardConfig):
    """Grades by a command that runs in the sandbox, in a shell of its own, after the agent is gone.

    It finds the agent's final answer in UNI_AGENT_ANSWER (whole in the file that UNI_AGENT_ANSWER_FILE names; the
    variable holds the first 96 kB) and a random value of this grading in UNI_AGENT_NONCE.
    """

    type: Literal["command"]
    command: str = Field(min_length=1)
    """Bash text. A failing part of a pipeline fails the pipeline."""
    timeout: float = Field(default=600.0, gt=0)
    """Seconds for the command. Past it there is no verdict (see `timeout_score`)."""
    cwd: str | None = None
    """Where it runs, absolute or relative to the task's working directory; None is the working directory itself."""
    env: dict[str, str] = {}
    """Environment variables of the command."""
    files: dict[str, str | GradingFile] = {}
    """Hidden files: path (absolute, or relative to the task's working directory) → text or GradingFile."""
    restore: list[str] = []
    """Files and folders, relative to the task's working directory, that are put back to the state the agent found; what
    it added there is removed. Done before `files` are written."""
    score: Literal["exit_code"] | RegexScore | JsonScore = "exit_code"
    """`exit_code` (0 is 1.0, everything else 0.0), or where a number is found."""
    resolved_at: float = 1.0
    """The task counts as solved from this score on."""
    error_exit_codes: list[int] = [124, 126, 127]
    """Exit codes that mean that grading failed: timed out, not executable, not found."""
    timeout_score: float | None = None
    """Score when the command runs past its timeout, for tasks where slow work is wrong work; None: no verdict."""
    log_bytes: int = Field(default=65_536, ge=1024)
    """Most bytes of output kept in the record: half from the start, half from the end."""

    @field_validator("restore")
    @classmethod
    def _inside(cls, paths: list[str]) -> list[str]:
        from pathlib import PurePosixPath

        for path in paths:
            parts = PurePosixPath(path).parts
            if not parts or path.startswith("/") or ".." in parts or parts[0] == ".git":
                raise ValueError(f"{path!r}: name a file or folder inside the working directory")
        return paths

    def build(self) -> AbstractRewardSpec:
        """The spec that runs the command. Raises ConfigError when bash cannot parse it: every score would be 0."""
        from uni_agent.reward.command import CommandReward

        if problem := _unparsable(self.command):
            raise ConfigError(f"reward.command: bash cannot parse it: {problem}")
        return CommandReward(self)


class DummyRewardConfig(BaseRewardConfig):
    """Grades without looking: for trying a pipeline out."""

    type: Literal["dummy"]
    score: float | None = None
    """Score of every episode; None: 1 when the agent ended it itself, else 0."""

    def build(self) -> AbstractRewardSpec:
        """The spec, which needs no sandbox."""
        from uni_agent.reward.dummy import DummyReward

        return DummyReward(self.score)


class PluginRewardConfig(PluginConfig):
    """A reward spec that this package does not ship: an AbstractRewardSpec built as `Class(**options)`."""

    def build(self) -> AbstractRewardSpec:
        """The plug-in's spec. Raises ConfigError when it cannot be loaded or built."""
        return build_object(self.type, self.options, AbstractRewardSpec)


RewardConfig = Annotated[
    Annotated[CommandRewardConfig, Tag("command")]
    | Annotated[DummyRewardConfig, Tag("dummy")]
    | Annotated[PluginRewardConfig, Tag("plugin")],
    Discriminator(part_tag),
]
"""Any reward spec, told apart by `type`."""
