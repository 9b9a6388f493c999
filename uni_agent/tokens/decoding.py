"""Sampled ids to text while they arrive."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from functools import cache

from uni_agent.tokens.tokenizer import ChatTokenizer

_REPLACEMENT = "\ufffd"


class TokenDecoder:
    """The text of one generation, piece by piece.

    Joined, what `push` and `finish` return is `tokenizer.decode` of all ids, however they were split. Text is held back
    while more ids could change it: bytes that are no complete character yet, and a run of byte tokens (`<0xE6>`), which
    is text only if the whole run is UTF-8. A push costs what is new, apart from a run that is held back, which is
    decoded again only when it has doubled.
    """

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._controls = tokenizer.controls.by_id
        self._run = _Bytes(tokenizer) if tokenizer.byte_level else _Window(tokenizer)

    def push(self, ids: Sequence[int]) -> str:
        """The text that `ids` completed; "" when nothing is certain yet."""
        out: list[str] = []
        run: list[int] = []
        for id_ in ids:
            control = self._controls.get(id_)
            if control is None:
                run.append(id_)
                continue
            out += (self._run.push(run), self._run.finish(), control)
            run = []
        out.append(self._run.push(run))
        return "".join(out)

    def finish(self) -> str:
        """The text that was held back, with U+FFFD for what never became a character. The decoder starts anew."""
        return self._run.finish()


class _Bytes:
    """A stretch without control tokens, for tokenizers whose tokens are bytes."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._token = tokenizer.token
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Sequence[int]) -> str:
        return self._utf8.decode(b"".join([_bytes_of(self._token(id_) or "") for id_ in ids]))

    def finish(self) -> str:
        text = self._utf8.decode(b"", True)
        self._utf8.reset()
        return text


class _Window:
    """A stretch without control tokens, for every other tokenizer.

    `_behind` is the last id whose text was given out: decoders treat the first token of a text apart, so what follows
    is decoded behind it.
    """

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._behind: list[int] = []
        self._pending: list[int] = []
        self._due = 0

    def push(self, ids: Sequence[int]) -> str:
        # Ids without a token have no text, and would be no token to stand behind.
        self._pending += [id_ for id_ in ids if self._tokenizer.token(id_) is not None]
        if not self._pending or len(self._pending) < self._due or self._tokenizer.is_byte(self._pending[-1]):
            return ""
        text = self._text()
        if text is None or text.endswith(_REPLACEMENT):
            self._due = 2 * len(self._pending) if len(self._pending) >= 8 else 0
            return ""
        self._behind, self._pending, self._due = self._pending[-1:], [], 0
        return text

    def finish(self) -> str:
        text = self._text() if self._pending else ""
        self._behind, self._pending, self._due = [], [], 0
        return text or ""

    def _text(self) -> str | None:
        """What the pending ids add; None when they change what was given out before."""
        before = self._tokenizer.decode(self._behind)
        text = self._tokenizer.decode([*self._behind, *self._pending])
        return text[len(before) :] if text.startswith(before) else None


def _bytes_of(token: str) -> bytes:
    """The bytes of a byte-level token; a token that is written in other characters stands for its own text."""
    alphabet = _alphabet()
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:
        return token.encode("utf-8", "replace")


@cache
def _alphabet() -> dict[str, int]:
    """Character → byte, as byte-level BPE writes bytes (GPT-2): printable ones as themselves, others from U+0100 on."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {**{chr(byte): byte for byte in shown}, **{chr(256 + i): byte for i, byte in enumerate(hidden)}}
