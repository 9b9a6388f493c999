"""What a model's sampled ids say to a client, while they arrive and at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from uni_agent.engine.base import TokenOutput, WeightSpan
from uni_agent.gateway.canonical import ModelRequest, call_id
from uni_agent.gateway.stops import StopStrings
from uni_agent.tokens.base import (
    ArgumentsDelta,
    CallStarted,
    ParsedOutput,
    ParserEvent,
    Renderer,
    StreamingParse,
    TextDelta,
    ToolSchema,
)
from uni_agent.tokens.media import processor_of
from uni_agent.types import Message, ToolCall

_MARKUP_TOKENS = 32
"""Tokens that the markup between two calls has at most."""

STOP_DROP = "stop_sequence"
PARALLEL_DROP = "parallel_tool_calls"
PLACEHOLDER_DROP = "image_placeholder"


@dataclass(frozen=True, slots=True)
class Said:
    """A generation as the client is shown it.

    `output` is what is committed: the sampled ids, without those behind the point where the client's own rules ended
    the turn; these are counted in `dropped` (reason → tokens). `events` are the stream events not yet handed out.
    """

    output: TokenOutput
    message: Message
    events: list[ParserEvent]
    stop_sequence: str
    dropped: dict[str, int]


class MessageCodec:
    """Turns ids into messages for one model; `renderer` knows its template and its format of calls."""

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer

    def reading(
        self, request: ModelRequest, tools: Sequence[ToolSchema], turn_id: str, renderer: Renderer | None = None
    ) -> TurnReading:
        """A new turn; `tools` are those of the prompt, `renderer` what made it (None: the model's own).

        Template variables decide whether the generation prompt ends inside thinking, so that the two may differ.
        """
        return TurnReading(renderer or self.renderer, request, tools, turn_id)


class TurnReading:
    """One turn being sampled. `push` takes ids as they come, `finish` the whole output; both are cheap per token."""

    def __init__(self, renderer: Renderer, request: ModelRequest, tools: Sequence[ToolSchema], turn_id: str) -> None:
        self._renderer = renderer
        self._tools = [*tools, *request.loaded_tools]
        self._calls = bool(self._tools) and request.tool_choice.mode != "none"
        self._single = self._calls and not request.tool_choice.parallel
        self._stop_words = request.stop
        processor = processor_of(renderer)
        self._placeholder = None if processor is None else processor.placeholder_id
        self._turn_id = turn_id
        self._reset()

    def _reset(self) -> None:
        self._decoder = self._renderer.decoder()
        self._stops = StopStrings(self._stop_words)
        self._parse: StreamingParse = (
            self._renderer.stream(self._tools) if self._calls else self._renderer.stream_text()
        )
        self._shown = _Shown()
        self.pushed = 0
        self._ended_by = STOP_DROP
        self.ended_at: int | None = None
        """How many ids belong to the turn, once a rule of the client's has ended it."""

    def push(self, ids: Sequence[int]) -> list[ParserEvent]:
        """The events that `ids` made certain."""
        events: list[ParserEvent] = []
        # Where a string may end the turn, the token that completes it has to be known.
        pieces = [[id_] for id_ in ids] if self._stop_words else [list(ids)]
        for whole in pieces:
            if self.ended_at is not None:
                break
            piece = whole
            if self._placeholder is not None and self._placeholder in whole:
                # No image stands behind a placeholder that was sampled: no later prompt, and no batch, could hold it.
                piece = whole[: whole.index(self._placeholder)]
                self.ended_at, self._ended_by = self.pushed + len(piece), PLACEHOLDER_DROP
            self.pushed += len(piece)
            text = self._stops.feed(self._decoder.push([i for i in piece if i not in self._renderer.stop_token_ids]))
            if text:
                events += self._show(self._parse.feed(text))
            if self._stops.found:
                self.ended_at = self.pushed
        return events

    def finish(self, output: TokenOutput) -> Said:
        """The turn. Raises nothing: what cannot be read as a call is content or a broken call."""
        events = self.push(output.token_ids[self.pushed :]) if self.ended_at is None else []
        dropped: dict[str, int] = {}
        if self.ended_at is not None:
            dropped[self._ended_by] = len(output.token_ids) - self.ended_at
            output = truncated(output, self.ended_at)
        if self._single and self._shown.second:
            return self._first_call_only(output, dropped)
        parsed = self._end(events)
        dropped = {reason: count for reason, count in dropped.items() if count}
        return Said(output, self._message(parsed), events, self._stops.found, dropped)

    def _end(self, events: list[ParserEvent]) -> ParsedOutput:
        rest = self._decoder.finish()
        text = (self._stops.feed(rest) if rest else "") + ("" if self._stops.found else self._stops.finish())
        if text:
            events += self._show(self._parse.feed(text))
        last, parsed = self._parse.finish()
        events += self._show(last)
        events += self._shown.flush()
        return parsed

    def _first_call_only(self, output: TokenOutput, dropped: dict[str, int]) -> Said:
        """The turn up to the end of its first call: the client takes one, so the rest is not part of the turn."""
        count = self._end_of_first_call(output.token_ids)
        dropped = {**dropped, PARALLEL_DROP: len(output.token_ids) - count}
        kept = truncated(output, count)
        shown, self._single = self._shown, False
        self._reset()
        events = self.push(kept.token_ids)
        parsed = self._end(events)
        counts = {reason: count for reason, count in dropped.items() if count}
        return Said(kept, self._message(parsed), _behind(events, shown), self._stops.found, counts)

    def _end_of_first_call(self, ids: Sequence[int]) -> int:
        """How many ids there are up to the end of the first call, its closing markup included."""
        whole = self._parsed(ids).tool_calls[0]

        def complete(count: int) -> bool:
            calls = self._parsed(ids[:count]).tool_calls
            return bool(calls) and _same(calls[0], whole)

        low, high = 1, len(ids)
        while low < high:  # once a call is complete, it stays so
            middle = (low + high) // 2
            low, high = (low, middle) if complete(middle) else (middle + 1, high)
        end, content = low, self._parsed(ids[:low]).content
        for count in range(low + 1, min(low + _MARKUP_TOKENS, len(ids))):
            parsed = self._parsed(ids[:count])
            if len(parsed.tool_calls) > 1:
                break
            if parsed.content == content and not self._renderer.decode(ids[count - 1 : count]).isspace():
                end = count
        return end

    def _parsed(self, ids: Sequence[int]) -> ParsedOutput:
        return self._renderer.parse(ids, self._tools)

    def _show(self, events: Sequence[ParserEvent]) -> list[ParserEvent]:
        return self._shown.take(events, single=self._single)

    @property
    def over(self) -> bool:
        """Whether what is sampled from here on is dropped in any case."""
        return self.ended_at is not None or (self._single and self._shown.second)

    def _message(self, parsed: ParsedOutput) -> Message:
        calls = tuple(
            replace(
                call,
                id=call_id("call", self._turn_id, i),
                # What the client was shown of a broken call is what it sends back.
                raw_arguments=self._shown.arguments.get(i, call.raw_arguments) if call.error else call.raw_arguments,
            )
            for i, call in enumerate(call for call in parsed.tool_calls if call.name)
        )
        return Message("assistant", self._shown.content, self._shown.reasoning, calls)


class _Shown:
    """What the client has been shown. A call without a name is shown as the text that it is."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._numbers: dict[int, int] = {}
        self._nameless: dict[int, list[str]] = {}
        self.arguments: dict[int, str] = {}
        self.second = False

    @property
    def content(self) -> str:
        """All text so far."""
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        """All thinking so far."""
        return "".join(self._reasoning)

    def take(self, events: Sequence[ParserEvent], *, single: bool) -> list[ParserEvent]:
        """The events with calls renumbered; with `single`, nothing from the second call on."""
        out: list[ParserEvent] = []
        for event in events:
            if self.second:
                break
            if isinstance(event, TextDelta):
                out += self.flush()
                self._text(event, out)
            elif isinstance(event, CallStarted):
                out += self.flush()
                if event.name and single and self._numbers:
                    self.second = True
                    break
                self._start(event, out)
            elif event.index in self._nameless:
                self._nameless[event.index].append(event.text)
            else:
                number = self._numbers[event.index]
                self.arguments[number] += event.text
                out.append(ArgumentsDelta(number, event.text))
        return out

    def flush(self) -> list[ParserEvent]:
        """The text of calls without a name, once they are over."""
        out: list[ParserEvent] = []
        for pieces in self._nameless.values():
            if pieces:
                # On a line of its own, as the parser does with text behind a call: clients join texts so.
                lead = "\n" if self._content else ""
                self._text(TextDelta(lead + "".join(pieces)), out)
        self._nameless = {index: [] for index in self._nameless}
        return out

    def _text(self, event: TextDelta, out: list[ParserEvent]) -> None:
        (self._reasoning if event.reasoning else self._content).append(event.text)
        out.append(event)

    def _start(self, event: CallStarted, out: list[ParserEvent]) -> None:
        if not event.name:
            self._nameless[event.index] = []
            return
        number = self._numbers[event.index] = len(self._numbers)
        self.arguments[number] = ""
        out.append(CallStarted(number, event.name))


def _same(a: ToolCall, b: ToolCall) -> bool:
    return (a.name, a.arguments, a.raw_arguments, a.error) == (b.name, b.arguments, b.raw_arguments, b.error)


def _behind(events: Sequence[ParserEvent], shown: _Shown) -> list[ParserEvent]:
    """`events` of a turn without those that were shown of it before."""
    content, reasoning = len(shown.content), len(shown.reasoning)
    arguments = {number: len(text) for number, text in shown.arguments.items()}
    out: list[ParserEvent] = []
    for event in events:
        if isinstance(event, CallStarted):
            if event.index not in arguments:
                out.append(event)
        elif isinstance(event, ArgumentsDelta):
            skip = min(arguments.get(event.index, 0), len(event.text))
            arguments[event.index] = arguments.get(event.index, 0) - skip
            if event.text[skip:]:
                out.append(ArgumentsDelta(event.index, event.text[skip:]))
        else:
            before = reasoning if event.reasoning else content
            skip = min(before, len(event.text))
            if event.reasoning:
                reasoning -= skip
            else:
                content -= skip
            if event.text[skip:]:
                out.append(TextDelta(event.text[skip:], event.reasoning))
    return out


def truncated(output: TokenOutput, count: int) -> TokenOutput:
    """`output` with its first `count` tokens alone; one that is shortened ended by a rule, not by its length."""
    if count >= len(output.token_ids):
        return output
    gone = len(output.token_ids) - count
    rows: Any = output.routed_experts
    return replace(
        output,
        token_ids=output.token_ids[:count],
        finish_reason="stop",
        logprobs=None if output.logprobs is None else output.logprobs[:count],
        weight_spans=tuple(
            WeightSpan(span.version, span.start, min(span.end, count))
            for span in output.weight_spans
            if span.start < count
        ),
        routed_experts=None if rows is None else rows[: len(rows) - gone],
    )
