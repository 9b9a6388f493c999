"""The item of a stream that is being said: its events from the first to the last."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from uni_agent.gateway.canonical import FinishedTurn
from uni_agent.gateway.protocols.openai_responses.request import Dialect
from uni_agent.gateway.protocols.openai_responses.response import (
    Item,
    call_item,
    mark_incomplete,
    message_item,
    reasoning_item,
    summary_part,
    text_part,
)
from uni_agent.types import ToolCall

Event = dict[str, Any]


class OpenItem(ABC):
    """An item at `index` of the output. Its text is what was given to `add`."""

    def __init__(self, begun: Item, index: int) -> None:
        self._begun = begun
        self._index = index
        self._pieces: list[str] = []

    @property
    def said(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    def begin(self) -> list[Event]:
        """What announces the item."""
        return [self._item("output_item.added", self._begun)]

    def add(self, text: str) -> list[Event]:
        """More of it."""
        if not text:
            return []
        self._pieces.append(text)
        return self._delta(text)

    def end(self, *, cut: bool) -> tuple[list[Event], Item]:
        """The events that end the item, and the item. `cut`: the turn was cut inside it."""
        events, item = self._end()
        if cut:
            mark_incomplete(item)
        return [*events, self._item("output_item.done", item)], item

    @abstractmethod
    def _delta(self, text: str) -> list[Event]: ...

    @abstractmethod
    def _end(self) -> tuple[list[Event], Item]: ...

    def _item(self, name: str, item: Item) -> Event:
        return {"type": f"response.{name}", "output_index": self._index, "item": item}

    def _part(self, event: str, /, **fields: Any) -> Event:
        return {"type": f"response.{event}", "item_id": self._begun["id"], "output_index": self._index, **fields}


class OpenMessage(OpenItem):
    """Text. `number` counts the messages of the turn."""

    def __init__(self, turn_id: str, number: int, index: int) -> None:
        super().__init__(message_item(turn_id, number, None), index)
        self._turn_id, self._number = turn_id, number

    def begin(self) -> list[Event]:
        """See `OpenItem`."""
        return [*super().begin(), self._part("content_part.added", content_index=0, part=text_part(""))]

    def _delta(self, text: str) -> list[Event]:
        return [self._part("output_text.delta", content_index=0, delta=text, logprobs=[])]

    def _end(self) -> tuple[list[Event], Item]:
        text = self.said
        done = self._part("output_text.done", content_index=0, text=text, logprobs=[])
        part = self._part("content_part.done", content_index=0, part=text_part(text))
        return [done, part], message_item(self._turn_id, self._number, text)


class OpenReasoning(OpenItem):
    """Thinking, in the form that the client reads. `number` counts the reasoning items of the turn."""

    def __init__(self, dialect: Dialect, turn_id: str, number: int, index: int) -> None:
        super().__init__(reasoning_item(dialect, turn_id, number, None), index)
        self._dialect, self._turn_id, self._number = dialect, turn_id, number

    def begin(self) -> list[Event]:
        """See `OpenItem`."""
        begun = super().begin()
        if self._dialect.summary:
            begun.append(self._part("reasoning_summary_part.added", summary_index=0, part=summary_part("")))
        return begun

    def _delta(self, text: str) -> list[Event]:
        return [self._thinking("delta", delta=text)]

    def _end(self) -> tuple[list[Event], Item]:
        text = self.said
        events = [self._thinking("done", text=text)]
        if self._dialect.summary:
            events.append(self._part("reasoning_summary_part.done", summary_index=0, part=summary_part(text)))
        return events, reasoning_item(self._dialect, self._turn_id, self._number, text)

    def _thinking(self, name: str, /, **fields: str) -> Event:
        if self._dialect.summary:
            return self._part(f"reasoning_summary_text.{name}", summary_index=0, **fields)
        return self._part(f"reasoning_text.{name}", content_index=0, **fields)


class OpenCall(OpenItem):
    """A call, as `call_item` gives it. `call` is the final one, or None while the turn is not committed.

    Only a call that is no custom tool's may be opened without it: what kind of item such a call is shows at its end.
    """

    def __init__(
        self, dialect: Dialect, turn_id: str, number: int, name: str, call: ToolCall | None, index: int
    ) -> None:
        begun = call_item(dialect, turn_id, number, call or ToolCall("", name), "")
        self._custom = "input" in begun
        super().__init__({**begun, "status": "in_progress", **({"input": ""} if self._custom else {})}, index)
        self._dialect, self._turn_id, self._number = dialect, turn_id, number
        self._turn: FinishedTurn | None = None

    def commit(self, turn: FinishedTurn) -> None:
        """The turn is committed: the call may end."""
        self._turn = turn

    def end(self, *, cut: bool) -> tuple[list[Event], Item]:
        """See `OpenItem`. A whole call may run although the turn was cut behind it."""
        return super().end(cut=cut and self._final.error is not None)

    @property
    def _final(self) -> ToolCall:
        if self._turn is None:
            raise RuntimeError("a call ends only when its turn is committed")
        return self._turn.message.tool_calls[self._number]

    def _delta(self, text: str) -> list[Event]:
        return [] if self._custom else [self._part("function_call_arguments.delta", delta=text)]

    def _end(self) -> tuple[list[Event], Item]:
        call, streamed = self._final, self.said
        # A broken call is what the model wrote; of one that is not, the joined deltas are the JSON.
        arguments = (call.raw_arguments or streamed) if call.error is not None else streamed
        item = call_item(self._dialect, self._turn_id, self._number, call, arguments)
        if self._custom:
            given = item["input"]
            delta: list[Event] = [self._part("custom_tool_call_input.delta", delta=given)] if given else []
            return [*delta, self._part("custom_tool_call_input.done", input=given)], item
        rest = arguments.removeprefix(streamed) if arguments.startswith(streamed) else ""
        events = self.add(rest)
        return [*events, self._part("function_call_arguments.done", arguments=arguments, name=item["name"])], item
