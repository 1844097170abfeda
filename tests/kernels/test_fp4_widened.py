"""fp4_widened against ml_dtypes and its twin: exact sums, bounds, prompts, specials, two cores."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.formats.place_fp4 import place_widened
from dslearn.kernels.fp4_widened import fp4_widened
from dslearn.ops.fp4_widened import reference
from dslearn.sim.rules import KernelError
from tests.support import linear
from tests.support.kernels import bits, dma_bytes, recorded

SIZES = [(1, 32, 1), (2, 320, 130), (130, 64, 257), (64, 160, 700), (512, 96, 60), (600, 64, 129)]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sums_of_whole_numbers_are_the_exact_ones(size):
    m, k, n = size
    x, (packed, scale) = linear.whole_rows(m, k), linear.fp4(n, k, 3)
    y = fp4_widened(x, *place_widened(packed, scale), n, True)
    exact = linear.product(x, linear.fp4_values(packed, scale))
    assert y.dtype == torch.float32 and np.array_equal(y.numpy(), exact)


def test_the_widest_weight_with_more_rows_than_fit():
    x, (packed, scale) = linear.whole_rows(130, 20480), linear.fp4(40, 20480, 2)
    y = fp4_widened(x, *place_widened(packed, scale), 40, True)
    assert np.array_equal(y.numpy(), linear.product(x, linear.fp4_values(packed, scale)))


@settings(max_examples=20, deadline=None)
@given(
    m=st.integers(1, 200), k=st.integers(1, 12), n=st.integers(1, 300), span=st.integers(0, 13)
)  # fmt: skip
def test_any_size_and_spread_within_the_bound_of_its_sum(m, k, n, span):
    x, (packed, scale) = linear.rows(m, 32 * k), linear.fp4(n, 32 * k, span)
    placed = place_widened(packed, scale)
    linear.check_close(fp4_widened(x, *placed, n, True), x, linear.fp4_values(packed, scale))
    linear.check_close(reference(x, *placed, n, True), x, linear.fp4_values(packed, scale))


@pytest.mark.parametrize("outputs", [1, 128, 129, 300, 3000])
def test_two_cores_give_the_bytes_of_one(outputs):
    x, placed = linear.rows(20, 160), place_widened(*linear.fp4(outputs, 160, 9))
    one, two = fp4_widened[1](x, *placed, outputs), fp4_widened[2](x, *placed, outputs)
    assert torch.equal(bits(one), bits(two)) and one.float().abs().max() > 0


def test_the_result_is_rounded_once():
    x, placed = linear.rows(5, 192), place_widened(*linear.fp4(140, 192, 9))
    wide, y = fp4_widened(x, *placed, 140, True), fp4_widened(x, *placed, 140)
    assert torch.equal(bits(y), bits(wide.bfloat16())) and not torch.equal(y.float(), wide)


@pytest.mark.parametrize(("low", "high"), [(1, 14), (241, 254)])
def test_scales_at_the_ends_of_their_range(low, high):
    packed, scale = torch.full((2, 32), 0x21).byte(), torch.tensor([[low, high]] * 2).byte()
    x = torch.zeros(2, 64)
    x[0, 0], x[1, 33] = 2.0 ** (120 - low // 2), 2.0 ** (60 - high // 2)
    y = fp4_widened(x.bfloat16(), *place_widened(packed, scale), 2, True)
    exact = linear.product(x.bfloat16(), linear.fp4_values(packed, scale))
    assert np.array_equal(y.numpy(), exact) and (exact > 0).all()


def test_special_values_stay_in_their_row():
    x = linear.rows(5, 64)
    x[0], x[1], x[2, 3], x[3, 40] = 0.0, -0.0, math.inf, math.nan
    placed = place_widened(*linear.fp4(40, 64, 9))
    y, expected = fp4_widened(x, *placed, 40, True), reference(x, *placed, 40, True)
    assert (y[:2] == 0).all() and y[3].isnan().all() and y[4].isfinite().all()
    torch.testing.assert_close(y[2], expected[2], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("cores", [1, 2])
def test_weights_move_once_and_meet_no_engine_but_the_tensor_engine(cores):
    x, (weight, power) = linear.rows(3, 224), place_widened(*linear.fp4(600, 224, 9))
    launched = recorded(lambda: fp4_widened[cores](x, weight, power, 600))
    moved = [dma_bytes(core) for core in launched]
    assert sum(read for read, _ in moved) == weight.numel() + power.numel() + cores * 3 * 224 * 2
    assert sum(wrote for _, wrote in moved) == 3 * 600 * 2
    readers = {
        one.name for core in launched for one in core for i in one.inputs
        if i.dtype == "float8_e4m3"
    }  # fmt: skip
    assert readers == {"nc_matmul"}


def test_more_outputs_than_were_placed_are_refused():
    x, placed = linear.rows(2, 64), place_widened(*linear.fp4(100, 64, 3))
    with pytest.raises(AssertionError, match="outputs"):
        fp4_widened(x, *placed, 257)
    assert fp4_widened(x, *placed, 100).isfinite().all()


def test_more_inputs_than_were_placed_are_refused():
    placed = place_widened(*linear.fp4(100, 64, 3))
    inputs = 128 * placed[0].shape[2] * 1
    with pytest.raises(KernelError, match="rule"):
        fp4_widened(linear.rows(2, inputs + 1), *placed, 100)
    assert fp4_widened(linear.rows(2, 64), *placed, 100).isfinite().all()
