"""Halving codes by formula: equal to the table everywhere, on any size, thread count and memory."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.errors import FormatError
from dslearn.formats.halve import PIECE, TABLE, halve

EVERY = np.arange(256, dtype=np.uint8)


def test_all_codes():
    assert np.array_equal(halve(EVERY), TABLE)
    one_by_one = np.concatenate([halve(EVERY[i : i + 1]) for i in range(256)])
    assert np.array_equal(one_by_one, TABLE), "with and without a NaN in the piece"


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(raw):
    codes = np.frombuffer(raw, np.uint8)
    assert np.array_equal(halve(codes), TABLE[codes])


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 17])
def test_sizes_and_threads(size, threads):
    codes = np.random.default_rng(size).integers(0, 127, size, np.uint8)
    codes[size // 2 :] |= 128
    assert np.array_equal(halve(codes, threads), TABLE[codes])


def test_nan_in_one_piece_of_several():
    codes = np.random.default_rng(0).integers(0, 127, 3 * PIECE, np.uint8)
    codes[[PIECE, 2 * PIECE - 1]] = 0x7F, 0xFF
    assert np.array_equal(halve(codes), TABLE[codes])


def test_in_place_and_into_given_memory():
    codes = np.tile(EVERY, (7, 3))
    want = TABLE[codes]
    out = np.full_like(codes, 9)
    assert halve(codes, out=out) is out and np.array_equal(out, want)
    assert halve(codes, out=codes) is codes and np.array_equal(codes, want)


def test_refuses_other_layouts():
    for codes, out in [
        (EVERY[::2], None),
        (EVERY.astype(np.int16), None),
        (EVERY, np.empty(255, np.uint8)),
        (EVERY, np.empty(512, np.uint8)[::2]),
    ]:
        with pytest.raises(FormatError, match="ascontiguousarray"):
            halve(codes, out=out)
