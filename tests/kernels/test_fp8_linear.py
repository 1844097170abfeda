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
from dslearn.ops.fp8_linear import reference
from dslearn.sim.rules import KernelError
from tests.support import linear
from tests.support.kernels import bits, dma_bytes, recorded

SIZES = [(1, 1, 1), (2, 300, 130), (130, 33, 257), (64, 129, 700), (512, 100, 60), (600, 64, 129)]
each_tile = pytest.mark.parametrize("tile", [32, 128])


@pytest.mark.parametrize("size", SIZES, ids=str)
@each_tile
def test_sums_of_whole_numbers_are_the_exact_ones(size, tile):
    m, k, n = size
    x, (codes, scale) = linear.whole_rows(m, k), linear.fp8(n, k, tile, whole=True)
    y = fp8_linear(x, *place_fp8(codes, scale, tile), n, True)
    exact = linear.product(x, linear.fp8_values(codes, scale, tile))
    assert y.dtype == torch.float32 and np.array_equal(y.numpy(), exact)


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


@pytest.mark.parametrize("outputs", [1, 128, 129, 300, 3000])
def test_two_cores_give_the_bytes_of_one(outputs):
    x, (codes, scale) = linear.rows(20, 160), linear.fp8(outputs, 160, 32, whole=False)
    placed = place_fp8(codes, scale)
    one, two = fp8_linear[1](x, *placed, outputs), fp8_linear[2](x, *placed, outputs)
    assert torch.equal(bits(one), bits(two)) and one.float().abs().max() > 0


def test_the_result_is_rounded_once():
    x, (codes, scale) = linear.rows(5, 200), linear.fp8(140, 200, 32, whole=False)
    placed = place_fp8(codes, scale)
    wide, y = fp8_linear(x, *placed, 140, True), fp8_linear(x, *placed, 140)
    assert torch.equal(bits(y), bits(wide.bfloat16())) and not torch.equal(y.float(), wide)


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


def test_special_values_stay_in_their_row():
    x = linear.rows(5, 64)
    x[0], x[1], x[2, 3], x[3, 40] = 0.0, -0.0, math.inf, math.nan
    placed = place_fp8(*linear.fp8(40, 64, 32, whole=False))
    y, expected = fp8_linear(x, *placed, 40, True), reference(x, *placed, 40, True)
    assert (y[:2] == 0).all() and y[3].isnan().all() and y[4].isfinite().all()
    torch.testing.assert_close(y[2], expected[2], rtol=0, atol=0, equal_nan=True)


def test_a_weight_that_bf16_cannot_hold_is_infinite():
    x, scale = torch.tensor([[2.0**-100]]).bfloat16(), torch.tensor([[254]]).byte()
    placed = place_fp8(torch.tensor([[0x40]]).byte(), scale)  # 2 · 2^127
    assert fp8_linear(x, *placed, 1, True).item() == math.inf
    assert fp8_folded(x, *placed, 1, True).item() == 2.0**28, "folding has room where x is small"


@pytest.mark.parametrize("cores", [1, 2])
def test_each_byte_moves_once(cores):
    x, (codes, scale) = linear.rows(300, 200), linear.fp8(600, 200, 32, whole=False)
    weight, power = place_fp8(codes, scale)
    moved = [dma_bytes(core) for core in recorded(lambda: fp8_linear[cores](x, weight, power, 600))]
    assert sum(read for read, _ in moved) == weight.numel() + power.numel() + cores * x.numel() * 2
    assert sum(wrote for _, wrote in moved) == 300 * 600 * 2


def test_more_outputs_than_were_placed_are_refused():
    x, placed = linear.rows(2, 64), place_fp8(*linear.fp8(100, 64, 32, whole=False))
    with pytest.raises(AssertionError, match="outputs"):
        fp8_linear(x, *placed, 257)
    assert fp8_linear(x, *placed, 100).isfinite().all()


def test_more_inputs_than_were_placed_are_refused():
    placed = place_fp8(*linear.fp8(100, 64, 32, whole=False))
    inputs = 128 * placed[0].shape[2] * 1
    with pytest.raises(KernelError, match="rule"):
        fp8_linear(linear.rows(2, inputs + 1), *placed, 100)
    assert fp8_linear(linear.rows(2, 64), *placed, 100).isfinite().all()
