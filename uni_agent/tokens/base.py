"""The seams between messages and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from uni_agent.types import Message, ToolCall

ToolSchema = dict[str, Any]
"""An OpenAI function schema: `{"type": "function", "function": {name, description, parameters}}`."""


@dataclass(frozen=True, slots=True)
class ParsedOutput:
    """What one generated text says.

    `content` is the text outside thinking and calls. Every call, broken or not, is in `tool_calls` in order; a broken
    one has `error` set. `marker_seen` is True when call markup was seen although no usable call came of it.
    """

    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    marker_seen: bool = False


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of `content` (or of the thinking, when `reasoning`)."""

    text: str
    reasoning: bool = False


@dataclass(frozen=True, slots=True)
class CallStarted:
    """Call number `index` (from 0) begins; its name is final."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of the JSON text of call `index`'s arguments. Joined, they are the JSON of the final arguments."""

    index: int
    text: str


ParserEvent = TextDelta | CallStarted | ArgumentsDelta


class StreamingParse(Protocol):
    """One generation being parsed. `parse(whole)` and any split fed here agree."""

    def feed(self, text: str) -> list[ParserEvent]: ...

    def finish(self) -> tuple[list[ParserEvent], ParsedOutput]:
        """The rest of the events and the whole result. Call once."""
        ...


class StreamingDecode(Protocol):
    """The text of one generation while its ids arrive. Joined, the texts are `Renderer.decode` of all ids."""

    def push(self, ids: Sequence[int]) -> str:
        """The text that `ids` completed; what more ids could change is held back."""
        ...

    def finish(self) -> str:
        """The text that was held back."""
        ...


class ToolParser(Protocol):
    """Reads tool calls out of generated text. Never evaluates it, never raises on it."""

    def parse(self, text: str, tools: Sequence[ToolSchema]) -> ParsedOutput: ...

    def stream(self, tools: Sequence[ToolSchema]) -> StreamingParse: ...


class Renderer(Protocol):
    """Messages and tools to token ids, and sampled ids back to a message."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Ids at which an assistant turn stops."""
        ...

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        """Those of them with which the template itself ends a turn.

        A turn that stopped at another one (`<|endoftext|>`) keeps it, and the template's own end follows as context.
        """
        ...

    def initial(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[int]:
        """The full render of `messages` with the generation prompt, encoded."""
        ...

    def extension(
        self,
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[ToolSchema],
        *,
        cut: bool,
        chain: Sequence[int] | None = None,
    ) -> list[int]:
        """Ids that follow a chain whose last piece is a sampled assistant turn.

        They are what the template puts after that turn, the `new` messages, and the generation prompt. `history` ends
        with that assistant message. `cut`: the turn ends with none of `end_token_ids`, so the closing token comes first
        (see `closing_ids`). A sampled stop token that is also the next header is not repeated. The cost depends on
        `new` alone.
        """
        ...

    def shows_thinking(self, ids: Sequence[int]) -> bool:
        """Whether a sampled turn has a thinking block, be it empty, or stands behind one of the generation prompt."""
        ...

    def drops_thinking(self, calls: Sequence[ToolCall], new: Sequence[Message], tools: Sequence[ToolSchema]) -> bool:
        """Whether a full render leaves out the thinking of earlier turns once `new` follows a turn with `calls`.

        The cost depends on `new` alone.
        """
        ...

    def closing_ids(self) -> list[int]:
        """What ends an assistant turn that does not end by itself; appended as context, never trained. May be empty."""
        ...

    def parse(self, ids: Sequence[int], tools: Sequence[ToolSchema]) -> ParsedOutput:
        """The message that a generation says; a final stop token is not part of it."""
        ...

    def stream(self, tools: Sequence[ToolSchema]) -> StreamingParse:
        """The same for text that arrives in pieces (without the stop token)."""
        ...

    def stream_text(self) -> StreamingParse:
        """The same where no call may be made: call markup is content as it stands."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, control tokens included."""
        ...

    def decoder(self) -> StreamingDecode:
        """The same for ids that arrive in pieces: a new decoder for one generation."""
        ...

    def limit(self, text: str, max_tokens: int, notice: str) -> str:
        """`text` cut to at most `max_tokens` tokens, head and tail kept whole, `notice` (with `{omitted}`) between."""
        ...
