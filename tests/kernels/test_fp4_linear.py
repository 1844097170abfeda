"""fp4_linear against ml_dtypes and its twin: exact sums, all codes, bounds, specials, two cores."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.formats.place_fp4 import place_fp4
from dslearn.kernels.fp4_linear import fp4_linear
from dslearn.ops.fp4_linear import reference
from dslearn.sim.rules import KernelError
from tests.support import linear
from tests.support.kernels import bits, dma_bytes, recorded

SIZES = [(1, 32, 1), (2, 544, 130), (130, 64, 257), (5, 4608, 70), (512, 96, 60), (600, 64, 129)]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sums_of_whole_numbers_are_the_exact_ones(size):
    m, k, n = size
    x, (packed, scale) = linear.whole_rows(m, k), linear.fp4(n, k, 3)
    y = fp4_linear(x, *place_fp4(packed, scale), n, True)
    exact = linear.product(x, linear.fp4_values(packed, scale))
    assert y.dtype == torch.float32 and np.array_equal(y.numpy(), exact)


def test_the_widest_weight_with_more_rows_than_fit():
    x, (packed, scale) = linear.whole_rows(130, 20480), linear.fp4(40, 20480, 2)
    y = fp4_linear(x, *place_fp4(packed, scale), 40, True)
    assert np.array_equal(y.numpy(), linear.product(x, linear.fp4_values(packed, scale)))


@settings(max_examples=20, deadline=None)
@given(
    m=st.integers(1, 200), k=st.integers(1, 20), n=st.integers(1, 300), span=st.integers(0, 18)
)  # fmt: skip
def test_any_size_and_spread_within_the_bound_of_its_sum(m, k, n, span):
    x, (packed, scale) = linear.rows(m, 32 * k), linear.fp4(n, 32 * k, span)
    placed = place_fp4(packed, scale)
    linear.check_close(fp4_linear(x, *placed, n, True), x, linear.fp4_values(packed, scale))
    linear.check_close(reference(x, *placed, n, True), x, linear.fp4_values(packed, scale))


@pytest.mark.parametrize("byte", [20, 127, 240])
def test_every_code_in_every_place_of_a_word(byte):
    k = 512
    codes = (np.arange(128)[:, None] + np.arange(k)) % 16
    packed = torch.from_numpy((codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8))
    scale = torch.full((128, k // 32), byte).byte()
    x = torch.eye(k)[:64].bfloat16()  # the first 64 inputs: 16 partitions, 4 bytes, both halves
    y = fp4_linear(x, *place_fp4(packed, scale), 128, True)
    assert np.array_equal(y.numpy(), linear.fp4_values(packed, scale)[:, :64].T)
    assert set(np.abs(y.numpy()[0]) / 2.0 ** (byte - 127)) == {0, 0.5, 1, 1.5, 2, 3, 4, 6}


@pytest.mark.parametrize("outputs", [1, 128, 129, 300, 1500])
def test_two_cores_give_the_bytes_of_one(outputs):
    x, placed = linear.rows(20, 160), place_fp4(*linear.fp4(outputs, 160, 15))
    one, two = fp4_linear[1](x, *placed, outputs), fp4_linear[2](x, *placed, outputs)
    assert torch.equal(bits(one), bits(two)) and one.float().abs().max() > 0


def test_the_result_is_rounded_once():
    x, placed = linear.rows(5, 192), place_fp4(*linear.fp4(140, 192, 9))
    wide, y = fp4_linear(x, *placed, 140, True), fp4_linear(x, *placed, 140)
    assert torch.equal(bits(y), bits(wide.bfloat16())) and not torch.equal(y.float(), wide)


def test_special_values_stay_in_their_row():
    x = linear.rows(5, 64)
    x[0], x[1], x[2, 3], x[3, 40] = 0.0, -0.0, math.inf, math.nan
    placed = place_fp4(*linear.fp4(40, 64, 9))
    y, expected = fp4_linear(x, *placed, 40, True), reference(x, *placed, 40, True)
    assert (y[:2] == 0).all() and y[3].isnan().all() and y[4].isfinite().all()
    torch.testing.assert_close(y[2], expected[2], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("cores", [1, 2])
def test_each_byte_moves_once(cores):
    x, (words, power) = linear.rows(3, 1024), place_fp4(*linear.fp4(600, 1024, 9))
    launched = recorded(lambda: fp4_linear[cores](x, words, power, 600))
    moved = [dma_bytes(core) for core in launched]
    identity = 128 * 128 * 2  # a constant that every core loads
    wanted = words.numel() + power.numel() + cores * (3 * 1024 * 2 + identity)
    assert sum(read for read, _ in moved) == wanted
    assert sum(wrote for _, wrote in moved) == 3 * 600 * 2


def test_more_outputs_than_were_placed_are_refused():
    x, placed = linear.rows(2, 64), place_fp4(*linear.fp4(100, 64, 3))
    with pytest.raises(AssertionError, match="outputs"):
        fp4_linear(x, *placed, 257)
    assert fp4_linear(x, *placed, 100).isfinite().all()


def test_more_inputs_than_were_placed_are_refused():
    placed = place_fp4(*linear.fp4(100, 64, 3))
    inputs = 128 * placed[0].shape[2] * 4
    with pytest.raises(KernelError, match="rule"):
        fp4_linear(linear.rows(2, inputs + 1), *placed, 100)
    assert fp4_linear(linear.rows(2, 64), *placed, 100).isfinite().all()
