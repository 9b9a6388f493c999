"""A model that plays what it is told: for demos and tests, in place of mocks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from uni_agent.errors import ConfigError, ModelError
from uni_agent.model.base import ModelTurn
from uni_agent.tokens.base import ToolSchema
from uni_agent.tokens.cache import RolloutCache
from uni_agent.types import Message, ToolCall

Play = Callable[[str, list[Message], int], Message | Exception]
"""(request_id, conversation so far, turn from 0) → the next assistant message, or the error to raise."""


@dataclass(slots=True)
class ScriptedModel:
    """Answers every turn with what `play` says, after `delay` seconds."""

    play: Play
    delay: float = 0.0

    @classmethod
    def of(cls, turns: Sequence[Message | Exception], *, delay: float = 0.0) -> ScriptedModel:
        """Each conversation plays `turns` from the top; past the end the last one repeats."""

        def play(request_id: str, messages: list[Message], turn: int) -> Message | Exception:
            del request_id, messages
            return turns[min(turn, len(turns) - 1)]

        return cls(play, delay)

    @classmethod
    def from_file(cls, path: Path) -> ScriptedModel:
        """The model of a JSON-lines script (see ScriptedModelConfig). Raises ConfigError that names file and line."""
        common: list[Message] = []
        by_task: dict[str, list[Message]] = {}
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"model.path: cannot read {path}: {error}") from error
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                raw = json.loads(line)
                turn = _message(raw)
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(f"{path}:{number}: not a turn: {type(error).__name__}: {error}") from error
            by_task.setdefault(raw["task"], []).append(turn) if raw.get("task") else common.append(turn)
        if not common and not by_task:
            raise ConfigError(f"model.path: {path} holds no turns")

        def play(request_id: str, messages: list[Message], turn: int) -> Message | Exception:
            del messages
            turns = by_task.get(request_id.rpartition("#")[0], common)
            return turns[min(turn, len(turns) - 1)] if turns else ModelError(f"no scripted turns for {request_id!r}")

        return cls(play)

    async def start(self) -> None:
        """Nothing to load."""

    async def probe(self) -> None:
        """Always there."""

    async def open(self, request_id: str, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> ScriptedSession:
        """A conversation that plays the script."""
        del tools
        return ScriptedSession(self, request_id, list(messages))

    async def close(self) -> None:
        """Nothing to free."""


@dataclass(slots=True)
class ScriptedSession:
    """One conversation with a scripted model; it has no tokens."""

    model: ScriptedModel
    request_id: str
    messages: list[Message]
    turn: int = 0

    @property
    def caches(self) -> Sequence[RolloutCache]:
        """Always empty."""
        return ()

    async def query(self) -> ModelTurn:
        """The next scripted turn."""
        if self.model.delay:
            await asyncio.sleep(self.model.delay)
        played = self.model.play(self.request_id, self.messages, self.turn)
        if isinstance(played, Exception):
            raise played
        calls = tuple(replace(c, id=c.id or f"call_{self.turn}_{i}") for i, c in enumerate(played.tool_calls))
        message = replace(played, tool_calls=calls)
        self.messages.append(message)
        self.turn += 1
        return ModelTurn(message, "tool_calls" if calls else "stop")

    async def observe(self, messages: Sequence[Message]) -> None:
        """Append."""
        self.messages.extend(messages)

    async def close(self) -> None:
        """Nothing to free."""


def _message(raw: dict[str, Any]) -> Message:
    calls: list[dict[str, Any]] = raw.get("tool_calls") or []
    return Message(
        role="assistant",
        content=raw.get("content") or "",
        reasoning=raw.get("reasoning") or "",
        tool_calls=tuple(
            ToolCall("", c["name"], dict(c.get("arguments") or {}), json.dumps(c.get("arguments") or {})) for c in calls
        ),
    )
