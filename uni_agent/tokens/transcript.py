"""Conversations to text and ids, with the text of messages never read as markup."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

from uni_agent.tokens.base import ToolSchema
from uni_agent.tokens.disguise import THINK_TAGS, Disguise, strings_in
from uni_agent.tokens.media import media_of
from uni_agent.tokens.messages import in_call_order, template_message, with_reminders
from uni_agent.tokens.template import ChatTemplate, TemplateError
from uni_agent.tokens.tokenizer import ChatTokenizer
from uni_agent.types import Media, Message, ToolCall

_THINKING = re.compile(r"<think>(?:(?!</?think>).)*</think>\s*|<think>\s*\Z", re.DOTALL)
_CACHED_LISTS = 256
_CACHED = 64
_SYSTEM, _USER, _ANSWER = "probe-system-text", "probe-user-text", "probe-answer-text"


@dataclass(frozen=True, slots=True)
class Draft:
    """A rendered conversation in which messages still stand in disguise, and the images in it, in their order."""

    text: str
    disguise: Disguise
    media: tuple[Media, ...] = ()

    @property
    def revealed(self) -> str:
        """The text as the template would have rendered it from the raw messages."""
        return self.disguise.reveal(self.text)


class Transcriber:
    """One chat template with one tokenizer."""

    def __init__(self, tokenizer: ChatTokenizer, template: ChatTemplate) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self._harmless_tools: dict[str, bool] = {}
        self._split_thinking = "reasoning_content" in template.source
        self.late_system = False
        self.late_system = self._takes_late_system()

    def draft(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema],
        *,
        generation: bool,
        calls: Sequence[ToolCall] = (),
    ) -> Draft:
        """`messages` rendered. `calls` are those in front of `messages`, when that is where they start.

        System messages that the template has no place for become reminders. Raises TemplateError.
        """
        messages = in_call_order(messages, calls)
        settled = messages if self.late_system else with_reminders(messages, keep_first=True)
        try:
            draft = self._render(settled, tools, generation)
        except TemplateError:
            if all(message.role != "system" for message in settled):
                raise
            draft = self._render(with_reminders(messages, keep_first=False), tools, generation)
        media = media_of(messages)
        return replace(draft, media=media) if media else draft

    def ids(self, draft: Draft, start: int = 0) -> list[int]:
        """Ids of `draft.text[start:]`, images as the template writes them: one placeholder each.

        A `start` other than 0 stands behind a control token.
        """
        out: list[int] = []
        tokenizer = self.tokenizer
        for piece in tokenizer.controls.split(draft.text[start:]):
            if piece.id is not None:
                out.append(piece.id)
                continue
            encode = tokenizer.encode_after_control if out or start else tokenizer.encode_plain
            out += encode(draft.disguise.reveal(piece.text))
        return out

    def _render(self, messages: Sequence[Message], tools: Sequence[ToolSchema], generation: bool) -> Draft:
        dicts = [template_message(message, split_thinking=self._split_thinking) for message in messages]
        disguise = Disguise(self.tokenizer.controls, lambda: self._inputs(dicts, tools))
        hidden_tools = tools if self._harmless(tools) else [disguise.data(tool) for tool in tools]
        hidden = [self._hidden(message, disguise) for message in dicts]
        return Draft(self.template.render(hidden, hidden_tools, generation=generation), disguise)

    def _inputs(self, messages: list[dict[str, Any]], tools: Sequence[ToolSchema]) -> Iterable[str]:
        yield self.template.source
        yield from strings_in(self.template.variables)
        yield from strings_in(messages)
        yield from strings_in(tools)

    def _harmless(self, tools: Sequence[ToolSchema]) -> bool:
        """Whether no text of `tools` needs a disguise; found once per set of tools."""
        key = tools_key(tools)
        if key not in (known := self._harmless_tools):
            disguise = Disguise(self.tokenizer.controls, lambda: strings_in(tools))
            disguise.data(list(tools))
            self._harmless_tools = known = {**(known if len(known) < _CACHED else {}), key: not disguise.used}
        return known[key]

    @staticmethod
    def _hidden(message: dict[str, Any], disguise: Disguise) -> dict[str, Any]:
        # Templates look for the thinking in an assistant's content by its tags: there they stay.
        leave = THINK_TAGS if message["role"] == "assistant" else ()

        def hidden(key: str, value: Any) -> Any:
            if key != "content":
                return disguise.data(value)
            if isinstance(value, str):
                return disguise.text(value, leave)
            return [{k: disguise.text(v, leave) if k == "text" else v for k, v in part.items()} for part in value]

        return {key: hidden(key, value) for key, value in message.items()}

    def _takes_late_system(self) -> bool:
        """Whether the template shows a system message wherever it stands (some raise, some drop it in silence)."""
        user, answer = Message("user", _USER), Message("assistant", _ANSWER)
        system = Message("system", _SYSTEM)
        shapes = ([user, answer, system, user], [user, answer, system], [Message("system", "first"), system, user])
        for shape in shapes:
            try:
                text = self._render(shape, [], True).text
            except TemplateError:
                return False
            before = _ANSWER if answer in shape else "first"
            at = text.find(_SYSTEM)
            if at < text.find(before) or (shape[-1] is user and at > text.rfind(_USER)):
                return False
        return True


_LOCK = Lock()
_KEYS: OrderedDict[int, tuple[Sequence[ToolSchema], str]] = OrderedDict()


def tools_key(tools: Sequence[ToolSchema]) -> str:
    """A text that is the same for equal tools. A list that is asked about again is not read again."""
    if not tools:
        return ""
    known = _KEYS.get(id(tools))
    if known is not None and known[0] is tools:  # held, so that no other list can have its id
        return known[1]
    key = json.dumps(list(tools), default=repr)
    with _LOCK:
        _KEYS[id(tools)] = (tools, key)
        while len(_KEYS) > _CACHED_LISTS:
            _KEYS.popitem(last=False)
    return key


def without_thinking(text: str) -> str:
    """`text` without thinking blocks and without one that is open at its end."""
    return _THINKING.sub("", text)
