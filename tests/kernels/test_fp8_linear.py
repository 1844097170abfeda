"""fp8_linear against ml_dtypes and its twin: exact sums, bounds, prompts, specials, two cores."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.formats.place import place_fp8
from dslearn.kernels.fp8_folded import fp8_folded
from dslearn.kernels.fp8_linear import fp8_linear
from tests.support import linear

each_tile = pytest.mark.parametrize("tile", [32, 128])


@settings(max_examples=20, deadline=None)
@given(
    m=st.integers(1, 200), k=st.integers(1, 300), n=st.integers(1, 300),
    tile=st.sampled_from([32, 128]),
)  # fmt: skip
def test_any_size_within_the_bound_of_its_sum(m, k, n, tile):
    x, (codes, scale) = linear.rows(m, k), linear.fp8(n, k, tile, whole=False)
    y = fp8_linear(x, *place_fp8(codes, scale, tile), n, True)
    linear.check_close(y, x, linear.fp8_values(codes, scale, tile))


def test_a_wide_weight_is_decoded_in_parts_and_rows_in_chunks():
    m, k = 130, 20479  # 160 steps: 128 rows fit at once
    x, (codes, scale) = linear.whole_rows(m, k), linear.fp8(40, k, 32, whole=True)
    y = fp8_linear(x, *place_fp8(codes, scale), 40, True)
    assert np.array_equal(y.numpy(), linear.product(x, linear.fp8_values(codes, scale, 32)))


@each_tile
def test_few_rows_agree_with_the_folded_kernel(tile):
    x, (codes, scale) = linear.rows(6, 300), linear.fp8(200, 300, tile, whole=False)
    placed = place_fp8(codes, scale, tile)
    one, other = fp8_linear(x, *placed, 200, True), fp8_folded(x, *placed, 200, True)
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-5 * float(one.abs().max()))
    assert one.abs().max() > 0


def test_every_code_at_every_scale_it_may_have():
    codes = torch.arange(256, dtype=torch.uint8)
    codes[codes & 0x7F > 0x77] = 0
    x = torch.eye(128).bfloat16()
    for byte in (10, 127, 246):  # code times scale stays a normal number
        scale = torch.full((1, 1), byte).byte()
        placed = place_fp8(codes.view(2, 128), scale, 128)
        expected = linear.fp8_values(codes.view(2, 128), scale, 128).T
        y = fp8_linear(x, *placed, 2, True)
        assert np.array_equal(y.numpy(), expected) and y.max() == 240 * 2.0 ** (byte - 127)


def test_a_weight_that_bf16_cannot_hold_is_infinite():
    x, scale = torch.tensor([[2.0**-100]]).bfloat16(), torch.tensor([[254]]).byte()
    placed = place_fp8(torch.tensor([[0x40]]).byte(), scale)  # 2 · 2^127
    assert fp8_linear(x, *placed, 1, True).item() == math.inf
    assert fp8_folded(x, *placed, 1, True).item() == 2.0**28, "folding has room where x is small"
