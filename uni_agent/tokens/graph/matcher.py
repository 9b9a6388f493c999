"""When a message of a request is a message that the graph already has."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from uni_agent.tokens.compare import same_json
from uni_agent.tokens.graph.reading import Reading, message_parts, read_all, text_runs
from uni_agent.tokens.messages import arguments_of
from uni_agent.types import Message, ToolCall

_MASK = re.compile(r"\*{3,}")


class Matcher(Protocol):
    """Reads messages and compares what was read. Pure; `same` costs little, since it runs once per stored message."""

    def read(self, messages: Sequence[Message]) -> list[Reading]:
        """One reading per message; runs of tool results come in the order of their calls.

        From an assistant message on, the readings do not depend on what stands before it.
        """
        ...

    def same(self, stored: Reading, returned: Reading) -> bool:
        """Whether `returned` stands for `stored`, whose tokens then stay."""
        ...


class StrictMatcher:
    """Equal by meaning.

    Arguments are compared as JSON values; call ids and whitespace at the ends of texts do not matter; thinking may be
    present, left out, or moved into the content as <think>, but not changed. Of broken arguments the part before the
    break may come back, or nothing: the official SDKs hand on no more. `ignore` matches text that is no part of
    the meaning of any message, such as a header that a client writes anew for each request.
    """

    def __init__(self, *, ignore: re.Pattern[str] | None = None) -> None:
        self._ignore = ignore

    def read(self, messages: Sequence[Message]) -> list[Reading]:
        """See `Matcher.read`."""
        return read_all(messages, self._clean)

    def same(self, stored: Reading, returned: Reading) -> bool:
        """See `Matcher.same`."""
        if stored.key != returned.key and returned.key not in stored.rescued:
            return False
        return not stored.thought or not returned.thought or stored.thought == returned.thought

    def _clean(self, text: str) -> str:
        return text if self._ignore is None else self._ignore.sub("", text)


class MaskedMatcher(StrictMatcher):
    """As `StrictMatcher`, and `***` (three stars or more) in what the client sends back stands for any text.

    For agents that hide secrets before they send their history again. The rest of the string must agree.
    """

    def same(self, stored: Reading, returned: Reading) -> bool:
        """See `Matcher.same`."""
        if super().same(stored, returned):
            return True
        mine, other = stored.message, returned.message
        if (
            mine.role != other.role
            or stored.answers != returned.answers
            or len(mine.tool_calls) != len(other.tool_calls)
            or stored.media != returned.media
        ):
            return False
        thought, text = message_parts(mine)
        other_thought, other_text = message_parts(other)
        if thought and other_thought and not fits_mask(thought, other_thought):
            return False
        texts, other_texts = [self._clean(text).strip()], [self._clean(other_text).strip()]
        if stored.media:
            texts, other_texts = text_runs(mine, self._clean), text_runs(other, self._clean)
        if not all(map(fits_mask, texts, other_texts)):
            return False
        return all(_same_call(a, b) for a, b in zip(mine.tool_calls, other.tool_calls, strict=True))


def fits_mask(text: str, masked: str) -> bool:
    """Whether `masked`, with each run of three or more stars standing for any text, can be `text`. Linear time."""
    if text == masked:
        return True
    head, *rest = _MASK.split(masked)
    if not rest or not text.startswith(head):
        return False
    *middle, tail = rest
    at, end = len(head), len(text) - len(tail)
    if end < at or not text.endswith(tail):
        return False
    for piece in middle:
        found = text.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def _same_call(a: ToolCall, b: ToolCall) -> bool:
    if a.name != b.name:
        return False
    mine, other = arguments_of(a), arguments_of(b)
    if not mine and not other:
        return fits_mask(a.raw_arguments.strip(), b.raw_arguments.strip()) or not (a.error or b.error)
    try:
        return _fits_value(mine, other)
    except RecursionError:
        return False


def _fits_value(value: Any, masked: Any) -> bool:
    if isinstance(masked, str):
        return isinstance(value, str) and fits_mask(value, masked)
    if isinstance(value, Mapping) and isinstance(masked, Mapping):
        left, right = cast(Mapping[str, Any], value), cast(Mapping[str, Any], masked)
        return left.keys() == right.keys() and all(_fits_value(item, right[key]) for key, item in left.items())
    if isinstance(value, list) and isinstance(masked, list):
        first, second = cast(list[Any], value), cast(list[Any], masked)
        return len(first) == len(second) and all(map(_fits_value, first, second))
    return same_json(value, masked)
