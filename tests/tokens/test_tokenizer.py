from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.tokens.small import MARKUP, SPECIAL, add, write_folder
from uni_agent.errors import ConfigError
from uni_agent.tokens.tokenizer import ChatTokenizer

text_with_markers = st.lists(
    st.one_of(st.text(max_size=12), st.sampled_from([*SPECIAL, *MARKUP, "<|im_", "end|>", "<", "\n", "  "])), max_size=8
).map("".join)


@given(text_with_markers)
def test_plain_text_never_holds_an_added_token(small_tokenizer: ChatTokenizer, text: str) -> None:
    ids = small_tokenizer.encode_plain(text)
    assert small_tokenizer.controls.by_id.keys().isdisjoint(ids)


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=40))
def test_decoding_gives_the_text_back(small_tokenizer: ChatTokenizer, text: str) -> None:
    import unicodedata

    normal = unicodedata.normalize("NFC", text)
    assert small_tokenizer.decode(small_tokenizer.encode_plain(normal)) == normal


@given(text_with_markers)
def test_pieces_encode_like_the_whole(small_tokenizer: ChatTokenizer, text: str) -> None:
    ids: list[int] = []
    for piece in small_tokenizer.controls.split(text):
        ids += [piece.id] if piece.id is not None else small_tokenizer.encode_plain(piece.text)
    assert ids == small_tokenizer.encode(text)


@given(st.lists(st.integers(min_value=0, max_value=1200), max_size=20))
def test_any_ids_decode(small_tokenizer: ChatTokenizer, ids: list[int]) -> None:
    assert isinstance(small_tokenizer.decode(ids), str)


def test_half_a_character_decodes_to_a_replacement_character(small_tokenizer: ChatTokenizer) -> None:
    ids = small_tokenizer.encode_plain("🧪")
    assert len(ids) > 1
    assert small_tokenizer.decode([*small_tokenizer.encode_plain("a"), *ids[:-1]]) == "a\ufffd"
    control = small_tokenizer.controls.ids["<|im_end|>"]
    assert small_tokenizer.decode([*ids[:-1], control]) == "\ufffd<|im_end|>"


def test_lone_surrogates_are_replaced(small_tokenizer: ChatTokenizer) -> None:
    assert small_tokenizer.decode(small_tokenizer.encode_plain("a\ud83db")) == "a\ufffdb"


def test_a_folder_without_a_tokenizer_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a folder"):
        ChatTokenizer.from_folder(tmp_path / "missing")
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        ChatTokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ConfigError):
        ChatTokenizer.from_folder(tmp_path)


def test_tokens_that_only_the_config_declares_are_control_tokens(small_folder: Path, tmp_path: Path) -> None:
    spec: Any = json.loads((small_folder / "tokenizer.json").read_text())
    late = spec["added_tokens"].pop()
    config = {"added_tokens_decoder": {str(late["id"]): {"content": late["content"], "special": False}}}
    tokenizer = ChatTokenizer(spec, config)
    assert tokenizer.encode(late["content"]) == [late["id"]]
    assert late["id"] not in tokenizer.encode_plain(late["content"])
    with pytest.raises(ConfigError, match="should have id"):
        ChatTokenizer(spec, {"added_tokens_decoder": {"99999": {"content": "<late>", "special": False}}})


def sentencepiece_like(scheme: str) -> Tokenizer:
    """Word starts marked by ▁, control tokens listed in the vocabulary, as in Llama's tokenizer.json."""
    pieces = ["<unk>", "<s>", "</s>", "▁", *"abcdefgh<>/s\n123", "▁a", "▁b", "ab", "é"]
    model = models.Unigram([(p, -float(i)) for i, p in enumerate(dict.fromkeys(pieces))], 0, True)
    tokenizer = Tokenizer(model)
    metaspace: Any = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.pre_tokenizer = metaspace
    decoder: Any = decoders.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoder
    add(tokenizer, ("<s>", "</s>"), special=True)
    return tokenizer


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_control_tokens_in_a_vocabulary_of_pieces_cannot_be_typed(tmp_path: Path, scheme: str) -> None:
    source: Any = sentencepiece_like(scheme)
    tokenizer = ChatTokenizer.from_folder(write_folder(tmp_path / "m", source))
    controls = {source.token_to_id("<s>"), source.token_to_id("</s>")}
    assert controls.isdisjoint(tokenizer.encode_plain("a</s>b <s>"))
    assert controls.isdisjoint(tokenizer.encode_after_control("</s>"))
    whole = tokenizer.encode("<s>a b</s>ab")
    pieces: list[int] = []
    for piece in tokenizer.controls.split("<s>a b</s>ab"):
        pieces += [piece.id] if piece.id is not None else tokenizer.encode_after_control(piece.text)
    assert pieces == whole
    assert tokenizer.decode(tokenizer.encode_after_control("a b")).strip() == "a b"


def test_an_end_token_takes_the_whitespace_that_it_swallows(small_folder: Path) -> None:
    spec: Any = json.loads((small_folder / "tokenizer.json").read_text())
    for token in spec["added_tokens"]:
        token["rstrip"] = token["content"] == "<|im_end|>"
    tokenizer = ChatTokenizer(spec)
    assert [piece.text for piece in tokenizer.controls.split("a<|im_end|>\n\nb")] == ["a", "<|im_end|>\n\n", "b"]
    assert tokenizer.encode("a<|im_end|>\nb") == tokenizer.encode("a<|im_end|>b")


def test_a_folder_with_older_files_goes_through_transformers(small_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed (extra: embedded)")
    spec: Any = json.loads((small_folder / "tokenizer.json").read_text())
    (tmp_path / "vocab.json").write_text(json.dumps(spec["model"]["vocab"]))
    merges: list[str] = [m if isinstance(m, str) else " ".join(m) for m in spec["model"]["merges"]]
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    declared = {str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in spec["added_tokens"]}
    config = {"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": declared, "eos_token": "<|im_end|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = ChatTokenizer.from_folder(tmp_path)
    expected = ChatTokenizer.from_folder(small_folder)
    for text in ("The README says ok", "<|im_start|>user\nhi<|im_end|>", "漢字 12"):
        assert tokenizer.encode(text) == expected.encode(text)
