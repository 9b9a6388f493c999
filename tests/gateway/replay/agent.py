"""A small agent that speaks any of the protocols, streamed or not, and sends back what it was given."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tests.gateway.replay.copy_recordings import (
    Piece,
    listed,
    spoken,
    streamed_blocks,
    streamed_items,
    streamed_message,
)
from tests.gateway.support import Answer, Gateway, Opened

PROTOCOLS = ("chat", "responses", "messages")


@dataclass(slots=True)
class Agent:
    """`history` is in the protocol's own form; `fields` go with each request. `last` is the newest answer."""

    gateway: Gateway
    session: Opened
    protocol: str = "chat"
    stream: bool = False
    system: str = ""
    history: list[Any] = field(default_factory=list[Any])
    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    last: Answer | None = None

    def user(self, text: str) -> Agent:
        self.history.append({"role": "user", "content": text})
        return self

    def result(self, call_id: str, text: str) -> Agent:
        """The result of a call; for Messages, results that follow each other stand in one message."""
        if self.protocol == "chat":
            self.history.append({"role": "tool", "tool_call_id": call_id, "content": text})
        elif self.protocol == "responses":
            self.history.append({"type": "function_call_output", "call_id": call_id, "output": text})
        else:
            block = {"type": "tool_result", "tool_use_id": call_id, "content": text}
            if self.history and isinstance(self.history[-1]["content"], list) and self.history[-1]["role"] == "user":
                self.history[-1] = {"role": "user", "content": [*self.history[-1]["content"], block]}
            else:
                self.history.append({"role": "user", "content": [block]})
        return self

    async def send(self, **fields: Any) -> Answer:
        """One request with the history as it is; nothing is added to it."""
        sent: dict[str, Any] = {**self.fields, **fields}
        if self.stream:
            sent["stream"] = True
        history = self.history
        if self.system:
            if self.protocol == "chat":
                history = [{"role": "system", "content": self.system}, *history]
            else:
                sent["instructions" if self.protocol == "responses" else "system"] = self.system
        answer: Answer = await getattr(self.gateway, self.protocol)(self.session, list(history), **sent)
        self.last = answer
        return answer

    async def ask(self, **fields: Any) -> list[Piece]:
        """A turn that is added to the history as the gateway gave it; what it says."""
        answer = await self.send(**fields)
        assert answer.status == 200, answer.body
        self.history.extend(self.native(answer))
        return self.pieces(answer)

    def native(self, answer: Answer) -> list[Any]:
        """The turn in the protocol's own form."""
        events = [data for _, data in answer.events if data != "[DONE]"] if self.stream else []
        if self.protocol == "responses":
            return streamed_items(events) if self.stream else answer.json["output"]
        if self.protocol == "chat":
            message: dict[str, Any] = (
                streamed_message(events)[0] if self.stream else answer.json["choices"][0]["message"]
            )
            calls = listed(message.get("tool_calls"))
            kept = {k: v for k, v in message.items() if k != "tool_calls"}
            kept["role"] = "assistant"
            if calls:
                kept["tool_calls"] = [{"type": "function", **call} for call in calls]
            return [kept]
        blocks = streamed_blocks(events)[0] if self.stream else answer.json["content"]
        return [{"role": "assistant", "content": [_block(block) for block in blocks]}]

    def pieces(self, answer: Answer) -> list[Piece]:
        """The turn as pieces."""
        given = {"events": answer.events} if self.stream else {"body": answer.json}
        return spoken(self.protocol, {"status": answer.status, **given})[0]


def _block(block: dict[str, Any]) -> dict[str, Any]:
    """A streamed block as a client puts it together."""
    written = block.pop("input_json", None)
    if block["type"] == "tool_use" and written:
        try:
            block["input"] = json.loads(written)
        except ValueError:
            block["input"] = {"__unparsedToolInput": {"raw": written, "len": len(written)}}
    return block


def calls(pieces: list[Piece]) -> list[Piece]:
    """The calls of a turn."""
    return [piece for piece in pieces if piece[0] == "call"]


def said(pieces: list[Piece], kind: str = "text") -> str:
    """The joined text (or thinking) of a turn."""
    return "".join(piece[1] for piece in pieces if piece[0] == kind)
