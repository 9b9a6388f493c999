"""The system prompt and the messages of a Messages request.

Texts that stand next to each other are joined as they are, so "a" and "b" in two blocks are "ab" in one, and a content
that a client splits anew is still the same. Only where calls separate texts of an assistant turn, the line break that
the answer had there is put back if the client has dropped it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from uni_agent.gateway.errors import invalid
from uni_agent.gateway.protocols.anthropic_messages.blocks import (
    Block,
    blocks_of,
    call_of_block,
    clean,
    kind,
    parts_of,
    parts_of_block,
)
from uni_agent.gateway.protocols.anthropic_messages.tools import Offer
from uni_agent.gateway.protocols.reading import Parts, kind_of, listing, mapping, message_of, text
from uni_agent.types import Message, ToolCall

BILLING = "x-anthropic-billing-header"
"""Begins a system block that Claude Code writes anew for each conversation; it says nothing to the model."""

Blocks = Sequence[tuple[Block, str]]


@dataclass(frozen=True, slots=True)
class History:
    """`loaded` are the names of tools that were referred to; `ignored` names roles that were taken for `user`."""

    messages: tuple[Message, ...]
    loaded: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


def read_system(value: Any, offer: Offer) -> tuple[Message, ...]:
    """The one system message in front, or none. Raises GatewayError.

    Blocks that start with `BILLING` are left out; of a string that starts so, its first line.
    """
    if isinstance(value, str) and value.startswith(BILLING):
        value = value.partition("\n")[2]
    parts: Parts = []
    for block, path in blocks_of(value, "system"):
        written = block.get("text")
        if not (isinstance(written, str) and written.startswith(BILLING)):
            parts += parts_of_block(block, path, offer.reference)
    return (message_of("system", parts),) if parts else ()


def read_messages(value: Any, offer: Offer) -> History:
    """The conversation. Raises GatewayError."""
    items = listing(value, "messages")
    if not items:
        raise invalid("messages: expected at least one message", "messages")
    reader = _Reader(offer)
    for i, item in enumerate(items):
        message = mapping(item, f"messages[{i}]")
        role = message.get("role")
        if not isinstance(role, str):
            raise invalid(f"messages[{i}].role: expected a role, got {kind_of(role)}", f"messages[{i}].role")
        reader.add(role, message.get("content"), f"messages[{i}].content")
    return reader.finish()


class _Reader:
    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self._out: list[Message] = []
        self._turn: _Turn | None = None
        self._loaded: dict[str, None] = {}
        self._ignored: dict[str, None] = {}

    def add(self, role: str, content: Any, param: str) -> None:
        if role == "assistant":
            self._assistant(blocks_of(content, param))
            return
        self._end_turn()
        if role in ("system", "developer"):
            self._out.append(message_of("system", parts_of(content, param, self._reference)))
            return
        if role != "user":
            self._ignored[f"messages: role {role:.40}"] = None
        self._user(blocks_of(content, param))

    def finish(self) -> History:
        self._end_turn()
        return History(tuple(self._out), tuple(self._loaded), tuple(self._ignored))

    def _reference(self, name: str) -> str:
        self._loaded[name] = None
        return self._offer.reference(name)

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._out.append(self._turn.message())
            self._turn = None

    def _assistant(self, blocks: Blocks) -> None:
        first = kind(*blocks[0]) if blocks else ""
        if self._turn is None or not self._turn.goes_on_with(first):
            self._end_turn()
            self._turn = _Turn()
        for block, path in blocks:
            self._turn.add(block, path, self._reference)

    def _user(self, blocks: Blocks) -> None:
        """Tool results in front, as the template wants them behind their calls; then everything else in its order."""
        parts: Parts = []
        results = False
        for block, path in blocks:
            if kind(block, path) == "tool_result":
                results = True
                self._out.append(self._result(block, path))
            else:
                parts += parts_of_block(block, path, self._reference)
        if parts or not results:
            self._out.append(message_of("user", parts))

    def _result(self, block: Block, param: str) -> Message:
        """`is_error` only repeats what the text says, so it is not shown."""
        parts = parts_of(block.get("content"), f"{param}.content", self._reference)
        answered = clean(text(block.get("tool_use_id"), f"{param}.tool_use_id"))
        return message_of("tool", parts, tool_call_id=answered)


@dataclass(slots=True)
class _Turn:
    """One assistant message."""

    parts: Parts = field(default_factory=Parts)
    thoughts: list[str] = field(default_factory=list[str])
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    called: bool = False
    """Whether a call stands between the last text and what comes next."""

    def goes_on_with(self, first: str) -> bool:
        """Whether a further assistant message, whose first block is of the type `first`, is of the same turn.

        So it is when a turn was split between its blocks. Text behind text is a turn of its own: one that was cut, and
        the one that went on from there.
        """
        return bool(self.calls) or (bool(self.parts or self.thoughts) and first == "tool_use") or self._thought_only

    @property
    def _thought_only(self) -> bool:
        return bool(self.thoughts) and not self.parts

    def add(self, block: Block, param: str, reference: Any) -> None:
        match kind(block, param):
            case "thinking":
                thought = clean(text(block.get("thinking"), f"{param}.thinking"))
                self.thoughts += [thought] if thought else []
            case "redacted_thinking":
                pass
            case "tool_use":
                self.calls.append(call_of_block(block, param))
                self.called = True
            case _:
                for part in parts_of_block(block, param, reference):
                    self._text(part) if isinstance(part, str) else self.parts.append(part)

    def message(self) -> Message:
        return message_of("assistant", self.parts, reasoning="".join(self.thoughts), tool_calls=tuple(self.calls))

    def _text(self, part: str) -> None:
        before = next((p for p in reversed(self.parts) if isinstance(p, str)), "")
        if self.called and before and not (before.endswith("\n") or part.startswith("\n")):
            part = "\n" + part
        self.called = False
        self.parts.append(part)
