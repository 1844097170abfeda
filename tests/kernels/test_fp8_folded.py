"""fp8_folded against ml_dtypes and its twin: exact sums, bounds, odd sizes, specials, two cores."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.formats.place import place_fp8
from dslearn.kernels.fp8_folded import fp8_folded
from dslearn.ops.fp8_folded import reference
from tests.support import linear

each_tile = pytest.mark.parametrize("tile", [32, 128])


@settings(max_examples=20, deadline=None)
@given(
    m=st.integers(1, 24), k=st.integers(1, 300), n=st.integers(1, 300),
    tile=st.sampled_from([32, 128]),
)  # fmt: skip
def test_any_size_within_the_bound_of_its_sum(m, k, n, tile):
    x, (codes, scale) = linear.rows(m, k), linear.fp8(n, k, tile, whole=False)
    placed = place_fp8(codes, scale, tile)
    y = fp8_folded(x, *placed, n, True)
    linear.check_close(y, x, linear.fp8_values(codes, scale, tile))
    linear.check_close(reference(x, *placed, n, True), x, linear.fp8_values(codes, scale, tile))


@pytest.mark.parametrize("rows", [100, 128])
def test_more_rows_than_tiles_are_scaled_the_other_way_round(rows):
    x, (codes, scale) = linear.whole_rows(rows, 200), linear.fp8(300, 200, 128, whole=True)
    y = fp8_folded(x, *place_fp8(codes, scale, 128), 300, True)
    assert np.array_equal(y.numpy(), linear.product(x, linear.fp8_values(codes, scale, 128)))


def test_every_code_of_the_device():
    codes = torch.arange(256, dtype=torch.uint8)
    codes[codes & 0x7F > 0x77] = 0
    x = torch.eye(128)[:, :128].bfloat16()
    placed = place_fp8(codes.view(2, 128), torch.full((1, 1), 127).byte(), 128)
    y = fp8_folded(x, *placed, 2, True)
    expected = linear.fp8_values(codes.view(2, 128), torch.full((1, 1), 127).byte(), 128).T
    assert np.array_equal(y.numpy(), expected) and y.max() == 240
    assert y[1, 0] == 2.0**-9, "subnormal numbers are multiplied as what they are"


@pytest.mark.parametrize(("low", "high"), [(1, 30), (230, 254)])
def test_scales_at_the_ends_of_their_range(low, high):
    codes = torch.full((64, 64), 0x38).byte()
    scale = torch.tensor([[low, low], [high, high]]).byte()
    size = 2.0 ** (100 if high < 127 else -100)  # keeps x times the scale a normal number
    x = (linear.whole_rows(2, 64).float() * size).bfloat16()
    y = fp8_folded(x, *place_fp8(codes, scale), 64, True)
    exact = linear.product(x, linear.fp8_values(codes, scale, 32))
    assert np.array_equal(y.numpy(), exact) and np.abs(exact).max() > 0


def test_a_scaled_activation_beyond_bf16_is_infinite_where_the_twin_goes_on():
    x, codes = torch.tensor([[2.0**127]]).bfloat16(), torch.tensor([[0x28]]).byte()  # 0.25
    placed = place_fp8(codes, torch.tensor([[128]]).byte())
    assert fp8_folded(x, *placed, 1, True).item() == math.inf
    assert reference(x, *placed, 1, True).item() == 2.0**126
    placed = place_fp8(codes, torch.tensor([[127]]).byte())
    assert fp8_folded(x, *placed, 1, True).item() == reference(x, *placed, 1, True).item()


@pytest.mark.parametrize(("m", "k"), [(129, 32), (300, 40), (35, 20479)])
def test_more_rows_than_fit_go_in_chunks(m, k):
    x, (codes, scale) = linear.whole_rows(m, k), linear.fp8(40, k, 32, whole=True)
    y = fp8_folded(x, *place_fp8(codes, scale), 40, True)
    assert np.array_equal(y.numpy(), linear.product(x, linear.fp8_values(codes, scale, 32)))


@pytest.mark.parametrize("size", [(6, 8192), (16, 8192), (24, 20480)], ids=str)
def test_three_groups_of_wide_tiles_fit_in_sbuf(size):
    """The group before is still computed while the next one loads: 6 x 8192 once was too much."""
    (m, k), n = size, 12 * 128
    x = torch.ones(m, k, dtype=torch.bfloat16)
    codes, scale = torch.full((n, k), 0x38, dtype=torch.uint8), torch.full((n // 32, k // 32), 127)
    y = fp8_folded(x, *place_fp8(codes, scale.to(torch.uint8), 32), n, True)
    assert y.shape == (m, n) and bool((y == k).all())
