"""The tools of one pipeline: what the model is shown, what the sandbox is given, and how a call becomes a command."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from uni_agent.config.suggest import closest
from uni_agent.errors import ConfigError
from uni_agent.tools.base import AbstractTool, ToolScript
from uni_agent.types import ToolCall

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
# What the model reads of its own mistakes is bounded: a call may hold megabytes.
_SHOWN_NAME = 100
_SHOWN_PROBLEMS = 20
_SCRIPT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,98}")


@dataclass(frozen=True, slots=True)
class BoundCall:
    """A valid call: its tool, the checked arguments, and the bash command that carries it out in the agent's shell."""

    tool: AbstractTool
    arguments: BaseModel
    command: str

    @property
    def ends_episode(self) -> bool:
        """Whether the episode ends once the command has succeeded."""
        return self.tool.ends_episode

    @property
    def answer(self) -> str:
        """The final answer that the call gives; "" for tools that give none."""
        return self.tool.answer(self.arguments)


class Toolset:
    """Tools with distinct names, in the order in which the model sees them.

    Raises ConfigError for names that clash or cannot be used, and for programs or variables of two tools that differ.
    """

    def __init__(self, tools: Sequence[AbstractTool]) -> None:
        self.tools = tuple(tools)
        self._by_name: dict[str, AbstractTool] = {}
        for tool in self.tools:
            if not _NAME.fullmatch(tool.name):
                raise ConfigError(f"tool name {tool.name!r}: use 1 to 64 letters, digits, `_` and `-`")
            if tool.name in self._by_name:
                raise ConfigError(f"tools: {tool.name!r} is listed twice; tool names must be distinct")
            self._by_name[tool.name] = tool
        self._scripts = _merge_scripts(self.tools)
        self._env = _merge_env(self.tools)
        self._schemas = [tool.schema() for tool in self.tools]

    @property
    def names(self) -> list[str]:
        """The tools' names, in order."""
        return list(self._by_name)

    def get(self, name: str) -> AbstractTool | None:
        """The tool of that name, None when there is none."""
        return self._by_name.get(name)

    def schemas(self) -> list[dict[str, Any]]:
        """The OpenAI function schemas, in order; to be read, not changed."""
        return list(self._schemas)

    def scripts(self) -> list[ToolScript]:
        """Every program to install, each once."""
        return list(self._scripts)

    def env(self) -> dict[str, str]:
        """The environment variables that the programs read."""
        return dict(self._env)

    def endpoints(self) -> list[str]:
        """The origins that the sandbox has to reach, each once."""
        return list(dict.fromkeys(origin for tool in self.tools for origin in tool.endpoints()))

    def install_archive(self, target_dir: str = "") -> bytes:
        """A tar archive of every program, mode 0755, at `target_dir` inside it ("" is its root).

        `sandbox.write_tree(folder, toolset.install_archive())` installs all of them in one round trip. Equal toolsets
        give equal bytes. Empty toolsets give an archive without members.
        """
        prefix = target_dir.strip("/")
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for script in self._scripts:
                member = tarfile.TarInfo(f"{prefix}/{script.name}" if prefix else script.name)
                member.size = len(script.content)
                member.mode = 0o755
                archive.addfile(member, io.BytesIO(script.content))
        return buffer.getvalue()

    def bind(self, call: ToolCall) -> BoundCall | str:
        """The command for a call, or the sentence that tells the model what is wrong with it.

        Values are read generously (`"7"` for 7, a JSON text for a list, null for a parameter left out), parameters that
        the tool does not have are always an error.
        """
        if call.error is not None:
            return call.error
        tool = self._by_name.get(call.name)
        if tool is None:
            return self._unknown_tool(call.name)
        try:
            arguments = _validate(tool.Arguments, call.arguments)
            command = tool.command(arguments)
            _check_command(call.arguments, command)
        except ValidationError as error:
            problems = "; ".join(_problems(error, tool.Arguments))
            return f"Invalid arguments for tool `{tool.name}`: {problems}."
        except ValueError as error:
            return f"Invalid arguments for tool `{tool.name}`: {error}."
        return BoundCall(tool, arguments, command)

    def _unknown_tool(self, name: str) -> str:
        listed = ", ".join(f"`{known}`" for known in self._by_name) or "none"
        if not name:
            return f"The call names no tool. Tools: {listed}."
        name = name[:_SHOWN_NAME]
        return f"There is no tool {name!r}{_did_you_mean(name, self.names)}. Tools: {listed}."


