"""What a tool is: a name, typed arguments, and one bash line that runs it in the sandbox."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict


class Arguments(BaseModel):
    """Base of a tool's arguments; attribute docstrings become the parameter descriptions the model reads."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, coerce_numbers_to_str=True)


@dataclass(frozen=True, slots=True)
class ToolScript:
    """A program that is installed in the sandbox as `<tool_install_dir>/<name>`, mode 0755."""

    name: str
    content: bytes


class AbstractTool(ABC):
    """A tool the model may call.

    Subclasses set `name`, `description` and `Arguments`, and turn validated arguments into one bash command. It runs in
    the agent's own shell session (so `cd` and `export` last), with every script of `scripts()` on the PATH. Model text
    inside the command must be quoted (`shlex.quote`) unless it is meant to be shell.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    Arguments: ClassVar[type[BaseModel]]
    ends_episode: ClassVar[bool] = False
    """Whether a successful call ends the episode (`finish`, `submit`)."""

    @abstractmethod
    def command(self, arguments: Any) -> str:
        """The bash command for `arguments` (an instance of `Arguments`).

        Raises ValueError to refuse the call; the model reads the message.
        """

    def scripts(self) -> list[ToolScript]:
        """Programs to install; none by default."""
        return []

    def env(self) -> Mapping[str, str]:
        """Environment variables that the tool's scripts read; none by default."""
        return {}

    def endpoints(self) -> list[str]:
        """Origins (`http://host:port`) that the sandbox must reach for this tool; none by default."""
        return []

    def answer(self, arguments: Any) -> str:
        """The final answer that a call with `arguments` gives; "" for tools that give none."""
        del arguments
        return ""

    def schema(self) -> dict[str, Any]:
        """The OpenAI function schema: titles dropped, `Optional` collapsed, key order as declared."""
        from uni_agent.tools.schema import function_schema

        return function_schema(self)
