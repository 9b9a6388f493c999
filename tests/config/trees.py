"""A small configuration tree with every kind of place that the loader has to understand."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, SecretStr, Tag, field_validator

from uni_agent.config import Config, ConfigPath, PluginConfig, part_tag


class Level(StrEnum):
    LOW = "low"
    HIGH = "high"


class EngineA(Config):
    """The engine A."""

    type: Literal["a"]
    path: ConfigPath


class EngineB(Config):
    """The engine B."""

    type: Literal["b"]
    url: str = "http://localhost"
    """Where it listens."""
    workers: int = 1


Engine = Annotated[EngineA | EngineB, Field(discriminator="type")]


class ApiModel(Config):
    """A model behind an API."""

    type: Literal["api"]
    url: str = ""
    api_key_env: str | None = None
    api_key: SecretStr | None = None
    timeout: float = 60.0


class TokenModel(Config):
    """A model of tokens."""

    type: Literal["tokens"]
    engine: Engine
    parser: Literal["hermes", "xml"] = "xml"


Model = Annotated[
    Annotated[ApiModel, Tag("api")] | Annotated[TokenModel, Tag("tokens")] | Annotated[PluginConfig, Tag("plugin")],
    Discriminator(part_tag),
]


class Local(Config):
    """Containers of this machine."""

    type: Literal["local"] = "local"
    image: str = "base"
    startup_timeout: float = 10.0


class Host(Config):
    """This machine itself."""

    type: Literal["host"] = "host"
    startup_timeout: float = 20.0
    workdir: ConfigPath | None = None


Deploy = Annotated[
    Annotated[Local, Tag("local")] | Annotated[Host, Tag("host")] | Annotated[PluginConfig, Tag("plugin")],
    Discriminator(part_tag),
]


class Bash(Config):
    """Runs commands."""

    type: Literal["bash"]
    timeout: float = 30.0


class Finish(Config):
    """Ends the episode."""

    type: Literal["finish"]


Tool = Annotated[Annotated[Bash, Tag("bash")] | Annotated[Finish, Tag("finish")], Discriminator(part_tag)]


class Agent(Config):
    """One member only, as a union that has just begun."""

    type: Literal["loop"] = "loop"
    max_steps: int = 5
    prompt: str | None = None


AgentUnion = Annotated[Annotated[Agent, Tag("loop")], Discriminator(part_tag)]


class Interaction(Config):
    """Limits."""

    max_turns: int = Field(default=50, ge=1)
    """Turns the model gets."""
    action_timeout: float | None = 60.0
    chat: bool = False
    level: Level = Level.LOW


class Pipeline(Config):
    """The whole tree."""

    name: str = "run"
    tag: str | None = None
    model: Model
    agent: AgentUnion = Agent()
    tools: list[Tool] = [Bash(type="bash"), Finish(type="finish")]
    deployment: Deploy = Local(image="swe", startup_timeout=30.0)
    interaction: Interaction = Interaction()
    env: dict[str, str] = {}
    free: dict[str, Any] = {}
    data: ConfigPath | None = None
    limit: int | Literal["all"] = "all"
    either: str | Finish | None = None

    @field_validator("name")
    @classmethod
    def _named(cls, name: str) -> str:
        if " " in name:
            raise ValueError("a name has no spaces")
        return name


def write(folder: Path, name: str, text: str) -> Path:
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    return target
