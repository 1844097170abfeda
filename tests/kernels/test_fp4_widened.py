"""fp4_widened against ml_dtypes and its twin: exact sums, bounds, prompts, specials, two cores."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.formats.place_fp4 import place_widened
from dslearn.kernels.fp4_widened import fp4_widened
from dslearn.ops.fp4_widened import reference
from tests.support import linear


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


@pytest.mark.parametrize(("low", "high"), [(1, 14), (241, 254)])
def test_scales_at_the_ends_of_their_range(low, high):
    packed, scale = torch.full((2, 32), 0x21).byte(), torch.tensor([[low, high]] * 2).byte()
    x = torch.zeros(2, 64)
    x[0, 0], x[1, 33] = 2.0 ** (120 - low // 2), 2.0 ** (60 - high // 2)
    y = fp4_widened(x.bfloat16(), *place_widened(packed, scale), 2, True)
    exact = linear.product(x.bfloat16(), linear.fp4_values(packed, scale))
    assert np.array_equal(y.numpy(), exact) and (exact > 0).all()
