"""Index patterns: the documented loops, 32-bit wraparound, causal masks, fp32 positions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.sim.numerics import casts, patterns
from dslearn.sim.numerics.alu import OPS

PAIRS = st.lists(st.tuples(st.integers(-99, 99), st.integers(1, 4)), min_size=1, max_size=4)


@settings(max_examples=100, deadline=None)
@given(PAIRS, st.integers(1, 5), st.integers(-99, 99), st.integers(-99, 99))
def test_iota_is_the_documented_loop(pairs, partitions, offset, multiplier):
    padded = [(0, 1)] * (4 - len(pairs)) + pairs
    (sw, nw), (sz, nz), (sy, ny), (sx, nx) = padded
    expected = [
        [
            offset + p * multiplier + w * sw + z * sz + y * sy + x * sx
            for w in range(nw)
            for z in range(nz)
            for y in range(ny)
            for x in range(nx)
        ]
        for p in range(partitions)
    ]
    got = patterns.iota([list(pair) for pair in pairs], partitions, offset, multiplier)
    assert got.tolist() == expected
    assert got.dtype == np.int32


def test_iota_wraps_at_32_bits_and_can_be_cast():
    got = patterns.iota([[1, 3]], 2, offset=2**31 - 2, channel_multiplier=2)
    assert got.tolist() == [[2**31 - 2, 2**31 - 1, -(2**31)], [-(2**31), 1 - 2**31, 2 - 2**31]]
    as_bytes = casts.convert(patterns.iota([[100, 4]], 1), np.dtype(np.uint8))
    assert as_bytes.tolist() == [[0, 100, 200, 255]]


def test_a_causal_mask():
    values = patterns.iota([[-1, 4]], 3, channel_multiplier=1)  # query - key
    got = patterns.affine_predicate(values, OPS["greater_equal"])
    assert got.dtype == bool
    assert got.tolist() == np.tri(3, 4, dtype=bool).tolist()
    diagonal = patterns.affine_predicate(values, OPS["equal"])
    assert diagonal.tolist() == np.eye(3, 4, dtype=bool).tolist()


def test_affine_values_are_compared_as_integers():
    values = patterns.iota([[1, 2]], 1, offset=-(2**31))
    assert patterns.affine_predicate(values, OPS["less"]).all()
    big = patterns.iota([[1, 1]], 1, offset=2**24 + 1)
    assert patterns.affine_predicate(big - 2**24 - 1, OPS["equal"]).all()


@pytest.mark.parametrize("start", [0, 5, -3])
def test_a_range_between_two_bounds_per_partition(start):
    low = np.array([[2], [0], [9]], dtype=np.float32)
    high = np.array([[5], [1.5], [9]], dtype=np.float32)
    got = patterns.range_predicate(8, start, (OPS["greater_equal"], low), (OPS["less"], high))
    expected = [[low[p, 0] <= start + i < high[p, 0] for i in range(8)] for p in range(3)]
    assert got.tolist() == expected
    assert got.dtype == bool


def test_range_positions_are_fp32():
    bound = np.array([[2.0**24]], dtype=np.float32)
    equal = (OPS["equal"], bound)
    assert patterns.range_predicate(3, 2**24 - 1, equal, equal).tolist() == [[False, True, True]]


def test_the_fill_value_becomes_minus_infinity_below_fp32():
    fill = np.array([patterns.FP32_MIN], dtype=np.float32)
    assert fill[0] == np.float32(-3.4028235e38)
    for name in ("bfloat16", "float8_e4m3", "float8_e5m2"):
        narrowed = casts.narrow(fill, np.dtype(getattr(casts.ml_dtypes, name)))
        assert np.isneginf(casts.widen(narrowed)).all()
    assert (fill - fill == 0).all()
