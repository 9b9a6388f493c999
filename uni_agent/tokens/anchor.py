"""What a template puts behind an assistant turn, found without the conversation that came before.

The new messages are rendered behind a fixed fake conversation, a user message and an assistant turn whose text is a
sentinel. The first end of turn behind the sentinel is where the sampled turn of the real chain ends; what follows is
the increment. Nothing is sliced by a predicted length, and the cost depends on the new messages alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from uni_agent.tokens.base import ToolSchema
from uni_agent.tokens.template import TemplateError
from uni_agent.tokens.transcript import Draft, Transcriber, tools_key, without_thinking
from uni_agent.types import Message, ToolCall

_CACHED = 64


class AnchorError(Exception):
    """The render behind the anchor does not continue the anchor; the message says how."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an assistant turn ends: `token` is the control token, its `count`-th occurrence behind the sentinel.

    `lead` is what the template puts between a turn's text and the token; `prefix` the anchor's text up to the end.
    `swallows`: the token takes the whitespace behind it. `token` is "" where the next header ends a turn (GLM): then
    the turn ends behind `lead`.
    """

    token: str
    count: int
    lead: str
    prefix: str
    swallows: bool

    def find(self, text: str, sentinel: str) -> int:
        """Where the turn ends in `text`, behind the token; -1 when it is not there."""
        at = text.rfind(sentinel)
        if at < 0:
            return -1
        if not self.token:
            at += len(sentinel)
            return at + len(self.lead) if text.startswith(self.lead, at) else -1
        for _ in range(self.count):
            at = text.find(self.token, at)
            if at < 0:
                return -1
            at += len(self.token)
        return self.behind(text, at)

    def behind(self, text: str, at: int) -> int:
        """Where in `text` the next piece starts, for a token that ends at `at`."""
        return _past_blanks(text, at) if self.swallows else at


class Anchor:
    """The fake conversation of one template."""

    def __init__(self, transcriber: Transcriber) -> None:
        self._transcriber = transcriber
        self._cache: dict[str, Ending | None] = {}
        self.plain = self.ending([], (), "anchor-text")

    def increment(
        self, new: Sequence[Message], tools: Sequence[ToolSchema], calls: Sequence[ToolCall]
    ) -> tuple[Draft, int]:
        """The draft of anchor and `new` with the generation prompt, and where in its text the increment starts.

        `calls` are those that `new` answers, else empty. Raises AnchorError, or TemplateError.
        """
        try:
            return self._increment(new, tools, calls)
        except TemplateError:
            if len(calls) < 2:
                raise
            # Some templates know single calls only; the results behind them do not depend on the calls.
            return self._increment(new, tools, calls[:1])

    def keeps_thinking(self, new: Sequence[Message], tools: Sequence[ToolSchema], calls: Sequence[ToolCall]) -> bool:
        """Whether the thinking of the anchor's turn is still there when `new` follows. Raises TemplateError."""
        sentinel = self._sentinel(new, tools, calls)
        question, turn = _anchor(calls, sentinel)
        thought = f"{sentinel}-thought"
        messages = [question, replace(turn, reasoning=thought), *new]
        return thought in self._transcriber.draft(messages, tools, generation=True).text

    def _increment(
        self, new: Sequence[Message], tools: Sequence[ToolSchema], calls: Sequence[ToolCall]
    ) -> tuple[Draft, int]:
        sentinel = self._sentinel(new, tools, calls)
        draft = self._transcriber.draft([*_anchor(calls, sentinel), *new], tools, generation=True)
        reason = ""
        for fresh in (False, True):  # a template that shows the time renders another anchor later on
            ending = self.ending(tools, calls, sentinel, fresh=fresh)
            if ending is None:
                raise AnchorError("the template does not show the text of an assistant turn")
            end = ending.find(draft.text, sentinel)
            if not ending.token and (end < 0 or not self._starts_with_control(draft.text[end:])):
                raise AnchorError("the template ends an assistant turn with no control token")
            prefix = draft.disguise.reveal(draft.text[: max(end, 0)])
            if end >= 0 and without_thinking(prefix) == without_thinking(ending.prefix):
                return draft, end
            reason = "the template writes what came before anew when messages are added"
        raise AnchorError(reason)

    def ending(
        self, tools: Sequence[ToolSchema], calls: Sequence[ToolCall], sentinel: str, *, fresh: bool = False
    ) -> Ending | None:
        """The end of the anchor's assistant turn; None when its text is not there."""
        # Ids are new in each turn. Where a template shows them the prefix differs, and the caller asks afresh.
        key = json.dumps([sentinel, [call.name for call in calls]]) + tools_key(tools)
        if not fresh and key in (cache := self._cache):
            return cache[key]
        ending = self._ending(tools, calls, sentinel)
        # Rebound, never emptied in place: several threads render at once.
        self._cache = {**(self._cache if len(self._cache) < _CACHED else {}), key: ending}
        return ending

    def _ending(self, tools: Sequence[ToolSchema], calls: Sequence[ToolCall], sentinel: str) -> Ending | None:
        draft = self._transcriber.draft(_anchor(calls, sentinel), tools, generation=False)
        at = draft.text.rfind(sentinel)
        if at < 0:
            return None
        at += len(sentinel)
        tail = draft.text[at:]
        tokens = [piece for piece in self._transcriber.tokenizer.controls.split(tail) if piece.id is not None]
        if not tokens:
            return Ending("", 0, tail, draft.disguise.reveal(draft.text), False)
        chosen = tokens[0]
        if calls:  # the closing tags of the calls come first
            usual = self.plain.token if self.plain else ""
            chosen = next((piece for piece in tokens if piece.text.strip() == usual), tokens[-1])
        token = chosen.text.strip()
        stop = tail.index(token, chosen.end - len(chosen.text)) + len(token)
        swallows = token in self._transcriber.tokenizer.controls.swallowing
        end = _past_blanks(draft.text, at + stop) if swallows else at + stop
        prefix = draft.disguise.reveal(draft.text[:end])
        return Ending(token, tail[:stop].count(token), tail[: stop - len(token)], prefix, swallows)

    def _starts_with_control(self, text: str) -> bool:
        first = next(self._transcriber.tokenizer.controls.split(text), None)
        return first is not None and first.id is not None

    @staticmethod
    def _sentinel(new: Sequence[Message], tools: Sequence[ToolSchema], calls: Sequence[ToolCall]) -> str:
        """A word that occurs in none of the inputs."""
        sentinel, number = "anchor-text", 0
        inputs = "\0".join([repr(list(new)), tools_key(tools), repr([(call.id, call.name) for call in calls])])
        while sentinel in inputs:
            number += 1
            sentinel = f"anchor-text-{number}"
        return sentinel


def _past_blanks(text: str, at: int) -> int:
    return at + len(text[at:]) - len(text[at:].lstrip())


def _anchor(calls: Sequence[ToolCall], sentinel: str) -> list[Message]:
    fake = tuple(ToolCall(call.id, call.name, {"value": sentinel}) for call in calls)
    return [Message("user", "anchor"), Message("assistant", sentinel, tool_calls=fake)]
