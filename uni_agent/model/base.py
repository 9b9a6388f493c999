"""The one protocol through which an episode talks to a model, whatever is behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from uni_agent.tokens.base import ToolSchema
from uni_agent.tokens.cache import RolloutCache
from uni_agent.types import Message, Usage


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """One assistant turn, already committed to the session.

    `finish_reason`: `stop`, `tool_calls`, `length` (cut by the cap on this turn) or `context` (cut because the window
    is full). `token_span` is the half-open range in `RolloutCache.response_ids`, (0, 0) without tokens. `parse_failed`
    says that call markup was seen but no usable call came of it (a parser that does not fit the model shows here).
    """

    message: Message
    finish_reason: Literal["stop", "tool_calls", "length", "context"]
    usage: Usage = Usage()
    token_span: tuple[int, int] = (0, 0)
    parse_failed: bool = False


class ChatSession(Protocol):
    """One conversation with a model. Not safe for concurrent calls.

    A call that fails or is cancelled leaves the session as it was before the call.
    """

    @property
    def messages(self) -> list[Message]:
        """The conversation so far, the assistant turns included."""
        ...

    @property
    def caches(self) -> Sequence[RolloutCache]:
        """The token chains of this conversation; empty for models without tokens."""
        ...

    async def query(self) -> ModelTurn:
        """Sample the next assistant turn and commit it.

        Raises ContextLengthError when no token fits, TurnTooLongError past the model's deadline, ModelError otherwise.
        """
        ...

    async def observe(self, messages: Sequence[Message]) -> None:
        """Append tool results or user messages after an assistant turn.

        Raises ContextLengthError when they do not fit; then nothing is appended.
        """
        ...

    async def close(self) -> None:
        """Free what the engine keeps for this session. Idempotent."""
        ...


class ChatModel(Protocol):
    """A model that many episodes share."""

    async def start(self) -> None:
        """Load or connect. Raises ModelError, or ConfigError for what the user can mend. Idempotent."""
        ...

    async def probe(self) -> None:
        """Check that the model answers, before any sandbox starts. Raises ConfigError with the cure."""
        ...

    async def open(self, request_id: str, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> ChatSession:
        """A new conversation that starts with `messages`."""
        ...

    async def close(self) -> None: ...
