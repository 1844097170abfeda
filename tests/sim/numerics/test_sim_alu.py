"""ALU operators: Python's own arithmetic on numbers and integers, special values, the table."""

import math
import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.sim.numerics import alu
from dslearn.sim.numerics.alu import OPS

INT32 = st.integers(-(2**31), 2**31 - 1)
WORDS = {8: np.uint8, 16: np.uint16, 32: np.uint32}


def f32(*values):
    return np.array(values, dtype=np.float32)


def wrap(value, dtype):
    low = value & 0xFFFFFFFF
    return low - 2**32 if dtype == np.int32 and low >= 2**31 else low


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("add", [4, 0, -1.5]),
        ("subtract", [-2, 4, 1.5]),
        ("multiply", [3, -4, 0]),
        ("maximum", [3, 2, 0]),
        ("minimum", [1, -2, -1.5]),
        ("equal", [0, 0, 0]),
        ("not_equal", [1, 1, 1]),
        ("greater", [0, 1, 1]),
        ("greater_equal", [0, 1, 1]),
        ("less", [1, 0, 0]),
        ("less_equal", [1, 0, 0]),
        ("logical_and", [1, 1, 0]),
        ("logical_or", [1, 1, 1]),
        ("logical_xor", [0, 0, 1]),
        ("power", [1, 0.25, 0]),
        ("abs_max", [3, 2, 1.5]),
        ("abs_min", [1, 2, 0]),
    ],
)
def test_binary_arithmetic_by_hand(name, expected):
    b = f32(3, -2, 1.5) if name == "power" else f32(3, -2, -1.5)
    got = OPS[name](f32(1, 2, 0), b)
    assert got.dtype == np.float32
    assert got.tolist() == expected


def test_unary_arithmetic_by_hand():
    x = f32(4, -2, 0)
    assert OPS["abs"](x).tolist() == [4, 2, 0]
    assert OPS["logical_not"](x).tolist() == [0, 0, 1]
    assert OPS["reciprocal"](x).tolist() == [0.25, -0.5, math.inf]
    assert OPS["square"](x).tolist() == [16, 4, 0]
    assert OPS["relu"](x).tolist() == [4, 0, 0]
    got = OPS["rsqrt"](f32(4, 3, 0, -1))
    assert got[:3].tolist() == [0.5, np.float32(3**-0.5), math.inf]
    assert np.isnan(got[3])


def test_numbers_are_rounded_to_fp32_first():
    x = f32(0.1)
    assert OPS["equal"](x, 0.1).tolist() == [1.0]
    assert OPS["add"](x, 0.1).dtype == np.float32
    assert alu.swapped(OPS["subtract"].function)(x, 1).tolist() == [np.float32(1) - x[0]]


def test_nan_and_infinity(recwarn):
    nan, inf = np.nan, np.inf
    assert np.isnan(OPS["maximum"](f32(nan, 1), f32(1, nan))).all()
    assert np.isnan(OPS["minimum"](f32(nan, 1), f32(1, nan))).all()
    assert OPS["equal"](f32(nan), f32(nan)).tolist() == [0]
    assert OPS["not_equal"](f32(nan), f32(nan)).tolist() == [1]
    assert OPS["logical_and"](f32(nan), f32(1)).tolist() == [1]
    assert np.isnan(OPS["subtract"](f32(inf), f32(inf))).all()
    assert OPS["multiply"](f32(3e38), f32(10)).tolist() == [inf]
    assert OPS["reciprocal"](f32(-0.0)).tolist() == [-inf]
    assert not recwarn.list


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([8, 16, 32]), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_bitvec_equals_python_integers(width, a, b):
    mask = (1 << width) - 1
    a, b = a & mask, b & mask
    x, y = WORDS[width]([a]), WORDS[width]([b])
    shift = b % (2 * width)
    for name, expected, operand in (
        ("bitwise_and", a & b, y),
        ("bitwise_or", a | b, y),
        ("bitwise_xor", a ^ b, y),
        ("left_shift", (a << shift) & mask, WORDS[width](shift)),
        ("right_shift", a >> shift, WORDS[width](shift)),
    ):
        got = OPS[name](x, operand)
        assert got.dtype == x.dtype
        assert got.tolist() == [expected], name
    assert OPS["invert"](x).tolist() == [a ^ mask]