def _merge_scripts(tools: Sequence[AbstractTool]) -> tuple[ToolScript, ...]:
    merged: dict[str, ToolScript] = {}
    for tool in tools:
        for script in tool.scripts():
            if not _SCRIPT_NAME.fullmatch(script.name):
                raise ConfigError(f"tool {tool.name!r}: {script.name!r} cannot be the name of a program")
            if merged.setdefault(script.name, script) != script:
                raise ConfigError(f"tool {tool.name!r}: another tool installs a different program {script.name!r}")
    return tuple(merged.values())


def _merge_env(tools: Sequence[AbstractTool]) -> dict[str, str]:
    merged: dict[str, str] = {}
    for tool in tools:
        for key, value in tool.env().items():
            if merged.setdefault(key, value) != value:
                raise ConfigError(f"tool {tool.name!r}: another tool sets {key} to a different value")
    return merged


def _validate(model: type[BaseModel], raw: dict[str, Any]) -> BaseModel:
    """Validate, reading null as left out where that is allowed, and JSON texts where a list or object is expected."""
    fields = model.model_fields
    values = {
        key: value
        for key, value in raw.items()
        if not (value is None and key in fields and not fields[key].is_required())
    }
    try:
        return model.model_validate(values)
    except ValidationError as error:
        decoded = {
            str(item["loc"][0]): _decoded(item["input"])
            for item in error.errors(include_url=False)
            if item["loc"] and item["type"] in ("list_type", "dict_type", "model_type")
        }
        decoded = {key: value for key, value in decoded.items() if value is not None and isinstance(raw.get(key), str)}
        if not decoded:
            raise
        return model.model_validate({**values, **decoded})


def _decoded(text: Any) -> list[Any] | dict[str, Any] | None:
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return value if isinstance(value, list | dict) else None  # pyright: ignore[reportUnknownVariableType]


def _check_command(raw: dict[str, Any], command: str) -> None:
    """Refuse what no shell can be given. Raises ValueError."""
    for key, value in raw.items():
        if isinstance(value, str) and "\0" in value:
            name = key[:_SHOWN_NAME]
            raise ValueError(f"`{name}` contains a NUL character, which can stand in no command and no text file")
    try:
        command.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"the arguments contain {error.object[error.start]!r}, which is no character") from error
    if "\0" in command:
        raise ValueError("the arguments contain a NUL character")


def _problems(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """One clause for each fault: which parameter, what was expected, what was given."""
    known = list(model.model_fields)
    clauses: list[str] = []
    for item in error.errors(include_url=False):
        parts = (str(part) for part in item["loc"] if isinstance(part, int) or not part.startswith("function-"))
        name = ".".join(parts)[:_SHOWN_NAME]
        match item["type"]:
            case "missing":
                clause = f"the required parameter `{name}` is missing"
            case "extra_forbidden":
                listed = ", ".join(f"`{key}`" for key in known) or "none"
                clause = f"there is no parameter `{name}`{_did_you_mean(name, known)} (parameters: {listed})"
            case "value_error" if not item["loc"]:
                clause = item["msg"].removeprefix("Value error, ")
            case _:
                clause = f"`{name}`: {_lower_first(item['msg'])}, got {_short(item['input'])}"
        if clause not in clauses:
            clauses.append(clause)
        if len(clauses) > _SHOWN_PROBLEMS:
            return [*clauses[:_SHOWN_PROBLEMS], "and more"]
    return clauses


def _did_you_mean(name: str, known: Sequence[str]) -> str:
    close = closest(name, known)
    return f"; did you mean `{close}`?" if close else ""


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 80 else f"{text[:80]}..."
