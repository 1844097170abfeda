"""tensor_tensor and reciprocal: one rounding, exact integers, engines, refusals."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.sim.isa.elementwise import reciprocal, tensor_tensor
from dslearn.sim.isa.enums import engine
from tests.support.isa import empty, grid, last, nl
from tests.support.sim import HBM, PSUM, expect_refusal, filled, values

BF16 = ml_dtypes.bfloat16
BIG = 2**24 + 1  # the first integer that is no fp32 number


def _ints(number: int, kind: str = "int32", region: Any = None) -> Any:
    array = np.full((3, 5), number, np.int64).astype(kind)
    return filled(array) if region is None else filled(array, region)


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float8_e4m3", "float32"])
def test_fp32_inside_and_one_rounding(kind: str) -> None:
    a, b = filled(grid(7, 33), kind=kind), filled(grid(7, 33, 1), kind="bfloat16")
    dst = empty((7, 33), kind)
    tensor_tensor(dst=dst, data1=a, data2=b, op=nl.multiply)
    exact = values(a).astype(np.float64) * values(b).astype(np.float64)  # exact in float64
    expected = exact.astype(np.float32).astype(values(dst).dtype)
    assert values(dst).tobytes() == expected.tobytes()
    assert (last().engine, last().details) == ("vector", {"op": "multiply"})


def test_shapes_may_differ_in_rank_and_views_may_broadcast() -> None:
    data = grid(5, 12)
    row = filled(grid(5, 4, 1))
    dst = empty((5, 3, 4))
    tensor_tensor(dst, filled(data), row.reshape((5, 1, 4)).broadcast(1, 3), nl.subtract)
    expected = data.reshape(5, 3, 4) - values(row)[:, None, :]
    assert np.array_equal(values(dst), expected)


def test_in_place_and_overlapping_views() -> None:
    data = grid(4, 8)
    t = filled(data)
    tensor_tensor(t[:, 1:8], t[:, 0:7], t[:, 1:8], nl.add)
    expected = data.copy()
    expected[:, 1:] = data[:, :7] + data[:, 1:]
    assert np.array_equal(values(t), expected)


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1))
@settings(deadline=None)
def test_int32_is_exact_and_wraps_on_gpsimd(a: int, b: int) -> None:
    dst = empty((3, 5), "int32")
    for op, result in ((nl.add, a + b), (nl.subtract, a - b), (nl.multiply, a * b)):
        tensor_tensor(dst, _ints(a), _ints(b), op)
        assert last().engine == "gpsimd"
        assert values(dst)[0, 0] == (result + 2**31) % 2**32 - 2**31


def test_int32_through_vector_or_psum_loses_bits() -> None:
    dst = empty((3, 5), "int32")
    tensor_tensor(dst, _ints(BIG), _ints(0), nl.add)
    assert values(dst)[0, 0] == BIG
    tensor_tensor(dst, _ints(BIG), _ints(0), nl.add, engine=engine.vector)
    assert (values(dst)[0, 0], last().engine) == (BIG - 1, "vector")
    tensor_tensor(dst, _ints(BIG, region=PSUM), _ints(0), nl.add)
    assert (values(dst)[0, 0], last().engine) == (BIG - 1, "vector")
    with expect_refusal("engine", "gpsimd"):
        tensor_tensor(dst, _ints(BIG, region=PSUM), _ints(0), nl.add, engine=engine.gpsimd)


def test_int32_to_float_rounds_and_back_saturates() -> None:
    dst = empty((3, 5), "float32")
    tensor_tensor(dst, _ints(BIG), _ints(0), nl.add)
    assert values(dst)[0, 0] == np.float32(BIG)
    narrow = empty((3, 5), "int8")
    tensor_tensor(narrow, filled(np.full((3, 5), 2.5, np.float32)), _ints(0), nl.add)
    assert values(narrow)[0, 0] == 2  # ties to even
    tensor_tensor(narrow, filled(np.full((3, 5), 1e9, np.float32)), _ints(0), nl.add)
    assert values(narrow)[0, 0] == 127


def test_uint32_compares_exactly() -> None:
    dst = empty((3, 5), "uint32")
    tensor_tensor(dst, _ints(2**32 - 1, "uint32"), _ints(2**32 - 2, "uint32"), nl.greater)
    assert values(dst).tolist() == np.ones((3, 5)).tolist()


@pytest.mark.parametrize("kind", ["int8", "uint16", "int32"])
def test_bit_operators_see_raw_bits(kind: str) -> None:
    rng = np.random.default_rng(3)
    info = np.iinfo(kind)
    a, b = (rng.integers(info.min, info.max, (4, 9), kind, endpoint=True) for _ in range(2))
    for op, function in (
        (nl.bitwise_and, np.bitwise_and),
        (nl.bitwise_or, np.bitwise_or),
        (nl.bitwise_xor, np.bitwise_xor),
    ):
        dst = empty((4, 9), kind)
        tensor_tensor(dst, filled(a), filled(b), op)
        assert np.array_equal(values(dst), function(a, b))
        assert last().engine == "vector"


def test_shift_right_is_logical_even_for_signed() -> None:
    dst = empty((3, 5), "int32")
    tensor_tensor(dst, _ints(-1), _ints(28), nl.right_shift)
    assert values(dst)[0, 0] == 15


def test_bit_operands_have_one_width_and_are_integers() -> None:
    wide, narrow = _ints(3, "uint32"), _ints(3, "uint8")
    with expect_refusal("dtype", "widths must agree"):
        tensor_tensor(empty((3, 5), "uint32"), wide, narrow, nl.bitwise_and)
    with expect_refusal("dtype", "bit operations take integers"):
        tensor_tensor(empty((3, 5)), wide, wide, nl.bitwise_and)
    signed = empty((3, 5), "int32")
    tensor_tensor(signed, wide, wide, nl.bitwise_and)
    assert values(signed)[0, 0] == 3


def test_two_inputs_in_psum() -> None:
    data = grid(3, 5)
    with expect_refusal("two-psum", "data1 and data2"):
        tensor_tensor(empty((3, 5)), filled(data, PSUM), filled(data, PSUM), nl.add)
    dst = empty((3, 5), region=PSUM)
    tensor_tensor(dst, filled(data, PSUM), filled(data), nl.add)
    assert np.array_equal(values(dst), data + data)


def test_power_runs_on_gpsimd_and_not_in_psum() -> None:
    base, exponent = filled(np.full((3, 5), 3, np.float32)), filled(np.full((3, 5), 2, np.float32))
    dst = empty((3, 5))
    tensor_tensor(dst, base, exponent, nl.power)
    assert (values(dst)[0, 0], last().engine) == (9, "gpsimd")
    with expect_refusal("region", "GpSimd"):
        tensor_tensor(empty((3, 5), region=PSUM), base, exponent, nl.power)
    with expect_refusal("engine", "vector"):
        tensor_tensor(dst, base, exponent, nl.power, engine=engine.vector)


def test_engines() -> None:
    data = filled(grid(3, 5))
    for name in ("vector", "gpsimd"):
        tensor_tensor(empty((3, 5)), data, data, nl.add, engine=engine[name])
        assert last().engine == name
    with expect_refusal("engine", "scalar"):
        tensor_tensor(empty((3, 5)), data, data, nl.add, engine=engine.scalar)
    with expect_refusal("engine", "gpsimd"):
        tensor_tensor(empty((3, 5)), data, data, nl.maximum, engine=engine.gpsimd)


def test_memory_shape_dtype_and_unwritten() -> None:
    data, dst = filled(grid(3, 5)), empty((3, 5))
    with expect_refusal("region", "must be in ['sbuf', 'psum']"):
        tensor_tensor(dst, filled(grid(3, 5), HBM), data, nl.add)
    with expect_refusal("shape", "nothing broadcasts"):
        tensor_tensor(dst, data, filled(grid(3, 1)), nl.add)
    with expect_refusal("dtype", "float8_e4m3fn"):
        tensor_tensor(dst, data, filled(grid(3, 5), kind="float8_e4m3fn"), nl.add)
    with expect_refusal("uninitialised", "tensor_tensor data2", "never written"):
        tensor_tensor(dst, data, empty((3, 5)), nl.add)
    tensor_tensor(dst, data, data, nl.add)
    assert np.array_equal(values(dst), 2 * values(data))


def test_overflow_to_fp8_is_explicit() -> None:
    dst = empty((1, 3), "float8_e4m3")
    data = filled(np.array([[247.9, 248.0, -1000.0]], np.float32))
    tensor_tensor(dst, data, filled(np.zeros((1, 3), np.float32)), nl.add)
    assert values(dst).astype(np.float32).tolist() == [[240.0, np.inf, -np.inf]]


def test_reciprocal() -> None:
    data = np.array([[2.0, -0.0, np.inf, 3.0]], np.float32)
    dst = empty((1, 4), "bfloat16")
    reciprocal(dst=dst, data=filled(data))
    assert values(dst).tolist() == np.array([[0.5, -np.inf, 0.0, 1 / 3]]).astype(BF16).tolist()
    assert last().engine == "vector"
    with expect_refusal("shape", "reciprocal data"):
        reciprocal(empty((1, 5)), filled(data))
