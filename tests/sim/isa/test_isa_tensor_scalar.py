"""tensor_scalar and scalar_tensor_tensor: chains, operands, exact integers, engines."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.sim.isa.enums import engine
from dslearn.sim.isa.tensor_scalar import scalar_tensor_tensor, tensor_scalar
from tests.support.isa import empty, grid, last, nl
from tests.support.sim import HBM, PSUM, expect_refusal, filled, values

BF16 = ml_dtypes.bfloat16


def test_two_operators_round_once() -> None:
    data, column = grid(9, 17), grid(9, 1, 1)
    dst = empty((9, 17), "bfloat16")
    tensor_scalar(
        dst=dst, data=filled(data), op0=nl.multiply, operand0=filled(column), op1=nl.add,
        operand1=0.125,
    )  # fmt: skip
    expected = (data * column + np.float32(0.125)).astype(BF16)
    assert values(dst).tobytes() == expected.tobytes()
    twice = ((data * column).astype(BF16).astype(np.float32) + np.float32(0.125)).astype(BF16)
    assert expected.tobytes() != twice.tobytes(), "the data must tell one rounding from two"
    assert (last().engine, last().details["op"]) == ("vector", ("multiply", "add"))
    assert len(last().inputs) == 2


@pytest.mark.parametrize("reverse0", [False, True])
@pytest.mark.parametrize("reverse1", [False, True])
def test_reverse(reverse0: bool, reverse1: bool) -> None:
    data = grid(3, 4)
    dst = empty((3, 4))
    tensor_scalar(dst, filled(data), nl.subtract, 2.0, reverse0, nl.subtract, 5.0, reverse1)
    first = np.float32(2) - data if reverse0 else data - np.float32(2)
    expected = np.float32(5) - first if reverse1 else first - np.float32(5)
    assert np.array_equal(values(dst), expected)


def test_free_dimensions_in_any_rank() -> None:
    data = grid(3, 24).reshape(3, 2, 3, 4)
    column = grid(3, 1, 1)
    dst = empty((3, 24))
    tensor_scalar(dst, filled(data), nl.maximum, filled(column))
    assert np.array_equal(values(dst), np.maximum(data.reshape(3, 24), column))


def test_unary_operators_take_no_operand() -> None:
    data = filled(grid(3, 4))
    dst = empty((3, 4))
    for operand in (None, 0, 0.0):
        tensor_scalar(dst, data, nl.abs, operand)
        assert np.array_equal(values(dst), np.abs(values(data)))
    with expect_refusal("operand", "takes one input"):
        tensor_scalar(dst, data, nl.abs, 2.0)
    with expect_refusal("operand", "needs it"):
        tensor_scalar(dst, data, nl.add, None)
    with expect_refusal("arguments", "without op1", kind=TypeError):
        tensor_scalar(dst, data, nl.add, 1.0, operand1=2.0)


def test_operand_tiles_are_fp32_columns() -> None:
    data, dst = filled(grid(3, 4)), empty((3, 4))
    tensor_scalar(dst, data, nl.add, filled(grid(3, 1), PSUM))
    assert np.array_equal(values(dst), values(data) + grid(3, 1))
    for wrong in (filled(grid(3, 1), kind="bfloat16"), filled(grid(3, 2)), filled(grid(1, 1))):
        with expect_refusal("operand", "(3, 1) float32"):
            tensor_scalar(dst, data, nl.add, wrong)
    with expect_refusal("region", "operand0"):
        tensor_scalar(dst, data, nl.add, filled(grid(3, 1), HBM))
    with expect_refusal("arguments", "operand0='1'", kind=TypeError):
        tensor_scalar(dst, data, nl.add, "1")


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**20), 2**20), st.integers(-99, 99))
@settings(deadline=None)
def test_integer_address_arithmetic_is_exact(x: int, factor: int, term: int) -> None:
    data = filled(np.full((2, 3), x, np.int32))
    dst = empty((2, 3), "int32")
    tensor_scalar(dst, data, nl.multiply, factor, op1=nl.add, operand1=term)
    expected = (x * factor + term + 2**31) % 2**32 - 2**31
    assert values(dst).tolist() == [[expected] * 3] * 2


def test_integers_with_float_operands_or_other_operators_go_through_fp32() -> None:
    big = 2**24 + 1
    data = filled(np.full((2, 3), big, np.int32))
    dst = empty((2, 3), "int32")
    for op, operand, exact in ((nl.add, 0, True), (nl.add, 0.0, False), (nl.maximum, 0, False)):
        tensor_scalar(dst, data, op, operand)
        assert values(dst)[0, 0] == (big if exact else big - 1)


def test_bit_chain_unpacks_nibbles() -> None:
    packed = np.arange(256, dtype=np.uint8).reshape(2, 128)
    low, high = empty((2, 128), "uint8"), empty((2, 128), "uint8")
    tensor_scalar(low, filled(packed), nl.bitwise_and, 0xF)
    tensor_scalar(high, filled(packed), nl.right_shift, 4, op1=nl.bitwise_and, operand1=0xF)
    assert np.array_equal(values(low), packed % 16)
    assert np.array_equal(values(high), packed // 16)
    assert last().engine == "vector"


def test_shift_makes_a_power_of_two() -> None:
    exponents = np.array([[127, 128, 120]], np.int32)
    bits = empty((1, 3), "int32")
    tensor_scalar(bits, filled(exponents), nl.left_shift, 23)
    assert values(bits.view("float32")).tolist() == [[1.0, 2.0, 2.0**-7]]


def test_bit_operands() -> None:
    data, dst = filled(np.full((2, 3), 6, np.int32)), empty((2, 3), "int32")
    tensor_scalar(dst, data, nl.bitwise_xor, -1)
    assert values(dst)[0, 0] == ~6
    tensor_scalar(dst, data, nl.left_shift, filled(np.array([[1], [2]], np.int32)))
    assert values(dst)[:, 0].tolist() == [12, 24]
    tensor_scalar(dst, data, nl.invert, None)
    assert values(dst)[0, 0] == ~6
    with expect_refusal("operand", "an int"):
        tensor_scalar(dst, data, nl.bitwise_and, 1.0)
    with expect_refusal("operand", "does not fit"):
        byte = filled(np.ones((2, 3), np.uint8))
        tensor_scalar(empty((2, 3), "uint8"), byte, nl.bitwise_and, 256)
    with expect_refusal("dtype", "bit operations take integers"):
        tensor_scalar(dst, data, nl.bitwise_and, filled(np.ones((2, 1), np.float32)))
    with expect_refusal("dtype", "bit operations take integers"):
        tensor_scalar(empty((2, 3)), filled(np.ones((2, 3), np.float32)), nl.bitwise_and, 1)
    with expect_refusal("dtype", "widths must agree"):
        tensor_scalar(dst, filled(np.ones((2, 3), np.uint8)), nl.left_shift, 23)
    with expect_refusal("operand", "both bit operators or both arithmetic"):
        tensor_scalar(dst, data, nl.bitwise_and, 1, op1=nl.add, operand1=1)


@pytest.mark.parametrize(
    ("ops", "able"),
    [
        (("multiply", "add"), {"vector", "scalar"}),
        (("multiply",), {"vector", "scalar"}),
        (("add",), {"vector", "scalar"}),
        (("add", "multiply"), {"vector"}),
        (("subtract",), {"vector"}),
        (("rsqrt",), {"gpsimd"}),
        (("add", "rsqrt"), {"gpsimd"}),
        (("bitwise_and",), {"vector"}),
    ],
)
def test_engines(ops: tuple[str, ...], able: set[str]) -> None:
    integer = ops[0].startswith("bitwise")
    data = filled(np.ones((2, 3), np.int32 if integer else np.float32))
    arguments: dict[str, Any] = {}
    for i, name in enumerate(ops):
        arguments |= {f"op{i}": getattr(nl, name), f"operand{i}": None if name == "rsqrt" else 1}
    for name in ("vector", "scalar", "gpsimd"):
        dst = empty((2, 3), data.dtype)
        if name in able:
            tensor_scalar(dst=dst, data=data, engine=engine[name], **arguments)
            assert last().engine == name
        else:
            with expect_refusal("engine", f"on engine {name}"):
                tensor_scalar(dst=dst, data=data, engine=engine[name], **arguments)


def test_operators_without_an_engine() -> None:
    data = filled(np.full((2, 3), 4, np.float32))
    with expect_refusal("engine", "no engine"):
        tensor_scalar(empty((2, 3)), data, nl.power, 2.0)
    with expect_refusal("engine", "no engine"):
        tensor_scalar(empty((2, 3)), data, nl.maximum, 1.0, op1=nl.rsqrt)
    with expect_refusal("engine", "does not reach PSUM"):
        tensor_scalar(empty((2, 3), region=PSUM), data, nl.rsqrt, None)
    dst = empty((2, 3))
    tensor_scalar(dst, data, nl.add, 0.0, op1=nl.rsqrt)
    assert (values(dst)[0, 0], last().engine) == (0.5, "gpsimd")


def test_compare_gives_ones_and_zeros() -> None:
    data = filled(np.array([[1.0, 2.0, 3.0]], np.float32))
    dst = empty((1, 3), "uint8")
    tensor_scalar(dst, data, nl.greater_equal, 2.0)
    assert values(dst).tolist() == [[0, 1, 1]]


def test_scalar_tensor_tensor() -> None:
    data, other, column = grid(5, 7), grid(5, 7, 1), grid(5, 1, 2)
    dst = empty((5, 7), "float16")
    scalar_tensor_tensor(
        dst=dst, data=filled(data, PSUM), op0=nl.multiply, operand0=filled(column),
        op1=nl.add, operand1=filled(other),
    )  # fmt: skip
    assert values(dst).tobytes() == (data * column + other).astype(np.float16).tobytes()
    assert (last().engine, last().details["op"]) == ("vector", ("multiply", "add"))
    scalar_tensor_tensor(
        empty((5, 7)), filled(data), nl.subtract, 1.0, nl.subtract, filled(other), True, True
    )
    assert last().name == "scalar_tensor_tensor"


def test_scalar_tensor_tensor_reversed_and_low_precision_column() -> None:
    data, other = grid(5, 7), grid(5, 7, 1)
    column = filled(grid(5, 1, 2), kind="bfloat16")
    dst = empty((5, 7))
    scalar_tensor_tensor(
        dst, filled(data), nl.subtract, column, nl.subtract, filled(other), True, True
    )
    expected = other - (values(column).astype(np.float32) - data)
    assert np.array_equal(values(dst), expected)


def test_scalar_tensor_tensor_refusals() -> None:
    data, dst = filled(grid(3, 4)), empty((3, 4))
    with expect_refusal("two-psum", "data and operand1"):
        scalar_tensor_tensor(
            dst, filled(grid(3, 4), PSUM), nl.add, 1.0, nl.add, filled(grid(3, 4), PSUM)
        )
    with expect_refusal("operand", "arithmetic"):
        scalar_tensor_tensor(dst, data, nl.add, 1.0, nl.bitwise_and, data)
    with expect_refusal("operand", "arithmetic"):
        scalar_tensor_tensor(dst, data, nl.bitwise_and, 1, nl.add, data)
    with expect_refusal("engine", "Vector engine"):
        scalar_tensor_tensor(dst, data, nl.power, 1.0, nl.add, data)
    with expect_refusal("shape", "operand1"):
        scalar_tensor_tensor(dst, data, nl.add, 1.0, nl.add, filled(grid(3, 1)))
    with expect_refusal("dtype", "tfloat32"):
        scalar_tensor_tensor(dst, data, nl.add, filled(grid(3, 1), kind="tfloat32"), nl.add, data)
    scalar_tensor_tensor(dst, data, nl.abs, None, nl.add, data)
    assert np.array_equal(values(dst), np.abs(values(data)) + values(data))
