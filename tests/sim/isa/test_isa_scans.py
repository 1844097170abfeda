"""Scans and batch-norm statistics, against loops in float64 and NumPy's own statistics."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.sim.isa.enums import reduce_cmd
from dslearn.sim.isa.reductions import tensor_scalar_reduce
from dslearn.sim.isa.scans import bn_aggr, bn_stats, tensor_scalar_cumulative, tensor_tensor_scan
from dslearn.sim.program import Launch, Program, enter
from tests.support.isa import empty, grid, last, nl
from tests.support.sim import PSUM, expect_refusal, filled, values


@pytest.fixture(autouse=True)
def _fresh_core() -> Any:
    """Accumulators of a new core: nothing has reset them."""
    previous = enter(Program(Launch(1), 0))
    yield
    enter(previous)


@given(st.booleans(), st.booleans(), st.integers(1, 40))
@settings(max_examples=20, deadline=None)
def test_scan_is_its_recurrence(reverse0: bool, reverse1: bool, n: int) -> None:
    a, b = grid(3, n), grid(3, n, 1)
    dst = empty((3, n))
    tensor_tensor_scan(dst, filled(a), filled(b), 0.5, nl.multiply, nl.subtract, reverse0, reverse1)
    state, expected = np.full(3, 0.5, np.float32), np.empty((3, n), np.float32)
    for i in range(n):
        product = a[:, i] * state
        state = b[:, i] - product if reverse1 else product - b[:, i]
        expected[:, i] = state
    assert np.array_equal(values(dst), expected)


def test_scan_reverse0_matters_for_subtract() -> None:
    a, zero = filled(np.array([[5.0]], np.float32)), filled(np.array([[0.0]], np.float32))
    dst = empty((1, 1))
    for reverse, expected in ((False, 3.0), (True, -3.0)):
        tensor_tensor_scan(dst, a, zero, 2.0, nl.subtract, nl.add, reverse0=reverse)
        assert values(dst)[0, 0] == expected


def test_scan_state_stays_fp32_whatever_dst_is() -> None:
    ones = np.ones((2, 300), np.float32)
    dst = empty((2, 300), "bfloat16")
    tensor_tensor_scan(dst, filled(ones), filled(ones), 0.0, nl.multiply, nl.add)
    expected = np.arange(1, 301, dtype=np.float32).astype(ml_dtypes.bfloat16)
    assert values(dst)[0].tobytes() == expected.tobytes()
    assert last().details["op"] == ("multiply", "add")


def test_scan_initial_tile() -> None:
    first = filled(np.array([[1.0], [10.0]], np.float32), kind="bfloat16")
    ones = filled(np.ones((2, 3), np.float32))
    dst = empty((2, 3))
    tensor_tensor_scan(dst, ones, filled(np.ones((2, 3), np.float32)), first, nl.multiply, nl.add)
    assert values(dst).tolist() == [[2, 3, 4], [11, 12, 13]]


def test_scan_refusals() -> None:
    data, dst = filled(grid(2, 3)), empty((2, 3))
    with expect_refusal("two-psum", "data0 and data1"):
        tensor_tensor_scan(
            dst, filled(grid(2, 3), PSUM), filled(grid(2, 3), PSUM), 0.0, nl.add, nl.add
        )
    tensor_tensor_scan(dst, filled(grid(2, 3), PSUM), data, 0.0, nl.add, nl.add)
    with expect_refusal("operand", "takes 1"):
        tensor_tensor_scan(dst, data, data, 0.0, nl.abs, nl.add)
    with expect_refusal("operand", "arithmetic"):
        tensor_tensor_scan(dst, data, data, 0.0, nl.add, nl.bitwise_or)
    with expect_refusal("engine", "power"):
        tensor_tensor_scan(dst, data, data, 0.0, nl.power, nl.add)
    with expect_refusal("operand", "initial"):
        tensor_tensor_scan(dst, data, data, filled(grid(2, 2)), nl.add, nl.add)
    assert np.isfinite(values(dst)).all()


@pytest.mark.parametrize("op", ["add", "multiply", "maximum", "minimum"])
def test_cumulative_is_numpy_accumulate(op: str) -> None:
    ufunc = getattr(np, op)
    data = grid(3, 20)
    dst = empty((3, 20))
    tensor_scalar_cumulative(dst, filled(data), nl.multiply, getattr(nl, op), 2.0)
    assert np.array_equal(values(dst), ufunc.accumulate(data * np.float32(2), axis=1))


def test_cumulative_subtract_takes_the_state_from_the_new_value() -> None:
    dst = empty((1, 3))
    tensor_scalar_cumulative(
        dst, filled(np.array([[1.0, 2.0, 5.0]], np.float32)), nl.add, nl.subtract, 0.0
    )
    assert values(dst).tolist() == [[1.0, 1.0, 4.0]]


def test_cumulative_goes_on_and_loads() -> None:
    data = filled(np.ones((2, 3), np.float32))
    dst = empty((2, 3))
    with expect_refusal("uninitialised", "reset_reduce"):
        tensor_scalar_cumulative(dst, data, nl.add, nl.add, 0.0, reduce_cmd=reduce_cmd.reduce)
    tensor_scalar_cumulative(dst, data, nl.add, nl.add, 0.0)
    tensor_scalar_cumulative(dst, data, nl.add, nl.add, 0.0, reduce_cmd=reduce_cmd.reduce)
    assert values(dst)[0].tolist() == [4, 5, 6]
    tensor_scalar_cumulative(dst, data, nl.add, nl.add, 0.0, 10.0, reduce_cmd.load_reduce)
    assert values(dst)[0].tolist() == [11, 12, 13]
    total = empty((2, 1))  # the Vector engine's instructions share their accumulators
    tensor_scalar_reduce(
        empty((2, 3)), data, nl.add, 0.0, nl.add, total, reduce_cmd=reduce_cmd.reduce
    )
    assert values(total)[:, 0].tolist() == [16.0, 16.0]


def test_cumulative_refusals() -> None:
    data, dst = filled(grid(2, 3)), empty((2, 3))
    with expect_refusal("dtype", "int32"):
        tensor_scalar_cumulative(dst, filled(np.ones((2, 3), np.int32)), nl.add, nl.add, 0.0)
    tensor_scalar_cumulative(dst, filled(np.ones((2, 3), np.int16)), nl.add, nl.add, 0.0)
    assert values(dst)[0].tolist() == [1, 2, 3]
    with expect_refusal("operand", "op1=nl.equal"):
        tensor_scalar_cumulative(dst, data, nl.add, nl.equal, 0.0)
    with expect_refusal("operand", "imm1"):
        tensor_scalar_cumulative(dst, data, nl.add, nl.add, 0.0, 1.0)
    with expect_refusal("operand", "imm0"):
        tensor_scalar_cumulative(dst, data, nl.add, nl.add, filled(grid(2, 1), kind="bfloat16"))


@pytest.mark.parametrize("n", [1, 2, 7, 511, 512])
def test_bn_statistics(n: int) -> None:
    data = grid(4, n)
    stats = empty((4, 6))
    bn_stats(dst=stats, data=filled(data))
    for half in range(2):
        part = data[:, half::2].astype(np.float64)
        count, mean, spread = values(stats)[:, 3 * half : 3 * half + 3].T
        assert (count == part.shape[1]).all()
        if part.shape[1]:
            np.testing.assert_allclose(mean, part.mean(1), rtol=1e-5, atol=1e-7)
            np.testing.assert_allclose(spread, part.var(1) * part.shape[1], rtol=1e-5, atol=1e-7)


def test_bn_aggregate_of_pieces() -> None:
    data = grid(4, 700)
    stats, result = empty((4, 2, 6)), empty((4, 2))
    bn_stats(stats[:, 0], filled(data[:, :512]))
    bn_stats(stats[:, 1], filled(data[:, 512:]))
    bn_aggr(dst=result, data=stats)
    np.testing.assert_allclose(values(result)[:, 0], data.mean(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(values(result)[:, 1], data.var(1), rtol=1e-5)


def test_bn_refusals() -> None:
    with expect_refusal("shape", "at most 512"):
        bn_stats(empty((2, 6)), filled(grid(2, 513)))
    with expect_refusal("shape", "(2, 6)"):
        bn_stats(empty((2, 5)), filled(grid(2, 8)))
    with expect_refusal("shape", "triples"):
        bn_aggr(empty((2, 2)), filled(grid(2, 4)))
    with expect_refusal("shape", "(2, 2)"):
        bn_aggr(empty((2, 3)), filled(grid(2, 6)))
