"""Casts: ml_dtypes, torch and gfloat as other implementations; ties, overflow, NaN, saturation."""

import ml_dtypes
import numpy as np
import pytest
import torch
from gfloat import RoundMode, round_float
from gfloat.formats import format_info_ocp_e4m3, format_info_ocp_e5m2
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.sim.numerics import casts

E4M3 = np.dtype(ml_dtypes.float8_e4m3)
E4M3FN = np.dtype(ml_dtypes.float8_e4m3fn)
E5M2 = np.dtype(ml_dtypes.float8_e5m2)
E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
BF16 = np.dtype(ml_dtypes.bfloat16)
FLOAT8 = (E4M3, E4M3FN, E5M2, E8M0)
FP32 = np.dtype(np.float32)
ANY_FP32 = st.floats(width=32, allow_nan=True, allow_infinity=True)


def f32(*values):
    return np.array(values, dtype=np.float32)


def same_bits(a, b):
    """Equal to the bit, but for the payload of NaN in fp32."""
    if a.dtype == FP32:
        nan = np.isnan(a)
        return np.array_equal(nan, np.isnan(b)) and np.array_equal(
            a[~nan].view(np.uint32), b[~nan].view(np.uint32)
        )
    return np.array_equal(a.view(f"u{a.dtype.itemsize}"), b.view(f"u{b.dtype.itemsize}"))


def critical_patterns():
    """Every upper half of an fp32 pattern with the lower halves at which a rounding can turn."""
    upper = np.arange(65536, dtype=np.uint32) << 16
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=np.uint32)
    return (upper[:, None] | lower).ravel().view(np.float32)


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
@pytest.mark.parametrize("count", [1, 255, 256, 4096, 4097, 6000])
def test_widening_float8_equals_ml_dtypes_by_both_tables(dtype, count):
    codes = np.resize(np.arange(256, dtype=np.uint8), count).view(dtype)
    assert same_bits(casts.widen(codes), codes.astype(np.float32))


@pytest.mark.parametrize("dtype", (*FLOAT8, BF16, np.dtype(np.float16)), ids=str)
def test_widening_views_that_are_not_contiguous(dtype):
    bits = np.random.default_rng(0).integers(0, 256, (64, 130 * dtype.itemsize)).astype(np.uint8)
    a = bits.view(dtype).reshape(64, 10, 13)[::2, ::-1, 1:]
    got = casts.widen(a)
    assert got.shape == a.shape
    assert same_bits(got, a.astype(np.float32))
    column = np.broadcast_to(a[:, :1, :1], (32, 100, 1))
    assert same_bits(casts.widen(column), column.astype(np.float32))


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_narrowing_to_float8_equals_ml_dtypes_at_every_turning_point(dtype):
    x = critical_patterns()
    with np.errstate(all="ignore"):
        assert same_bits(casts.narrow(x, dtype), x.astype(dtype))


def test_narrowing_to_bfloat16_equals_torch():
    x = critical_patterns()
    x = x[~np.isnan(x)]
    got = casts.narrow(x, BF16).view(np.int16)
    assert np.array_equal(got, torch.from_numpy(x).bfloat16().view(torch.int16).numpy())
    assert np.isnan(casts.widen(casts.narrow(f32(np.nan, -np.nan), BF16))).all()


@settings(max_examples=200, deadline=None)
@given(st.lists(ANY_FP32 | st.floats(-500, 500, width=32), min_size=1, max_size=40))
def test_narrowing_to_float8_equals_a_third_implementation(numbers):
    x = f32(*numbers)
    for dtype, info in ((E4M3FN, format_info_ocp_e4m3), (E5M2, format_info_ocp_e5m2)):
        expected = f32(*(round_float(info, float(v), RoundMode.TiesToEven) for v in x))
        assert same_bits(casts.widen(casts.narrow(x, dtype)), expected)


