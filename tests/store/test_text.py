from __future__ import annotations

import dataclasses
import json
from array import array
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from uni_agent.store.display import printable, shorten
from uni_agent.store.text import column, dumps, plain, utf8

any_text = st.text(st.characters())  # lone surrogates included
any_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | any_text | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(any_text | st.integers(), inner),
    max_leaves=20,
)


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is no JSON")


@given(any_value)
def test_any_value_is_one_line_of_strict_utf8_json(value: Any) -> None:
    text = dumps(value)
    assert len(text.encode("utf-8").decode("utf-8").splitlines()) == 1
    assert json.loads(text, parse_constant=refuse) == plain(value)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_that_is_utf8_is_kept_exactly(text: str) -> None:
    assert utf8(text) == text
    assert json.loads(dumps(text)) == text


@given(any_text)
def test_a_text_column_holds_neither_surrogates_nor_nul(text: str) -> None:
    assert "\0" not in column(text)
    column(text).encode("utf-8")


@pytest.mark.parametrize(
    "raw",
    [b"\x96\xff\n", bytes(range(256)), b"a\0b\n", b"\xed\xa0\x80"],
    ids=["not-utf8", "every-byte", "nul", "surrogate-bytes"],
)
def test_sbx_06_command_output_that_is_not_utf8_becomes_strict_json(raw: bytes) -> None:
    for text in (raw.decode("utf-8", "surrogateescape"), raw.decode("utf-8", "replace"), raw.decode("latin-1")):
        encoded = dumps({"output": text}).encode("utf-8", "strict")
        assert json.loads(encoded)["output"] == utf8(text)


def test_dash_04_nan_and_infinity_become_null() -> None:
    assert json.loads(dumps({"a": float("nan"), "b": [float("inf"), -float("inf")], "c": 1.5})) == {
        "a": None,
        "b": [None, None],
        "c": 1.5,
    }


def test_what_contains_itself_or_nests_without_end_is_cut() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert "nested too deep" in dumps(loop)
    deep: Any = "x"
    for _ in range(5000):
        deep = {"a": [deep]}
    assert "nested too deep" in dumps(deep)


def test_numbers_too_long_to_print_are_hexadecimal() -> None:
    assert json.loads(dumps(10**5000)) == hex(10**5000)


def test_foreign_objects_become_data_or_a_note() -> None:
    class Colour(Enum):
        RED = "red"

    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    class Model(BaseModel):
        number: int = 3

    @dataclasses.dataclass
    class Record:
        name: str = "x"

    value = {
        "enum": Colour.RED,
        "path": Path("/a"),
        "model": Model(),
        "record": Record(),
        "array": array("I", [1, 2]),
        "set": {1},
        Colour.RED: None,
        3: None,
    }
    assert json.loads(dumps(value)) == {
        "enum": "red",
        "path": "/a",
        "model": {"number": 3},
        "record": {"name": "x"},
        "array": [1, 2],
        "set": [1],
        "red": None,
        "3": None,
    }
    assert "Broken: RuntimeError" in dumps(Broken())


@given(any_text)
def test_printable_text_gives_a_terminal_nothing_to_obey(text: str) -> None:
    shown = printable(text)
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in shown)
    assert not set(shown) & set("\u202e\u202d\u2066\u200b\u2028\ufeff")
    shown.encode("utf-8")


def test_dash_01_text_that_reverses_its_direction_is_written_out() -> None:
    assert printable("\u202egnp.exe") == "\\u202egnp.exe"
    assert printable("\x1b]0;owned\x07\x1b[2J") == "\\u001b]0;owned\\u0007\\u001b[2J"
    assert printable("a\n\tb", keep_lines=True) == "a\n\tb"
    assert shorten("x" * 50, 10) == "x" * 9 + "…"
