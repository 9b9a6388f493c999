"""A turn as Messages events.

Blocks come one after the other, each closed before the next opens: clients tell deltas apart by nothing else. So one
block is live and what follows it waits. Thinking and text are closed when something else begins. The first call stays
live until `finish`, behind the commit, and the rest comes then: Claude Code runs a call as soon as its block is closed,
also when the turn fails afterwards (measured with 2.1.332), and no call may run that is on no record. So deltas of
calls that interleave cannot mix either.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from uni_agent.gateway.canonical import FinishedTurn, TurnHead
from uni_agent.gateway.errors import GatewayError
from uni_agent.gateway.protocols.anthropic_messages.errors import error_body
from uni_agent.gateway.protocols.anthropic_messages.response import (
    call_block,
    ending,
    message,
    signature,
    text_block,
    usage,
)
from uni_agent.gateway.protocols.sse import frame
from uni_agent.tokens.base import CallStarted, ParserEvent, TextDelta
from uni_agent.tokens.parsers import jsontext

Kind = Literal["text", "thinking", "call"]


HELD_PER_PING = 64
"""Events that may wait before a ping says that there is still something coming."""


@dataclass(slots=True)
class _Block:
    """`pieces` is everything it says so far; those before `sent` are with the client. `call` is a call's index."""

    kind: Kind
    pieces: list[str] = field(default_factory=list[str])
    sent: int = 0
    call: int = -1
    name: str = ""


class MessagesStream:
    """`StreamEncoder` of the Messages API."""

    def __init__(self, head: TurnHead) -> None:
        self._head = head
        self._blocks: list[_Block] = []
        self._live = 0
        self._opened = False
        self._calls: dict[int, _Block] = {}
        self._space: dict[Kind, str] = {}
        self._held = 0

    def opening(self) -> bytes:
        """`message_start` and a ping."""
        return _event("message_start", message=message(self._head, [])) + self.heartbeat()

    def event(self, event: ParserEvent) -> bytes:
        """What one event adds to the live block; nothing where it belongs to a later one."""
        if isinstance(event, TextDelta):
            self._text("thinking" if event.reasoning else "text", event.text)
        elif isinstance(event, CallStarted):
            self._call(event.index, event.name)
        elif event.text:
            self._calls[event.index].pieces.append(event.text)
        out = self._flow()
        self._held = 0 if out else self._held + 1
        return out if self._held == 0 or self._held % HELD_PER_PING else self.heartbeat()

    def heartbeat(self) -> bytes:
        """A ping."""
        return _event("ping")

    def finish(self, turn: FinishedTurn) -> bytes:
        """What is left of the blocks, why the turn ended, and `message_stop`.

        What a committed turn says and no event said is sent here, so an engine that does not stream serves too.
        """
        self._complete(turn)
        out = [self._flow()]
        while self._live < len(self._blocks):
            out += [self._close(), self._flow()]
        out += [_event("message_delta", delta=ending(turn), usage=usage(turn)), _event("message_stop")]
        return b"".join(out)

    def fail(self, error: GatewayError) -> bytes:
        """The error as the last event. The open block stays open and no `message_stop` comes: the turn is no answer."""
        return frame(error_body(error), "error")

    def _text(self, kind: Kind, text: str) -> None:
        """Whitespace alone opens no block; it waits for what follows."""
        if self._blocks and self._blocks[-1].kind == kind:
            self._blocks[-1].pieces += [text] if text else []
            return
        text = self._space.pop(kind, "") + text
        if text.strip():
            self._blocks.append(_Block(kind, [text]))
        elif text:
            self._space[kind] = text

    def _call(self, index: int, name: str) -> None:
        self._calls[index] = _Block("call", call=index, name=name)
        self._blocks.append(self._calls[index])

    def _complete(self, turn: FinishedTurn) -> None:
        said = turn.message
        self._space.clear()
        self._text("thinking", _rest(said.reasoning, self._shown("thinking")))
        self._text("text", _rest(said.content, self._shown("text")))
        for index, call in enumerate(said.tool_calls):
            if index not in self._calls:
                self._call(index, call.name)
            block = self._calls[index]
            written = call.raw_arguments if call.error else jsontext.dumps(call.arguments)
            block.pieces += filter(None, [_rest(written, "".join(block.pieces))])

    def _shown(self, kind: Kind) -> str:
        return "".join(piece for block in self._blocks if block.kind == kind for piece in block.pieces)

    def _flow(self) -> bytes:
        """Everything that can be sent now."""
        out: list[bytes] = []
        while self._live < len(self._blocks):
            block = self._blocks[self._live]
            out.append(self._open(block))
            out += [self._delta(block, piece) for piece in block.pieces[block.sent :]]
            block.sent = len(block.pieces)
            if self._live + 1 == len(self._blocks) or block.kind == "call":
                break
            out.append(self._close())
        return b"".join(out)

    def _open(self, block: _Block) -> bytes:
        if self._opened:
            return b""
        self._opened = True
        match block.kind:
            case "text":
                start = text_block("")
            case "thinking":
                start = {"type": "thinking", "thinking": "", "signature": ""}
            case "call":
                # Some clients take the input from the deltas alone, others look at the first one for it.
                start = call_block(self._head, block.call, block.name, {})
        out = _event("content_block_start", index=self._live, content_block=start)
        return out + self._delta(block, "") if block.kind == "call" else out

    def _delta(self, block: _Block, text: str) -> bytes:
        delta: dict[str, Any]
        match block.kind:
            case "text":
                delta = {"type": "text_delta", "text": text}
            case "thinking":
                delta = {"type": "thinking_delta", "thinking": text}
            case "call":
                delta = {"type": "input_json_delta", "partial_json": text}
        return _event("content_block_delta", index=self._live, delta=delta)

    def _close(self) -> bytes:
        """The end of the live block; the next one is live from here on."""
        out = b""
        if self._blocks[self._live].kind == "thinking":
            delta = {"type": "signature_delta", "signature": signature(self._head)}
            out = _event("content_block_delta", index=self._live, delta=delta)
        out += _event("content_block_stop", index=self._live)
        self._live += 1
        self._opened = False
        return out


def _rest(whole: str, shown: str) -> str:
    """What of `whole` is not shown yet; "" when something else was shown, which nothing can take back."""
    return whole[len(shown) :] if whole.startswith(shown) else ""


def _event(type_: str, **fields: Any) -> bytes:
    return frame({"type": type_, **fields}, type_)