def test_shifts_of_signed_data_are_logical_and_go_to_zero():
    data = np.array([-1, -(2**31), 5], dtype=np.int32)
    bits = alu.as_bits(data)
    assert np.shares_memory(bits, data)
    four, beyond = (alu.scalar_bits(n, data.dtype) for n in (4, 32))
    assert OPS["right_shift"](bits, four).tolist() == [0x0FFFFFFF, 0x08000000, 0]
    assert OPS["right_shift"](bits, beyond).tolist() == [0, 0, 0]
    assert OPS["left_shift"](bits, beyond).tolist() == [0, 0, 0]
    assert OPS["left_shift"](bits, alu.scalar_bits(-1, data.dtype)).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("value", "dtype", "bits"),
    [(-1, np.int8, 0xFF), (0x1F0, np.uint8, 0xF0), (-2, np.int32, 0xFFFFFFFE), (7, np.int16, 7)],
)
def test_scalar_operands_keep_their_low_bits(value, dtype, bits):
    got = alu.scalar_bits(value, np.dtype(dtype))
    assert (got, got.dtype.kind, got.dtype.itemsize) == (bits, "u", np.dtype(dtype).itemsize)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(INT32, INT32), min_size=1, max_size=8), st.sampled_from("iu"))
def test_exact_integers_equal_python_modulo_two_to_the_32(pairs, kind):
    dtype = np.dtype(f"{kind}4")
    a, b = (np.array(side, dtype=np.int32).astype(dtype) for side in zip(*pairs, strict=True))
    python = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul}
    python |= {"maximum": max, "minimum": min, "less": operator.lt, "equal": operator.eq}
    for name, function in python.items():
        got = alu.exact_int(name, a, b, dtype)
        rows = zip(a.tolist(), b.tolist(), strict=True)
        assert got.tolist() == [wrap(int(function(x, y)), dtype) for x, y in rows], name
        assert got.dtype == dtype


def test_exact_integers_mix_signs_and_numbers(recwarn):
    a, b = np.array([-1], dtype=np.int32), np.array([2**32 - 1], dtype=np.uint32)
    assert alu.exact_int("less", a, b, np.dtype(np.int32)).tolist() == [1]
    assert alu.exact_int("add", b, 2, np.dtype(np.uint32)).tolist() == [1]
    assert alu.exact_int("multiply", b, b, np.dtype(np.uint32)).tolist() == [1]
    exact = alu.exact_int("add", np.array([2**24], dtype=np.int32), 1, np.dtype(np.int32))
    assert exact.tolist() == [2**24 + 1]
    assert "power" not in alu.EXACT_INT
    assert not recwarn.list


def test_the_table_says_what_the_documentation_says():
    names = lambda test: {n for n, op in OPS.items() if test(op)}  # noqa: E731
    bitvec = {"invert", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"}
    assert names(lambda op: op.kind == "bitvec") == bitvec
    assert names(lambda op: "gpsimd" in op.engines) == {"add", "multiply", "rsqrt", "power"}
    scalar = {"add", "multiply", "rsqrt", "reciprocal", "abs"}
    assert names(lambda op: "scalar" in op.engines) == scalar
    assert names(lambda op: "vector" not in op.engines) == {"rsqrt", "power"}
    assert names(lambda op: op.trn3_only) == {"abs_max", "abs_min", "square", "relu"}
    assert names(lambda op: op.reduces is not None) == {
        *("bitwise_and", "bitwise_or", "bitwise_xor", "add", "subtract", "multiply"),
        *("maximum", "minimum", "logical_and", "logical_or", "logical_xor"),
    }
    unary = {"abs", "reciprocal", "rsqrt", "square", "relu", "logical_not", "invert"}
    assert names(lambda op: op.arity == 1) == unary
    assert not {"divide", "mod", "fmod"} & set(OPS)
