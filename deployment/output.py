"""What commands print: kept within a bound, and turned into text that encodes to strict UTF-8."""

from __future__ import annotations

DEFAULT_MAX_OUTPUT_BYTES = 1 << 20


def clean_text(text: str) -> str:
    r"""`text` with NUL and lone surrogates written as `\x00` and `\udcxx`: safe in JSON, SQLite and strict UTF-8."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def decode(data: bytes) -> str:
    r"""`data` as text; bytes that are not UTF-8 (encoded surrogates included) and NUL are written as `\xNN`."""
    return clean_text(data.decode("utf-8", "backslashreplace"))


def omission_notice(omitted: int) -> str:
    """The line that stands where `omitted` bytes were left out."""
    return f"\n[... {omitted} bytes left out ...]\n"


class HeadTail:
    """A byte buffer that keeps the first and the last half of `limit` bytes and counts what fell out between them."""

    __slots__ = ("_half", "_head", "_tail", "received")

    def __init__(self, limit: int = DEFAULT_MAX_OUTPUT_BYTES) -> None:
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self.received = 0

    def feed(self, data: bytes) -> None:
        """Add `data`; memory stays within one and a half times the limit and one chunk."""
        self.received += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data
            if len(self._tail) > 2 * self._half:  # trimming in big steps keeps feeding linear
                del self._tail[: -self._half]

    @property
    def omitted(self) -> int:
        """How many bytes are left out of `text()`."""
        return self.received - len(self._head) - min(len(self._tail), self._half)

    def text(self) -> str:
        """Head, a notice of what was left out when something was, and tail."""
        tail = bytes(self._tail[-self._half :])
        if not self.omitted:
            return decode(bytes(self._head) + tail)
        return decode(bytes(self._head)) + omission_notice(self.omitted) + decode(tail)

    def clear(self) -> None:
        """Forget everything."""
        self._head.clear()
        self._tail.clear()
        self.received = 0


def limit_text(text: str, limit: int) -> tuple[str, int]:
    """`text` made clean and cut to head and tail of `limit` bytes in all, and how many bytes were left out."""
    text = clean_text(text)
    if len(text) <= limit // 4:  # four bytes a character at most
        return text, 0
    data = text.encode()
    if len(data) <= limit:
        return text, 0
    buffer = HeadTail(limit)
    buffer.feed(data)
    return buffer.text(), buffer.omitted
