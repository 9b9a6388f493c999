"""A chat model's tokenizer, straight from its folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import tokenizers

from uni_agent.errors import ConfigError, MissingExtraError, boundary
from uni_agent.tokens.vocabulary import ControlTokens, Spec, complete, without_controls

_Tokenizer: Any = tokenizers.Tokenizer  # how much its stubs say depends on the version
_SHARED = range(1024, 65_536)
"""Lengths of texts, in characters, whose ids are kept."""
_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")
_PROBES = ("a", " a", "  a b", "\na", "\n\na", "é漢🧪", "user\nhi", "12 + 3", "{", "\t}\n")


class ChatTokenizer:
    """Text to ids and back, with control tokens either recognised or impossible.

    The text of a control token in `encode_plain`'s input becomes ordinary tokens. A tokenizer's own normalization
    (Qwen's NFC) applies in both.
    """

    def __init__(self, spec: Spec, config: Spec | None = None, *, name: str = "tokenizer.json") -> None:
        self.config = config or {}
        self.name = name
        spec = complete(spec, self.config)
        plain, self._stand_in = without_controls(spec)
        with boundary(ConfigError, f"{name} cannot be loaded"):
            self._full: Any = _Tokenizer.from_str(json.dumps(spec))
            self._plain: Any = _Tokenizer.from_str(json.dumps(plain))
        self.controls = ControlTokens(spec)
        self._decoders = _decoders(spec.get("decoder"))
        for text, id_ in self.controls.ids.items():
            if self._full.token_to_id(text) != id_:
                raise ConfigError(f"{name}: {text!r} should have id {id_}, it has {self._full.token_to_id(text)}")
        self._behind = False
        # System prompts with their tools: the same long text at the head of every conversation of a run.
        self._encoded_shared = lru_cache(maxsize=64)(self._encoded_plain)
        self._check_pieces()

    @classmethod
    def from_folder(cls, folder: Path) -> ChatTokenizer:
        """The tokenizer of a Hugging Face model folder.

        Reads tokenizer.json and tokenizer_config.json; a folder without the former goes through transformers (extra
        `embedded`). Raises ConfigError when there is no tokenizer or it cannot be used, MissingExtraError.
        """
        if not folder.is_dir():
            raise ConfigError(f"tokenizer: {folder} is not a folder")
        path = folder / "tokenizer.json"
        config_path = folder / "tokenizer_config.json"
        config: Spec = _read(config_path) if config_path.is_file() else {}
        if path.is_file():
            return cls(_read(path), config, name=str(path))
        return cls(_converted(folder), config, name=str(folder))

    def encode(self, text: str) -> list[int]:
        """Ids of `text`; the text of a control token becomes that token. Only for text that nobody hostile wrote."""
        return self._full.encode(_whole(text), add_special_tokens=False).ids

    def encode_plain(self, text: str) -> list[int]:
        """Ids of `text`, in which no control token is ever found; a new list."""
        if len(text) not in _SHARED:
            return self._encoded_plain(text)
        return list(self._encoded_shared(text))

    def _encoded_plain(self, text: str) -> list[int]:
        return self._checked(self._plain.encode(_whole(text), add_special_tokens=False).ids)

    def encode_after_control(self, text: str) -> list[int]:
        """Like `encode_plain`, for text that stands behind a control token (some tokenizers treat a start apart)."""
        if not self._behind or self._stand_in in text:
            return self.encode_plain(text)
        ids = self._plain.encode(self._stand_in + _whole(text), add_special_tokens=False).ids
        return self._checked(ids[1:])

    def plain_offsets(self, text: str) -> list[tuple[int, int]]:
        """For each id of `encode_plain(text)`, the half-open range of characters it came from."""
        return self._plain.encode(_whole(text), add_special_tokens=False).offsets

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, control tokens as written. Bytes that are no complete character become U+FFFD.

        Ids outside the vocabulary (a padded embedding can sample them) have no text.
        """
        out: list[str] = []
        run: list[int] = []
        for id_ in ids:
            text = self.controls.by_id.get(id_)
            if text is None:
                run.append(id_)
                continue
            out.append(self._decode_run(run))
            out.append(text)
            run = []
        out.append(self._decode_run(run))
        return "".join(out)

    @property
    def byte_level(self) -> bool:
        """Whether the text of ids is their bytes, one after another."""
        return self._decoders == ["ByteLevel"]

    def token(self, id_: int) -> str | None:
        """The token as the vocabulary writes it; None for an id outside the vocabulary."""
        return self._full.id_to_token(id_)

    def is_byte(self, id_: int) -> bool:
        """Whether an ordinary token stands for one byte (`<0xE6>`) in a vocabulary of pieces."""
        return "ByteFallback" in self._decoders and _BYTE.fullmatch(self.token(id_) or "") is not None

    @property
    def special_tokens(self) -> dict[str, str]:
        """The names that templates know (`bos_token`, `eos_token`, …) → texts; absent when unset."""
        found: dict[str, str] = {}
        for key in ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"):
            value = self.config.get(key)
            text = cast(dict[str, Any], value).get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                found[key] = text
        return found

    def _decode_run(self, ids: Sequence[int]) -> str:
        if not ids:
            return ""
        if not self._behind:
            return self._full.decode(list(ids), skip_special_tokens=False)
        # Tokenizers that mark word starts drop the first blank of a text; decoding behind a letter keeps it.
        lead = self.encode_plain("a")
        text = self._full.decode([*lead, *ids], skip_special_tokens=False)
        return text[len(self._full.decode(lead, skip_special_tokens=False)) :]

    def _checked(self, ids: list[int]) -> list[int]:
        if not self.controls.by_id.keys().isdisjoint(ids):
            text = next(self.controls.by_id[id_] for id_ in ids if id_ in self.controls.by_id)
            raise ConfigError(
                f"{self.name}: plain text gave the control token {text!r}; this tokenizer is not supported"
            )
        return ids

    def _check_pieces(self) -> None:
        """Choose how text behind a control token is encoded, and check that it equals the tokenizer's own way."""
        for text in self.controls.ids:
            self.encode_plain(text)
            self.encode_plain(f"a {text} b")
        if not self.controls.ids:
            return
        for self._behind in (False, True):
            if all(self._same(probe) for probe in _PROBES):
                return
        raise ConfigError(f"{self.name}: text behind a control token is encoded in a way that is not supported")

    def _same(self, probe: str) -> bool:
        control = next(iter(self.controls.ids))
        whole = f"{control}{probe}"
        ids: list[int] = []
        for piece in self.controls.split(whole):
            ids += [piece.id] if piece.id is not None else self.encode_after_control(piece.text)
        return ids == self.encode(whole)


def _decoders(decoder: Any) -> list[str]:
    """The kinds of decoders that a tokenizer.json applies, in order."""
    if not isinstance(decoder, dict):
        return []
    entry = cast(Spec, decoder)
    if entry.get("type") == "Sequence":
        return [kind for inner in cast(list[Any], entry.get("decoders") or []) for kind in _decoders(inner)]
    return [str(entry.get("type"))]


def _read(path: Path) -> Spec:
    try:
        return cast(Spec, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _converted(folder: Path) -> Spec:
    """A tokenizer.json made by transformers from the older files of `folder`."""
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingExtraError(
            "transformers", "embedded", f"{folder} has no tokenizer.json; converting its tokenizer"
        ) from error
    with boundary(ConfigError, f"{folder}: transformers cannot load this tokenizer"):
        tokenizer: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)  # pyright: ignore
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)  # pyright: ignore[reportUnknownArgumentType]
    if backend is None:
        raise ConfigError(f"{folder}: transformers has no fast tokenizer for it; add a tokenizer.json")
    return cast(Spec, json.loads(backend.to_str()))


def _whole(text: str) -> str:
    """`text` with lone surrogates, which have no UTF-8 form, replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
