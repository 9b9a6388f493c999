"""Readings of the last requests: a client sends its whole history again, and what came before is not read twice."""

from __future__ import annotations

from collections.abc import Sequence

from uni_agent.tokens.graph.matcher import Matcher
from uni_agent.tokens.graph.reading import Reading
from uni_agent.types import Message

_CONVERSATIONS = 4
"""Histories that are kept: the main conversation's and those of sub-agents beside it."""


class ReadingMemory:
    """Reads with `matcher`, and takes the readings of a start that came before just so.

    The result is always that of `matcher.read`. The cost is that of the messages behind the known start, and one
    comparison for each message of it.
    """

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._known: list[tuple[list[Message], list[Reading]]] = []

    def read(self, messages: Sequence[Message]) -> list[Reading]:
        """See `Matcher.read`."""
        best, most = -1, 0
        for index, (before, _) in enumerate(self._known):
            shared = _seam(before, messages)
            if shared > most:
                best, most = index, shared
        if best < 0:
            readings = self._matcher.read(messages)
            kept = list(messages)
        else:
            before, known = self._known.pop(best)
            readings = [*known[:most], *(self._matcher.read(messages[most:]) if most < len(messages) else ())]
            kept = [*before[:most], *messages[most:]]  # the messages that the readings hold: no second copy of a text
        if len(readings) == len(messages):
            self._known = [(kept, readings), *self._known[: _CONVERSATIONS - 1]]
        return list(readings)


def _seam(before: Sequence[Message], messages: Sequence[Message]) -> int:
    """How many messages of both lists are read alike whatever follows: up to an assistant message, or all of them.

    A run of tool results is read as a whole, under the calls in front of it, so no seam lies in or before one.
    """
    shared = 0
    for old, new in zip(before, messages, strict=False):
        if not _same(old, new):
            break
        shared += 1
    if shared == len(before) == len(messages):
        return shared
    for seam in range(shared, 0, -1):
        ends = seam == len(before) or before[seam].role != "tool"
        if ends and seam < len(messages) and messages[seam].role == "assistant":
            return seam
    return 0


def _same(a: Message, b: Message) -> bool:
    """Equality to the letter. Arguments without their text are not compared: to Python 1 and true are equal."""
    return a is b or (a == b and all(call.raw_arguments or not call.arguments for call in b.tool_calls))