@pytest.mark.parametrize(
    ("dtype", "value", "result"),
    [
        (E4M3, 247.9, 240.0),
        (E4M3, 248.0, np.inf),
        (E4M3, -1e9, -np.inf),
        (E4M3FN, 464.0, 448.0),
        (E4M3FN, 465.0, np.nan),
        (E4M3FN, np.inf, np.nan),
        (E5M2, 61439.0, 57344.0),
        (E5M2, 61440.0, np.inf),
        (E4M3, 2.0**-10, 0.0),
        (E4M3, 2.0**-10 * 1.001, 2.0**-9),
        (E4M3, -0.0, -0.0),
        (BF16, 3.4028235e38, np.inf),
        (np.dtype(np.float16), 65519.0, 65504.0),
        (np.dtype(np.float16), 65520.0, np.inf),
    ],
    ids=str,
)
def test_overflow_and_the_smallest_numbers(dtype, value, result):
    assert same_bits(casts.widen(casts.narrow(f32(value), dtype)), f32(result))


@pytest.mark.parametrize(
    ("dtype", "values", "results"),
    [
        (np.uint8, (-1, -0.5, 0.5, 1.5, 2.5, 255.5, 1e9), (0, 0, 0, 2, 2, 255, 255)),
        (np.int8, (-128.5, -129, 127.5, -2.5), (-128, -128, 127, -2)),
        (np.int16, (-4e4, 32767.5, 3.5), (-32768, 32767, 4)),
        (np.uint16, (65535, 65536, -1), (65535, 65535, 0)),
        (np.int32, (2.0**31, -3e9, 2147483520.0), (2**31 - 1, -(2**31), 2147483520)),
        (np.uint32, (2.0**32, 4294967040.0, -5), (2**32 - 1, 4294967040, 0)),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)  # fmt: skip
def test_integers_round_to_even_and_saturate(dtype, values, results):
    got = casts.narrow(f32(*values, np.nan, np.inf, -np.inf), np.dtype(dtype))
    limits = np.iinfo(dtype)
    assert got.dtype == dtype
    assert got.tolist() == [*results, 0, limits.max, limits.min]


@settings(max_examples=200, deadline=None)
@given(st.lists(ANY_FP32, min_size=1, max_size=30))
def test_tf32_is_rounding_the_fraction_to_eleven_bits(numbers):
    x = f32(*numbers)
    fraction, exponent = np.frexp(x.astype(np.float64))
    normal = np.abs(x) >= 2.0**-126
    with np.errstate(all="ignore"):
        expected = np.ldexp(np.rint(fraction * 2**11) / 2**11, exponent).astype(np.float32)
    got = casts.narrow(x, FP32, tf32=True)
    assert same_bits(got[normal | ~np.isfinite(x)], expected[normal | ~np.isfinite(x)])
    assert same_bits(casts.round_tf32(got), got)


def test_tf32_examples():
    got = casts.round_tf32(f32(1 + 2**-11, 1 + 3 * 2**-11, 3.4028235e38, -np.inf, np.nan, -0.0))
    assert same_bits(got, f32(1, 1 + 2**-9, np.inf, -np.inf, np.nan, -0.0))
    pattern = np.array([0x7FFFFFFF], dtype=np.uint32)
    assert casts.round_tf32(pattern.view(np.float32)).view(np.uint32)[0] == 0x7FFFFFFF


def test_converting_to_the_same_dtype_copies_bits():
    ints = np.array([2**24 + 1, -(2**31)], dtype=np.int32)
    nans = np.array([0x7FC00001, 0xFFC12345], dtype=np.uint32).view(np.float32)
    for a in (ints, nans, np.arange(256, dtype=np.uint8).view(E4M3)):
        got = casts.convert(a, a.dtype)
        assert np.array_equal(got.view(np.uint8), a.view(np.uint8))
        assert not np.shares_memory(got, a)


def test_converting_goes_through_fp32():
    ints = np.array([2**24 + 1, 300, -1], dtype=np.int32)
    assert casts.convert(ints, FP32).tolist() == [2**24, 300, -1]
    assert casts.convert(ints, np.dtype(np.uint32)).tolist() == [2**24, 300, 0]
    assert casts.convert(ints, np.dtype(np.uint8)).tolist() == [255, 255, 0]
    assert casts.convert(f32(1 + 2**-11), FP32, tf32=True).tolist() == [1.0]
    assert casts.convert(f32(), E4M3).shape == (0,)
    big = casts.convert(np.array([448.0]).astype(E4M3FN), E4M3)
    assert np.isposinf(casts.widen(big)).all()
