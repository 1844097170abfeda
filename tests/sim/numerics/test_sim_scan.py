"""Reductions, scans and statistics: documented loops in fp32, exact integers, layouts."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dslearn.sim.numerics import scan
from dslearn.sim.numerics.alu import OPS, swapped


def rows(longest=40):
    shapes = st.tuples(st.integers(1, 4), st.integers(1, longest))
    return hnp.arrays(np.float32, shapes, elements=st.floats(-8, 8, width=32))


def f32(values):
    return np.array(values, dtype=np.float32)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("add", [9, -6]),
        ("subtract", [-5, 0]),
        ("multiply", [24, 0]),
        ("maximum", [4, 0]),
        ("minimum", [2, -3]),
        ("logical_and", [1, 0]),
        ("logical_or", [1, 1]),
        ("logical_xor", [1, 0]),
    ],
)
def test_reductions_by_hand(name, expected):
    x = f32([[2, 3, 4], [-3, -3, 0]])
    got = scan.reduce_free(name, x)
    assert got.dtype == np.float32
    assert got.tolist() == expected
    assert scan.reduce_free(name, x, negate=True).tolist() == [-v for v in expected]
    assert scan.reduce_partitions(name, x.T.copy()).tolist() == [expected]


def test_bitvec_reductions_keep_the_integers():
    x = np.array([[0b1100, 0b1010], [7, 0]], dtype=np.uint16)
    for name, expected in (
        ("bitwise_and", [8, 0]),
        ("bitwise_or", [14, 7]),
        ("bitwise_xor", [6, 7]),
    ):
        got = scan.reduce_free(name, x)
        assert (got.tolist(), got.dtype) == (expected, np.uint16)
    assert scan.reduce_partitions("bitwise_or", x).tolist() == [[15, 10]]


def test_average_over_partitions():
    x = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    got = scan.reduce_partitions("average", x)
    assert got.shape == (1, 2, 2)
    assert got.tolist() == [[[4, 5], [6, 7]]]
    assert got.dtype == np.float32


@settings(max_examples=50, deadline=None)
@given(rows(400))
def test_sums_are_close_to_exact_and_do_not_depend_on_layout(x):
    got = scan.reduce_free("add", x)
    for value, row in zip(got, x, strict=True):
        bound = 1e-6 * math.fsum(abs(row.astype(np.float64))) + 1e-40
        assert abs(float(value) - math.fsum(row.tolist())) <= bound
    strided = np.asfortranarray(x)
    spaced = np.repeat(x, 2, axis=1)[:, ::2]
    for other in (strided, spaced):
        assert np.array_equal(scan.reduce_free("add", other), got)


def test_several_axes_are_one_long_axis():
    x = np.random.default_rng(0).standard_normal((5, 3, 7, 11)).astype(np.float32)
    for axes in (1, 2, 3):
        kept = x.shape[: 4 - axes]
        flat = x.reshape(int(np.prod(kept)), -1)
        expected = scan.reduce_free("add", flat).reshape(kept)
        assert np.array_equal(scan.reduce_free("add", x, axes), expected)
        assert np.array_equal(scan.reduce_free("maximum", x, axes), flat.max(1).reshape(kept))


def test_an_operator_that_does_not_reduce_is_refused():
    with pytest.raises(AssertionError, match="power does not reduce"):
        scan.reduce_free("power", f32([[1]]))
    assert scan.reduce_free("add", f32([[1]])).tolist() == [1]


def test_nan_is_not_hidden_by_a_maximum():
    assert np.isnan(scan.reduce_free("maximum", f32([[1, np.nan, 3]]))).all()


@settings(max_examples=60, deadline=None)
@given(rows(), st.sampled_from(["multiply", "subtract", "maximum"]), st.booleans(), st.booleans())
def test_tensor_tensor_scan_is_the_documented_loop(x, name, reverse0, reverse1):
    data1 = x[:, ::-1].copy()
    initial = f32(np.arange(len(x)))[:, None]
    op0, op1 = OPS[name].function, OPS["subtract"].function
    got = scan.tensor_tensor_scan(
        x, data1, initial, swapped(op0) if reverse0 else op0, swapped(op1) if reverse1 else op1
    )
    state = initial[:, 0]
    for i in range(x.shape[1]):
        a, b = (state, x[:, i]) if reverse0 else (x[:, i], state)
        inner = OPS[name](a, b)
        state = data1[:, i] - inner if reverse1 else inner - data1[:, i]
        assert np.array_equal(got[:, i], state.astype(np.float32), equal_nan=True)
    assert got.dtype == np.float32


SCANS = [
    op.name
    for op in OPS.values()
    if op.kind == "arith" and op.arity == 2 and not op.trn3_only and "vector" in op.engines
]


@pytest.mark.parametrize("name", SCANS)
def test_scans_take_every_operator_of_the_vector_engine(name):
    op = OPS[name]
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3e38, 1.0]
    x = np.random.default_rng(0).choice(f32(special), (16, 33))
    for first, second in ((op.function, np.add), (np.multiply, op.function)):
        got = scan.tensor_tensor_scan(x, x[::-1], 0.5, first, second)
        state = np.full(16, 0.5, dtype=np.float32)
        with np.errstate(all="ignore"):
            for i in range(33):
                state = np.asarray(second(first(x[:, i], state), x[::-1, i]), dtype=np.float32)
                assert np.array_equal(got[:, i], state, equal_nan=True)
                assert np.array_equal(np.signbit(got[:, i]), np.signbit(state))


def test_a_scan_from_a_number_keeps_fp32_state():
    ones = np.ones((2, 3), dtype=np.float32)
    start = 2.0**24 - 1
    got = scan.tensor_tensor_scan(ones, ones, start, np.multiply, np.add)
    assert got.tolist() == [[2**24, 2**24, 2**24]] * 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("add", [1, 3, 0]),
        ("subtract", [1, 1, -4]),
        ("multiply", [1, 2, -6]),
        ("maximum", [1, 2, 2]),
        ("minimum", [1, 1, -3]),
    ],
)
def test_cumulative_by_hand(name, expected):
    got = scan.cumulative(f32([[1, 2, -3]]), name, scan.IDENTITY[name])
    assert got.tolist() == [expected]


@settings(max_examples=40, deadline=None)
@given(rows(), st.sampled_from(sorted(scan.IDENTITY)))
def test_cumulative_puts_the_value_on_the_left_and_can_be_continued(x, name):
    whole = scan.cumulative(x, name, scan.IDENTITY[name])
    register = np.full(len(x), scan.IDENTITY[name], dtype=np.float32)
    for i in range(x.shape[1]):
        register = OPS[name](x[:, i], register)
        assert np.array_equal(whole[:, i], register)
    half = x.shape[1] // 2
    if half:
        first = scan.cumulative(x[:, :half], name, scan.IDENTITY[name])
        second = scan.cumulative(x[:, half:], name, first[:, -1:])
        assert np.array_equal(np.hstack([first, second]), whole)


def test_identities_are_what_reducing_nothing_gives():
    empty = np.zeros((1, 0), dtype=np.float32)
    assert scan.reduce_free("add", empty).tolist() == [scan.IDENTITY["add"]]
    assert scan.reduce_free("multiply", empty).tolist() == [scan.IDENTITY["multiply"]]
    for name, value in scan.IDENTITY.items():
        assert OPS[name](f32([3.5]), np.float32(value)).tolist() == [3.5]


@settings(max_examples=60, deadline=None)
@given(rows())
def test_bn_stats_of_even_and_odd_elements(x):
    got = scan.bn_stats(x)
    assert got.shape == (len(x), 6)
    wide = x.astype(np.float64)
    for half in range(2):
        part = wide[:, half::2]
        count, mean, spread = got[:, 3 * half : 3 * half + 3].T
        assert (count == part.shape[1]).all()
        if part.shape[1]:
            np.testing.assert_allclose(mean, part.mean(1), rtol=1e-6, atol=1e-12)
            np.testing.assert_allclose(spread, part.var(1) * part.shape[1], rtol=1e-6, atol=1e-12)
        else:
            assert (mean == 0).all() and (spread == 0).all()


@settings(max_examples=60, deadline=None)
@given(rows(90), st.integers(1, 89))
def test_bn_aggr_gives_mean_and_variance_of_the_whole_row(x, cut):
    pieces = [p for p in (x[:, :cut], x[:, cut:]) if p.shape[1]]
    got = scan.bn_aggr(np.hstack([scan.bn_stats(p) for p in pieces]))
    wide = x.astype(np.float64)
    np.testing.assert_allclose(got[:, 0], wide.mean(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got[:, 1], wide.var(1), rtol=1e-5, atol=1e-5)
    assert got.dtype == np.float32


def test_bn_by_hand_and_with_a_large_mean():
    assert scan.bn_stats(f32([[1, 10, 3, 30]])).tolist() == [[2, 2, 2, 2, 20, 200]]
    got = scan.bn_aggr(scan.bn_stats(f32([[4096, 4097, 4098, 4099, 4100]])))
    assert got.tolist() == [[4098, 2]]
