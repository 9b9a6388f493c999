"""A limit in tokens that cuts no character and no marker."""

from __future__ import annotations

from uni_agent.tokens.tokenizer import ChatTokenizer

_WHOLE = 100_000
"""Characters up to which a text is encoded as a whole, so that the count of what is left out is exact."""


def limit_tokens(tokenizer: ChatTokenizer, text: str, max_tokens: int, notice: str) -> str:
    """`text` in at most `max_tokens` tokens of its plain encoding, the notice included.

    Head and tail are kept, `notice` stands between them with `{omitted}` replaced by the number of tokens left out
    (`about N` for very long texts, which are not encoded as a whole). Where not even the notice fits, the head alone
    is kept. A text that fits is returned as it is.
    """
    if max_tokens <= 0:
        return ""
    cut = _Cut(tokenizer, text, max_tokens)
    if cut.total <= max_tokens:
        return text
    room = max_tokens - len(tokenizer.encode_plain(notice.replace("{omitted}", cut.omitted(max_tokens))))
    while room > 0:
        head, tail = cut.head((room + 1) // 2), cut.tail(room // 2)
        result = head + notice.replace("{omitted}", cut.omitted(room)) + tail
        over = len(tokenizer.encode_plain(result)) - max_tokens
        if over <= 0:
            return result
        room -= over  # tokens at the seams may split anew
    for size in range(max_tokens, 0, -1):
        head = cut.head(size)
        if len(tokenizer.encode_plain(head)) <= max_tokens:
            return head
    return ""


class _Cut:
    """A text with the places where it may be cut."""

    def __init__(self, tokenizer: ChatTokenizer, text: str, max_tokens: int) -> None:
        self._text = text
        enough = max_tokens + 8  # the last tokens of a window may differ from the whole text's
        size = len(text) if len(text) <= _WHOLE else 4 * enough
        head, self._front = _window(tokenizer, text, size, enough, back=False)
        self._exact = len(head) == len(text)
        self._base, self._back, self.total = 0, self._front, len(self._front)
        if not self._exact:
            tail, self._back = _window(tokenizer, text, size, enough, back=True)
            self._base = len(text) - len(tail)
            tokens = len(self._front) + len(self._back)
            self.total = max(enough, tokens * len(text) // (len(head) + len(tail)))
        self._markers = [(m.start(), m.end()) for m in tokenizer.controls.finder().finditer(text)]

    def omitted(self, kept: int) -> str:
        """What to write for the tokens beside `kept` ones."""
        count = max(self.total - kept, 0)
        return str(count) if self._exact else f"about {count}"

    def head(self, tokens: int) -> str:
        """At most `tokens` tokens from the start."""
        if tokens <= 0:
            return ""
        if tokens >= len(self._front):
            return self._text if self._exact else ""
        # The next token's start: tokens that share one character have the same range, so it is dropped whole.
        end = self._front[tokens][0]
        inside = next((a for a, b in self._markers if a < end < b), None)
        return self._text[: end if inside is None else inside]

    def tail(self, tokens: int) -> str:
        """At most `tokens` tokens from the end."""
        if tokens <= 0:
            return ""
        before, first = self._back[-tokens - 1], self._back[-tokens]
        start = self._base + (before[1] if before[1] > first[0] else first[0])
        inside = next((b for a, b in self._markers if a < start < b), None)
        return self._text[start if inside is None else inside :]


def _window(
    tokenizer: ChatTokenizer, text: str, size: int, enough: int, *, back: bool
) -> tuple[str, list[tuple[int, int]]]:
    """So much of the start (or end) of `text` that it holds `enough` tokens, and their ranges in it."""
    while True:
        part = text[-size:] if back else text[:size]
        offsets = tokenizer.plain_offsets(part)
        if len(offsets) >= enough or len(part) == len(text):
            return part, offsets
        size *= 2
