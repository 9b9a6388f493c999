"""Finds the end of a value in the XML format; the rules are those of `qwen3_coder`."""

from __future__ import annotations

from enum import Enum, auto

from uni_agent.tokens.parsers.lexer import Item, Tag, Token
from uni_agent.tokens.parsers.xml_call import XMLCall


class _Seen(Enum):
    """How much of a possible end has been read."""

    NOTHING = auto()
    PARAMETER = auto()  # </parameter>
    FUNCTION = auto()  # … </function>
    CALL = auto()  # … </tool_call>
    BARE = auto()  # </tool_call> alone


class _Verdict(Enum):
    WAIT = auto()
    END = auto()
    TEXT = auto()


class ValueReader:
    """Reads items until the value ends. What may be its end waits in `_pending` until what follows decides.

    Every item moves from `_pending` to `_parts` at most once, so the work is linear.
    """

    def __init__(self, known: frozenset[str], call: XMLCall, *, counting: bool, wrapped: bool) -> None:
        self.miscounted = False
        self._known = known
        self._call = call
        self._counting = counting
        self._wrapped = wrapped
        self._parts: list[Item] = []
        self._pending: list[Item] = []
        self._seen = _Seen.NOTHING
        self._weak = False
        self._closed = False  # whether the possible end begins with </parameter>
        self._inline: bool | None = None
        self._depth = 0  # functions that the value itself opened
        self._inner_end = False  # whether the last of them was just closed: its </tool_call> belongs to it

    @property
    def text(self) -> str:
        """The value as written."""
        return _join(self._parts)

    @property
    def complete(self) -> bool:
        """Whether a whole call has ended here unless more of its tags follow."""
        return self._seen is _Seen.CALL

    def read(self, item: Item) -> list[Item] | None:
        """None while the value goes on; at its end, the items that come after it."""
        if self._inline is None:
            self._inline = not (isinstance(item, str) and item[0] in "\r\n")
        if self._pending:
            verdict = self._judge(item)
            if verdict is _Verdict.WAIT:
                self._pending.append(item)
                return None
            if verdict is _Verdict.END:
                return [*self._pending, item]
            self._reject()
        if isinstance(item, str):
            self._inner_end = self._inner_end and item.isspace()
            self._parts.append(item)
            return None
        return self._token(item)

    def finish(self) -> list[Item] | None:
        """The items after the value when the text ends here; None when the value has no end."""
        if self._pending:
            return self._pending
        if self._counting and _ends_call(self._parts):
            split = _first_end(self._parts)
            if split is not None:
                rest = self._parts[split:]
                del self._parts[split:]
                self.miscounted = True
                return rest
        return None

    def _token(self, token: Token) -> list[Item] | None:
        """A tag in the value, with nothing pending."""
        strong = token.line_start or self._inline is True
        if self._depth == 0 and self._begins_end(token, strong):
            self._pending.append(token)
            self._weak = not strong
            self._closed = token.tag is Tag.END_PARAMETER
            return None
        if self._depth == 0 and token.tag is Tag.PARAMETER and token.line_start and self._call.may_open(token.name):
            return [token]
        self._count(token)
        self._parts.append(token)
        return None

    def _begins_end(self, token: Token, strong: bool) -> bool:
        if token.tag is Tag.END_PARAMETER:
            self._seen = _Seen.PARAMETER
        elif strong and token.tag is Tag.END_FUNCTION:
            self._seen = _Seen.FUNCTION
        elif strong and token.tag is Tag.END_CALL and not self._inner_end:
            self._seen = _Seen.BARE
        return self._seen is not _Seen.NOTHING

    def _judge(self, item: Item) -> _Verdict:
        """What `item` makes of the possible end before it."""
        if self._seen is _Seen.CALL:
            return self._after_call(item)
        if isinstance(item, str):
            prose = self._seen is _Seen.FUNCTION and self._closed and not self._wrapped
            return _Verdict.WAIT if item.isspace() else _Verdict.END if prose else _Verdict.TEXT
        if self._seen is _Seen.PARAMETER:
            return self._after_parameter(item)
        if self._seen is _Seen.FUNCTION and item.tag is Tag.END_CALL:
            self._seen = _Seen.CALL
            return _Verdict.WAIT
        begins = item.tag is Tag.CALL or (item.tag is Tag.FUNCTION and item.name in self._known)
        return _Verdict.END if self._seen is _Seen.FUNCTION and self._closed and begins else _Verdict.TEXT

    def _after_parameter(self, token: Token) -> _Verdict:
        if token.tag is Tag.PARAMETER:
            fits = self._call.may_open(token.name) if self._weak else not self._call.has(token.name)
            return _Verdict.END if fits else _Verdict.TEXT
        if token.tag is Tag.END_FUNCTION:
            self._seen = _Seen.FUNCTION
            return _Verdict.WAIT
        if token.tag is Tag.END_CALL:
            self._seen = _Seen.CALL
            return _Verdict.WAIT
        return _Verdict.TEXT

    def _after_call(self, item: Item) -> _Verdict:
        if not self._counting:
            return _Verdict.END
        if isinstance(item, str) or not item.line_start:
            begins = not isinstance(item, str) and item.tag is Tag.CALL
            return _Verdict.END if begins else _Verdict.WAIT
        if item.tag in (Tag.END_PARAMETER, Tag.END_FUNCTION):
            return _Verdict.TEXT
        if item.tag is Tag.CALL or (item.tag is Tag.FUNCTION and item.name in self._known):
            return _Verdict.END
        return _Verdict.WAIT

    def _reject(self) -> None:
        for item in self._pending:
            if isinstance(item, Token):
                self._count(item)
        self._parts += self._pending
        self._pending.clear()
        self._seen = _Seen.NOTHING

    def _count(self, token: Token) -> None:
        self._inner_end = False
        if not self._counting or not token.line_start:
            return
        if token.tag is Tag.FUNCTION and token.name:
            self._depth += 1
        elif token.tag is Tag.END_FUNCTION and self._depth:
            self._depth -= 1
            self._inner_end = self._depth == 0


def _join(items: list[Item]) -> str:
    return "".join(item if isinstance(item, str) else item.raw for item in items)


def _ends_call(items: list[Item]) -> bool:
    """Whether nothing but whitespace follows the last tag, and that tag ends a call."""
    for item in reversed(items):
        if not isinstance(item, str):
            return item.tag is Tag.END_CALL
        if not item.isspace():
            return False
    return False


def _first_end(items: list[Item]) -> int | None:
    """Where the first `</parameter> </function> </tool_call>` begins, whitespace between them."""
    found: list[int] = []
    for index, item in enumerate(items):
        if isinstance(item, str):
            found = found if item.isspace() else []
        elif item.tag is Tag.END_PARAMETER:
            found = [index]
        elif item.tag is Tag.END_CALL and len(found) == 2:
            return found[0]
        else:
            found = [*found, index] if item.tag is Tag.END_FUNCTION and len(found) == 1 else []
    return None
