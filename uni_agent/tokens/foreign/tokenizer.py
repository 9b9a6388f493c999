"""Our tokenizer as the `renderers` package takes it, with the text of messages never read as markup."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

from uni_agent.tokens.disguise import Disguise
from uni_agent.tokens.tokenizer import ChatTokenizer


class LentTokenizer:
    """What the package calls of a tokenizer: `encode`, `decode`, `convert_tokens_to_ids`, ids of special tokens.

    Its renderers join their own markup and the text of messages before they encode. So messages are handed to them in
    disguise, and within `revealing` the text between control tokens is encoded as what it stands for. May be used from
    several threads at once.
    """

    def __init__(self, tokenizer: ChatTokenizer, name_or_path: str) -> None:
        self._tokenizer = tokenizer
        self._local = threading.local()
        self.name_or_path = name_or_path
        names = tokenizer.special_tokens
        self.unk_token_id: int | None = self._id(names.get("unk_token"))
        self.eos_token_id: int | None = self._id(names.get("eos_token"))
        self.pad_token_id: int | None = self._id(names.get("pad_token"))
        self.bos_token_id: int | None = self._id(names.get("bos_token"))

    @contextmanager
    def revealing(self, disguise: Disguise) -> Generator[None]:
        """Encode, in this thread, text that `disguise` was applied to."""
        before = getattr(self._local, "disguise", None)
        self._local.disguise = disguise
        try:
            yield
        finally:
            self._local.disguise = before

    def encode(self, text: str, *_: Any, **__: Any) -> list[int]:
        """Ids of `text`; what is disguised becomes ordinary tokens."""
        disguise: Disguise | None = getattr(self._local, "disguise", None)
        if disguise is None:
            return self._tokenizer.encode(text)
        out: list[int] = []
        for piece in self._tokenizer.controls.split(text):
            if piece.id is not None:
                out.append(piece.id)
                continue
            encode = self._tokenizer.encode_after_control if out else self._tokenizer.encode_plain
            out += encode(disguise.reveal(piece.text))
        return out

    def decode(self, token_ids: int | Iterable[int], *_: Any, **__: Any) -> str:
        """The text, control tokens as written."""
        return self._tokenizer.decode([token_ids] if isinstance(token_ids, int) else token_ids)

    def convert_tokens_to_ids(self, tokens: str | list[str]) -> int | list[int | None] | None:
        """The id of a control token, or of a text that is one token; None for any other."""
        if isinstance(tokens, list):
            return [self._id(token) for token in tokens]
        return self._id(tokens)

    def _id(self, token: str | None) -> int | None:
        if token is None:
            return None
        if (known := self._tokenizer.controls.ids.get(token)) is not None:
            return known
        ids = self._tokenizer.encode_plain(token)
        return ids[0] if len(ids) == 1 else None
