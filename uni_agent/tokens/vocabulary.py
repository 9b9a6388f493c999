"""Which texts a tokenizer turns into control tokens, and a copy of it that never does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from uni_agent.errors import ConfigError

Spec = dict[str, Any]
"""The decoded content of a tokenizer.json."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a rendered text: a control token (`id` set) or ordinary text."""

    text: str
    id: int | None
    end: int
    """Where it ends in the text, whitespace that the token swallows included."""


class ControlTokens:
    """The added tokens that are markup.

    `ids` maps their texts to ids; those in `swallowing` take the whitespace behind them along. Added tokens that are
    whitespace only (Gemma's runs of newlines) are no markup and stay ordinary text.
    """

    def __init__(self, spec: Spec) -> None:
        tokens = [t for t in added_tokens(spec) if is_control(t)]
        self.ids: Mapping[str, int] = {t["content"]: t["id"] for t in tokens}
        self.by_id: Mapping[int, str] = {id_: text for text, id_ in self.ids.items()}
        tokens.sort(key=lambda t: len(t["content"]), reverse=True)  # the longest match wins, as in `tokenizers`
        self._bare = _alternatives(list(self.ids))
        self._split = re.compile("|".join(_pattern(t) for t in tokens) or "(?!)")
        self._starts = {text[:n] for text in self.ids for n in range(1, len(text))}
        self.swallowing = {t["content"] for t in tokens if t.get("rstrip")}
        self._firsts = {text[0] for text in self.ids}
        self._longest = max((len(text) for text in self.ids), default=0)
        self._excepting: dict[tuple[str, ...], re.Pattern[str]] = {}

    def split(self, text: str) -> Iterator[Piece]:
        """`text` as control tokens and the texts between them; empty texts are left out."""
        at = 0
        for match in self._split.finditer(text):
            if match.start() > at:
                yield Piece(text[at : match.start()], None, match.start())
            yield Piece(match[0], self.ids[match[0].strip()], match.end())
            at = match.end()
        if at < len(text):
            yield Piece(text[at:], None, len(text))

    def finder(self, leave: tuple[str, ...] = ()) -> re.Pattern[str]:
        """A pattern that finds the text of every control token but those in `leave`."""
        if not leave:
            return self._bare
        if leave not in self._excepting:
            self._excepting[leave] = _alternatives([text for text in self.ids if text not in leave])
        return self._excepting[leave]

    def begun(self, text: str) -> str:
        """The longest end of `text` that begins a control token, which text after it could complete; "" if none."""
        if all(first not in text[-self._longest :] for first in self._firsts):
            return ""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if text[-length:] in self._starts:
                return text[-length:]
        return ""


def _alternatives(texts: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True)) or "(?!)")


def _pattern(token: Spec) -> str:
    pattern = re.escape(token["content"])
    if token.get("single_word"):
        pattern = rf"(?<!\w){pattern}(?!\w)"
    return (r"\s*" if token.get("lstrip") else "") + pattern + (r"\s*" if token.get("rstrip") else "")


def added_tokens(spec: Spec) -> list[Spec]:
    """The entries of `added_tokens`."""
    return cast(list[Spec], spec.get("added_tokens") or [])


def is_control(token: Spec) -> bool:
    """Whether an added token is markup rather than a shorthand for whitespace."""
    return bool(token["content"].strip())


def complete(spec: Spec, config: Spec) -> Spec:
    """`spec` without truncation and padding, with the tokens that only tokenizer_config.json adds."""
    known = {token["id"] for token in added_tokens(spec)}
    declared = cast(dict[str, Spec], config.get("added_tokens_decoder") or {})
    more = [{**_PLAIN_TOKEN, **token, "id": int(key)} for key, token in declared.items() if int(key) not in known]
    more = [{k: v for k, v in token.items() if not k.startswith("_")} for token in more]
    tokens = sorted([*added_tokens(spec), *more], key=lambda token: token["id"])
    return {**spec, "added_tokens": tokens, "truncation": None, "padding": None}


_PLAIN_TOKEN: Spec = {
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "special": False,
}


def without_controls(spec: Spec) -> tuple[Spec, str]:
    """A tokenizer that knows no control token, plus one stand-in token; returns it with the stand-in's text.

    Vocabularies that list control tokens beside ordinary pieces (Unigram, whole-word look-ups) get them renamed, so
    that no text reaches them; ids keep their places. The stand-in makes text encode as it does behind a control token.
    """
    controls = {token["content"] for token in added_tokens(spec) if is_control(token)}
    model = dict(cast(Spec, spec["model"]))
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        pieces = cast(dict[str, int], vocab)
        top = max(pieces.values(), default=-1)
        if hit := controls & pieces.keys():
            model["vocab"] = {_renamed(text) if text in hit else text: id_ for text, id_ in pieces.items()}
            if isinstance(merges := model.get("merges"), list):
                model["merges"] = [m for m in cast(list[Any], merges) if _merged(m) not in hit]
            if model.get("unk_token") in hit:
                model["unk_token"] = _renamed(model["unk_token"])
    elif isinstance(vocab, list):
        scored = cast(list[list[Any]], vocab)
        top = len(scored) - 1
        model["vocab"] = [[_renamed(t) if t in controls else t, score] for t, score in scored]
    else:
        raise ConfigError(f"tokenizer.json: cannot read a vocabulary of model {model.get('type')!r}")
    stand_in = _renamed("stand-in")
    kept = [token for token in added_tokens(spec) if not is_control(token)]
    top = max([top, *(token["id"] for token in added_tokens(spec))])
    kept.append({**_PLAIN_TOKEN, "special": True, "content": stand_in, "id": top + 1})
    return {**spec, "model": model, "added_tokens": kept, "post_processor": None}, stand_in


def _renamed(text: str) -> str:
    return f"\U0010fff0{text}\U0010fff1"


def _merged(merge: Any) -> str:
    return "".join(cast(list[str], merge)) if isinstance(merge, list) else str(merge).replace(" ", "", 1)
