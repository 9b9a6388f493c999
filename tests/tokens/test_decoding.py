"""Ids decoded as they arrive give the text of all ids, for every split and every kind of tokenizer."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.tokens.small import add
from tests.tokens.test_tokenizer import sentencepiece_like
from uni_agent.tokens.decoding import TokenDecoder
from uni_agent.tokens.renderer import ChatTemplateRenderer
from uni_agent.tokens.tokenizer import ChatTokenizer

TEXTS = st.text(alphabet="ab é漢🧪👩\u200d\ufffd<|\n", max_size=12)


def of(tokenizer: Any) -> ChatTokenizer:
    return ChatTokenizer(json.loads(tokenizer.to_str()))


def byte_pieces(*last: Any) -> Tokenizer:
    """Pieces with byte fallback, decoded as Llama's tokenizer.json does."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁a", *"ab<|\n", "é", "\ufffd"]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [("▁", "a")], byte_fallback=True))
    metaspace: Any = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.pre_tokenizer = metaspace
    chain: Any = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *last])
    tokenizer.decoder = chain
    add(tokenizer, ("<s>", "</s>"), special=True)
    return tokenizer


KINDS: dict[str, ChatTokenizer] = {
    **{scheme: of(sentencepiece_like(scheme)) for scheme in ("first", "always", "never")},
    "byte_pieces": of(byte_pieces()),
    "byte_pieces_stripped": of(byte_pieces(decoders.Strip(" ", 1, 0))),
}


def joined(tokenizer: ChatTokenizer, ids: Sequence[int], cuts: Sequence[int]) -> str:
    decoder = TokenDecoder(tokenizer)
    ends = sorted(cut % (len(ids) + 1) for cut in cuts)
    pieces = [decoder.push(ids[a:b]) for a, b in zip([0, *ends], [*ends, len(ids)], strict=True)]
    return "".join([*pieces, decoder.finish()])


@settings(max_examples=100)
@given(st.data())
def test_any_split_of_byte_level_ids_decodes_like_the_whole(
    small_tokenizer: ChatTokenizer, data: st.DataObject
) -> None:
    assert small_tokenizer.byte_level
    parts = st.one_of(
        st.integers(0, 1200).map(lambda id_: [id_]),
        TEXTS.map(small_tokenizer.encode),
        st.sampled_from(list(small_tokenizer.controls.by_id)).map(lambda id_: [id_]),
        st.sampled_from("é漢🧪").map(lambda c: small_tokenizer.encode(c)[:-1]),
    )
    ids = [id_ for part in data.draw(st.lists(parts, max_size=12)) for id_ in part]
    cuts = data.draw(st.lists(st.integers(0, 200), max_size=30))
    assert joined(small_tokenizer, ids, cuts) == small_tokenizer.decode(ids)
    assert joined(small_tokenizer, ids, range(len(ids))) == small_tokenizer.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100)
@given(st.data())
def test_any_split_of_pieces_decodes_like_the_whole(kind: str, data: st.DataObject) -> None:
    tokenizer = KINDS[kind]
    assert not tokenizer.byte_level
    parts = st.one_of(st.integers(0, 280).map(lambda id_: [id_]), TEXTS.map(tokenizer.encode))
    ids = [id_ for part in data.draw(st.lists(parts, max_size=12)) for id_ in part]
    cuts = data.draw(st.lists(st.integers(0, 200), max_size=30))
    assert joined(tokenizer, ids, cuts) == tokenizer.decode(ids)
    assert joined(tokenizer, ids, range(len(ids))) == tokenizer.decode(ids)


def test_all_bytes_decode_like_the_whole(small_tokenizer: ChatTokenizer) -> None:
    """Every pair of single bytes: what is an incomplete character and what is none at all."""
    tokens = [small_tokenizer.encode_plain(chr(i))[-1] for i in range(0x80, 0x100)]
    singles = [*tokens, *(small_tokenizer.encode_plain(c)[0] for c in "é漢🧪a")]
    for a in singles:
        for b in singles:
            assert joined(small_tokenizer, [a, b, a], range(3)) == small_tokenizer.decode([a, b, a])


def test_text_comes_as_soon_as_it_is_certain_and_half_characters_are_held_back(small_tokenizer: ChatTokenizer) -> None:
    decoder = TokenDecoder(small_tokenizer)
    ids = small_tokenizer.encode_plain("🧪")
    assert decoder.push(small_tokenizer.encode_plain("hello")) == "hello"
    assert [decoder.push([id_]) for id_ in ids] == [*([""] * (len(ids) - 1)), "🧪"]
    assert decoder.push([*ids[:-1], small_tokenizer.controls.ids["<|im_end|>"]]) == "\ufffd<|im_end|>"
    assert decoder.push(ids[:-1]) == "" and decoder.finish() == "\ufffd" and decoder.finish() == ""
    assert decoder.push(small_tokenizer.encode_plain("again")) == "again"


def test_word_starts_keep_their_blanks_as_they_arrive() -> None:
    for tokenizer in KINDS.values():
        decoder = TokenDecoder(tokenizer)
        ids = tokenizer.encode("a a  a")
        texts = [decoder.push([id_]) for id_ in ids]
        assert "".join(texts) == tokenizer.decode(ids) and all(texts[1:])


def test_a_run_of_byte_tokens_is_held_until_it_is_known_to_be_text() -> None:
    tokenizer = KINDS["byte_pieces"]
    kanji = [3 + byte for byte in "漢".encode()]
    (a,) = [id_ for id_ in range(300) if tokenizer.token(id_) == "a"]
    decoder = TokenDecoder(tokenizer)
    assert [decoder.push([id_]) for id_ in [*kanji, a]] == ["", "", "", "漢a"]
    assert [decoder.push([id_]) for id_ in [*kanji, 3 + 0xFF, a]] == ["", "", "", "", "\ufffd" * 4 + "a"]


@pytest.mark.parametrize("kind", ["byte_level", *KINDS])
def test_the_cost_of_a_push_does_not_grow(kind: str, small_tokenizer: ChatTokenizer) -> None:
    """Ordinary text, and the worst case of each kind: text that never settles."""
    tokenizer = small_tokenizer if kind == "byte_level" else KINDS[kind]
    bad = tokenizer.encode_plain("\ufffd")
    for unit in (tokenizer.encode_plain("ab"), bad[:1], bad):

        def seconds(count: int, unit: list[int] = unit) -> float:
            decoder = TokenDecoder(tokenizer)
            started = time.process_time()
            for _ in range(count):
                decoder.push(unit)
            decoder.finish()
            return time.process_time() - started

        few = min(seconds(250) for _ in range(3))
        assert min(seconds(2000) for _ in range(3)) < 40 * few  # 8 when linear, 64 when quadratic


def test_the_renderer_gives_a_decoder_of_its_own(make: Any, tmp_path: Path) -> None:
    renderer: ChatTemplateRenderer = make("qwen3")
    one, two = renderer.decoder(), renderer.decoder()
    half = renderer.tokenizer.encode_plain("🧪")[:-1]
    assert one.push(half) == "" and two.push(renderer.stop_token_ids[:1]) == "<|im_end|>"
    assert one.finish() == "\ufffd"
