from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uni_agent.store import blobs


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_token_ids_come_back_exactly(ids: list[int]) -> None:
    assert blobs.ids_of(blobs.pack(blobs.ids_bytes(ids))) == ids


@given(st.lists(st.integers(0, 1)))
def test_masks_come_back_exactly(mask: list[int]) -> None:
    assert blobs.mask_of(blobs.pack(blobs.mask_bytes(mask))) == mask


@given(st.lists(st.floats(width=32, allow_nan=False)))
def test_float32_numbers_come_back_exactly(values: list[float]) -> None:
    assert blobs.floats_of(blobs.pack(blobs.floats_bytes(values))) == values


@given(st.binary())
def test_any_bytes_survive_packing(raw: bytes) -> None:
    assert blobs.unpack(blobs.pack(raw)) == raw


def test_ids_are_little_endian_uint32() -> None:
    assert blobs.unpack(blobs.pack(blobs.ids_bytes([1, 258]))) == struct.pack("<2I", 1, 258)


def test_a_long_chain_is_compressed() -> None:
    ids = [index % 500 for index in range(30_000)]
    assert len(blobs.pack(blobs.ids_bytes(ids))) < 60_000
    assert len(blobs.pack(blobs.mask_bytes([1] * 30_000))) < 300


@pytest.mark.parametrize("ids", [[-1], [2**32], [1.5], ["a"], [None]])
def test_what_is_no_token_id_is_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="not a token id"):
        blobs.ids_bytes(ids)


@pytest.mark.parametrize("blob", [b"", b"\x02abc", b"\x01abc"])
def test_a_damaged_blob_is_an_error(blob: bytes) -> None:
    with pytest.raises(ValueError, match="blob"):
        blobs.unpack(blob)
