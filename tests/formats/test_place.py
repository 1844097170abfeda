"""Placement of fp8 weights: round trips, the documented place of a code, padding, refusals."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.errors import FormatError
from dslearn.formats.device import to_device
from dslearn.formats.place import place_fp8, tiles_of, unplace_codes, unplace_fp8
from tests.support.linear import fp8

sizes = st.integers(1, 300)


@settings(max_examples=40, deadline=None)
@given(n=sizes, k=sizes, tile=st.sampled_from([32, 128]))
def test_round_trip(n, k, tile):
    codes, scale = fp8(n, k, tile, whole=False)
    weight, power = place_fp8(codes, scale, tile)
    assert weight.shape == (128, tiles_of(n), -(-k // 128), 128)
    assert power.shape == (*weight.shape[:3], 128 // tile)
    back = unplace_fp8(weight, power, n, k)
    assert torch.equal(back[0], codes) and torch.equal(back[1], scale)


@pytest.mark.parametrize("tile", [32, 128])
def test_a_code_and_its_scale_lie_where_the_documentation_says(tile):
    codes, scale = fp8(300, 200, tile, whole=False)
    weight, power = place_fp8(codes, scale, tile)
    for n, k in [(0, 0), (31, 32), (32, 31), (127, 128), (128, 127), (299, 199), (161, 97)]:
        place = (k % 128, n // 128, k // 128)
        assert weight[(*place, n % 128)] == codes[n, k]
        assert power[(*place, n % 128 // tile)] == scale[n // tile, k // tile]


def test_padding_is_zero_with_scale_one():
    weight, power = place_fp8(
        torch.full((1, 1), 0x38, dtype=torch.uint8), torch.tensor([[130]]).byte()
    )
    assert unplace_codes(weight).sum() == 0x38 and weight.numel() == 2 * 128 * 128
    assert (power == 127).sum() == power.numel() - 32, "one block of 32 inputs has scale 130"


@pytest.mark.parametrize(
    ("outputs", "tiles"), [(1, 2), (256, 2), (257, 4), (4608, 36), (36864, 288)]
)
def test_two_cores_get_whole_tiles(outputs, tiles):
    assert tiles_of(outputs) == tiles


@pytest.mark.parametrize("code", [0x78, 0x7E, 0x7F, 0xF8, 0xFF])
def test_codes_of_the_checkpoint_convention_are_refused_until_converted(code):
    codes, scale = (
        torch.zeros(40, 40, dtype=torch.uint8),
        torch.full((2, 2), 127, dtype=torch.uint8),
    )
    codes[33, 7] = code
    with pytest.raises(FormatError, match=r"\(33, 7\).*to_device"):
        place_fp8(codes, scale)
    if code & 0x7F != 0x7F:
        weight, _ = place_fp8(*to_device(codes, scale)[:2])
        assert int((weight & 0x7F).max()) <= 0x76


@pytest.mark.parametrize("byte", [0, 255])
def test_scales_that_no_shift_decodes_are_refused(byte):
    codes, scale = fp8(32, 64, 32, whole=False)
    scale[0, 1] = byte
    with pytest.raises(FormatError, match="0 or 255"):
        place_fp8(codes, scale)
    scale[0, 1] = 254 if byte else 1
    assert int(place_fp8(codes, scale)[1][32, 0, 0, 0]) == scale[0, 1]


def test_the_grid_of_another_tile_is_refused():
    codes, scale = fp8(256, 256, 32, whole=False)
    with pytest.raises(FormatError, match="32x32"):
        place_fp8(codes, scale, 128)
    assert place_fp8(codes, scale, 32)[0].any()
