"""fp4_linear against ml_dtypes and its twin: exact sums, all codes, bounds, specials, two cores."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.formats.place_fp4 import place_fp4
from dslearn.kernels.fp4_linear import fp4_linear
from dslearn.ops.fp4_linear import reference
from tests.support import linear


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
