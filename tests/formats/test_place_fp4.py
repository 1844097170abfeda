"""Placement of fp4 weights: widening is exact or refused, packed words and their round trip."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.errors import FormatError
from dslearn.formats.place import unplace_codes
from dslearn.formats.place_fp4 import place_fp4, place_widened, spread, unplace_fp4, widen
from tests.support.linear import fp4, fp4_values, fp8_values

outputs = st.integers(1, 300)
blocks = st.integers(1, 20)


@settings(max_examples=40, deadline=None)
@given(n=outputs, k=blocks, span=st.integers(0, 13))
def test_widening_changes_no_value(n, k, span):
    packed, scale = fp4(n, 32 * k, span)
    codes, byte = widen(packed, scale)
    assert int((codes & 0x7F).max()) <= 0x74, "192 at most: no infinity, no NaN"
    wide = fp8_values(codes, torch.full((n, 32 * k), 127).byte(), 1)
    wide *= np.exp2(byte.numpy()[:, None].astype(np.float64) - 127)
    assert np.array_equal(wide, fp4_values(packed, scale)) and np.abs(wide).max() > 0


def test_every_code_at_every_exponent_of_the_range():
    pairs = torch.arange(16, dtype=torch.uint8)
    packed = (pairs | 7 << 4).repeat(14).view(1, -1)  # every code beside a 6, 16 bytes per block
    scale = torch.arange(110, 124, dtype=torch.uint8).view(1, -1)
    assert spread(packed, scale) == 13
    codes, byte = widen(packed, scale)
    assert byte.tolist() == [118] and int((codes & 0x7F).max()) == 0x74
    wide = fp8_values(codes, torch.full(codes.shape, 118).byte(), 1)
    expected = fp4_values(packed, scale)
    assert np.array_equal(wide, expected)
    assert np.array_equal(np.signbit(wide), np.signbit(expected)), "-0 stays -0"


def test_one_binade_too_many_is_refused_and_stays_packed():
    packed, scale = torch.full((2, 32), 0x21).byte(), torch.tensor([[120, 120], [110, 124]]).byte()
    assert spread(packed, scale) == 14
    with pytest.raises(FormatError, match=r"output 1 are 2\^14 apart"):
        widen(packed, scale)
    assert torch.equal(unplace_fp4(*place_fp4(packed, scale), 2, 64)[0], packed)
    scale[1, 0] = 111
    assert spread(packed, scale) == 13 and widen(packed, scale)[1].tolist() == [115, 119]


def test_blocks_of_zeros_do_not_count():
    packed, scale = torch.full((1, 32), 0x21).byte(), torch.tensor([[10, 200]]).byte()
    packed[0, :16] = 0x80  # zeros, every second one negative
    assert spread(packed, scale) == 0
    codes, byte = widen(packed, scale)
    assert codes[0, :32].tolist() == [0, 0x80] * 16 and byte.tolist() == [195]
    packed[:] = 0
    assert int(widen(packed, scale)[0].max()) == 0


def test_exponents_at_the_lower_end():
    packed, scale = torch.full((1, 16), 0x21).byte(), torch.tensor([[1]]).byte()
    codes, byte = widen(packed, scale)
    assert byte.tolist() == [1], "the scale stays a normal number"
    values = fp8_values(codes, torch.full((1, 32), 1).byte(), 1)
    assert np.array_equal(values, fp4_values(packed, scale))


@settings(max_examples=30, deadline=None)
@given(n=outputs, k=blocks)
def test_packed_round_trip(n, k):
    packed, scale = fp4(n, 32 * k, 10)
    words, power = place_fp4(packed, scale)
    back = unplace_fp4(words, power, n, 32 * k)
    assert torch.equal(back[0], packed) and torch.equal(back[1], scale)
    assert words.shape[2] == -(-32 * k // 512) and power.shape[0] == 128


def test_a_code_and_its_scale_lie_where_the_documentation_says():
    packed, scale = fp4(300, 1056, 10)
    words, power = place_fp4(packed, scale)
    for n, k in [(0, 0), (63, 5), (64, 6), (127, 511), (128, 512), (299, 1055), (200, 777)]:
        code = int(packed[n, k // 2]) >> 4 * (k % 2) & 15
        byte = int(words[k % 512 // 4, n // 128, k // 512, n % 64, k % 4])
        second = n % 128 >= 64
        size, sign = (byte >> 4 & 7, byte & 1) if second else (byte >> 1 & 7, byte >> 7)
        assert sign << 3 | size == code
        assert power[k // 32 % 128, k // 32 // 128, n] == scale[n, k // 32]


def test_placed_scales_are_one_per_lane_and_tile():
    packed, scale = fp4(300, 64, 3)
    weight, power = place_widened(packed, scale)
    codes, byte = widen(packed, scale)
    assert power.shape == (128, 4) and torch.equal(unplace_codes(weight)[:300, :64], codes)
    assert power[43, 2] == byte[299] and (power.T.reshape(-1)[300:] == 127).all()


def test_shapes_and_scales_that_do_not_fit_are_refused():
    packed, scale = fp4(4, 64, 3)
    for place in (place_fp4, place_widened):
        with pytest.raises(FormatError, match="K/32"):
            place(packed, scale[:, :1])
        with pytest.raises(FormatError, match="0 or 255"):
            place(packed, scale * 0)
        assert place(packed, scale)[0].any()
    scale[3, 1] = 241
    with pytest.raises(FormatError, match="241"):
        place_fp4(packed, scale)
    scale[3, 1] = 240
    assert place_fp4(packed, scale)[1].max() == 240
