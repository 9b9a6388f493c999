"""One answer as the event stream of the Responses API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from uni_agent.gateway.canonical import FinishedTurn, ModelRequest, TurnHead
from uni_agent.gateway.errors import GatewayError
from uni_agent.gateway.protocols.openai_responses.errors import failed_error
from uni_agent.gateway.protocols.openai_responses.opened import Event, OpenCall, OpenItem, OpenMessage, OpenReasoning
from uni_agent.gateway.protocols.openai_responses.response import (
    Item,
    cut_short,
    dialect_of,
    finished_response,
    response_object,
)
from uni_agent.gateway.protocols.sse import frame
from uni_agent.tokens.base import ArgumentsDelta, CallStarted, ParserEvent


class ResponsesStream:
    """See `StreamEncoder`. Each item is closed before the next one opens.

    A client runs a call as soon as its item is done, and keeps it when the stream fails later. So no call is done
    before the turn is committed, and what follows a call waits with it. A custom tool's call waits as a whole: what
    kind of item it is shows only at its end (see `call_item`).

    Thinking that comes after text has begun is an item behind that message, so that a text stays in one piece.
    """

    def __init__(self, request: ModelRequest, head: TurnHead) -> None:
        self._request = request
        self._head = head
        self._dialect = dialect_of(request)
        self._sent = 0
        self._done: list[Item] = []
        self._open: OpenItem | None = None
        self._waiting: list[ParserEvent] = []
        self._late: list[str] = []
        self._messages = 0
        self._thoughts = 0
        self._thought_end = ""
        self._turn: FinishedTurn | None = None

    def opening(self) -> bytes:
        """`response.created` and `response.in_progress`."""
        return self._frames([self._lifecycle("created"), self._lifecycle("in_progress")])

    def heartbeat(self) -> bytes:
        """`response.in_progress` once more: Codex does not count comments."""
        return self._frames([self._lifecycle("in_progress")])

    def event(self, event: ParserEvent) -> bytes:
        """What the client may see of `event` now; b"" when it has to wait for the commit."""
        if self._waiting or self._must_wait(event):
            self._waiting.append(event)
            return b""
        return self._frames(self._step(event))

    def finish(self, turn: FinishedTurn) -> bytes:
        """The rest of the items, then `response.completed` or `response.incomplete`."""
        self._turn = turn
        events: list[Event] = []
        for event in self._waiting:
            events += self._step(event)
        events += self._close(last=True)
        response = finished_response(self._request, turn, self._done)
        return self._frames([*events, {"type": f"response.{response['status']}", "response": response}])

    def fail(self, error: GatewayError) -> bytes:
        """`response.failed`, with the items that were done. What waited is never sent."""
        event = self._lifecycle("failed")
        event["response"].update(output=self._done, error=failed_error(error))
        return self._frames([event])

    def _frames(self, events: Iterable[Event]) -> bytes:
        out: list[bytes] = []
        for event in events:
            out.append(frame({**event, "sequence_number": self._sent}, event["type"]))
            self._sent += 1
        return b"".join(out)

    def _lifecycle(self, name: Literal["created", "in_progress", "failed"]) -> Event:
        status = "failed" if name == "failed" else "in_progress"
        return {"type": f"response.{name}", "response": response_object(self._request, self._head, status, [])}

    def _must_wait(self, event: ParserEvent) -> bool:
        if isinstance(self._open, OpenCall):
            return not isinstance(event, ArgumentsDelta)
        if isinstance(event, CallStarted):
            tool = self._dialect.tools.get(event.name)
            return tool is not None and tool.custom
        return False

    def _step(self, event: ParserEvent) -> list[Event]:
        if isinstance(event, CallStarted):
            closing = self._close()
            call = self._turn.message.tool_calls[event.index] if self._turn else None
            at = len(self._done)
            return closing + self._begin(OpenCall(self._dialect, self._head.id, event.index, event.name, call, at))
        if isinstance(event, ArgumentsDelta):
            return self._open.add(event.text) if self._open else []
        if not event.text:
            return []
        if not event.reasoning:
            return self._text(event.text)
        if isinstance(self._open, OpenMessage):
            self._late.append(event.text)
            return []
        return self._think(event.text)

    def _text(self, text: str) -> list[Event]:
        if isinstance(self._open, OpenMessage):
            return self._open.add(text)
        events = self._close()
        if self._messages:
            text = text.removeprefix("\n")  # it stands between the two messages when they are read back
        events += self._begin(OpenMessage(self._head.id, self._messages, len(self._done)))
        self._messages += 1
        return events + self._added(text)

    def _think(self, text: str) -> list[Event]:
        events: list[Event] = []
        rest = text
        if not isinstance(self._open, OpenReasoning):
            events += self._close()
            if self._thoughts and self._thought_end != "\n":
                rest = text.removeprefix("\n")  # as between messages
            number, self._thoughts = self._thoughts, self._thoughts + 1
            events += self._begin(OpenReasoning(self._dialect, self._head.id, number, len(self._done)))
        self._thought_end = text[-1:] or self._thought_end
        return events + self._added(rest)

    def _begin(self, item: OpenItem) -> list[Event]:
        self._open = item
        return item.begin()

    def _added(self, text: str) -> list[Event]:
        return self._open.add(text) if self._open else []

    def _close(self, *, last: bool = False) -> list[Event]:
        """End the open item, then say the thinking that waited for its end. `last`: nothing follows."""
        events: list[Event] = []
        late, self._late = "".join(self._late), []
        if self._open is not None:
            opened, self._open = self._open, None
            cut = last and not late and self._turn is not None and cut_short(self._turn)
            if isinstance(opened, OpenCall) and self._turn is not None:
                opened.commit(self._turn)
            ending, item = opened.end(cut=cut)
            self._done.append(item)
            events += ending
        if late:
            events += self._think(late)
            events += self._close(last=last)
        return events
