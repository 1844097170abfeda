"""tensor_reduce, tensor_partition_reduce, tensor_scalar_reduce and the Vector accumulators."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dslearn.sim.isa.enums import reduce_cmd
from dslearn.sim.isa.reductions import (
    tensor_partition_reduce,
    tensor_reduce,
    tensor_scalar_reduce,
)
from dslearn.sim.program import Launch, Program, enter
from tests.support.isa import empty, grid, last, nl
from tests.support.sim import HBM, PSUM, expect_refusal, filled, values


@pytest.fixture(autouse=True)
def _fresh_core() -> Any:
    """Accumulators of a new core: nothing has reset them."""
    previous = enter(Program(Launch(1), 0))
    yield
    enter(previous)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((3, 24), 1),
        ((3, 24), [1]),
        ((3, 24), -1),
        ((3, 2, 3, 4), 3),
        ((3, 2, 3, 4), (2, 3)),
        ((3, 2, 3, 4), (-2, -1)),
        ((3, 2, 3, 4), (1, 2, 3)),
    ],
)
def test_trailing_axes(shape: tuple[int, ...], axis: Any) -> None:
    data = grid(3, 24).reshape(shape)
    expected = data.max(axis=tuple(axis) if isinstance(axis, tuple | list) else axis)
    dst = empty((3, expected.size // 3))
    tensor_reduce(dst=dst, op=nl.maximum, data=filled(data), axis=axis)
    assert np.array_equal(values(dst).reshape(expected.shape), expected)


@pytest.mark.parametrize("axis", [0, (0, 1), (1,), (1, 3), (), (4,), "1", True])
def test_other_axes_are_refused(axis: Any) -> None:
    data = filled(grid(3, 24).reshape(3, 2, 3, 4))
    with expect_refusal("operand", "tensor_reduce axis="):
        tensor_reduce(empty((3, 1)), nl.add, data, axis)


def test_sum_is_fp32_and_rounds_once() -> None:
    data = np.full((2, 512), 1 + 2**-7, ml_dtypes.bfloat16)
    dst, narrow = empty((2, 1)), empty((2, 1), "bfloat16")
    tensor_reduce(dst, nl.add, filled(data), axis=1, keepdims=True)
    tensor_reduce(narrow, nl.add, filled(data), axis=1)
    assert values(dst).tolist() == [[516.0]] * 2  # a bf16 accumulator would stop far below
    assert values(narrow).astype(np.float32).tolist() == [[516.0]] * 2
    assert (last().engine, last().details) == ("vector", {"op": "add", "axes": 1})


def test_negate_and_operators() -> None:
    data = grid(4, 9)
    dst = empty((4, 1))
    tensor_reduce(dst, nl.maximum, filled(data, PSUM), axis=1, negate=True)
    assert np.array_equal(values(dst)[:, 0], -data.max(axis=1))
    tensor_reduce(dst, nl.minimum, filled(data), axis=1)
    assert np.array_equal(values(dst)[:, 0], data.min(axis=1))
    small = np.array([[1.0, 2.0, 3.0]], np.float32)
    one = empty((1, 1))
    tensor_reduce(one, nl.multiply, filled(small), axis=1)
    assert values(one)[0, 0] == 6
    tensor_reduce(one, nl.subtract, filled(small), axis=1)
    assert values(one)[0, 0] == -4
    with expect_refusal("operand", "is no reduction"):
        tensor_reduce(one, nl.equal, filled(small), axis=1)


def test_bit_reductions_keep_raw_bits() -> None:
    data = np.array([[0b1100, 0b1010, -1]], np.int32)
    dst = empty((1, 1), "int32")
    tensor_reduce(dst, nl.bitwise_and, filled(data), axis=1)
    assert values(dst)[0, 0] == 0b1000
    tensor_reduce(dst, nl.bitwise_or, filled(data), axis=1)
    assert values(dst)[0, 0] == -1
    with expect_refusal("operand", "negate"):
        tensor_reduce(dst, nl.bitwise_or, filled(data), axis=1, negate=True)
    with expect_refusal("dtype", "bit operations take integers"):
        tensor_reduce(empty((1, 1)), nl.bitwise_or, filled(data), axis=1)


def test_reduce_dst_holds_what_is_left() -> None:
    data = filled(grid(3, 12).reshape(3, 4, 3))
    for good in ((3, 4), (3, 4, 1), (3, 2, 2)):
        tensor_reduce(empty(good), nl.add, data, axis=2)
        assert last().outputs[0].shape == good
    for wrong in ((3, 3), (3, 1), (2, 4)):
        with expect_refusal("shape", "leaves"):
            tensor_reduce(empty(wrong), nl.add, data, axis=2)


def test_partition_reduce() -> None:
    data = np.arange(12, dtype=np.float32).reshape(4, 3)
    dst = empty((1, 3))
    for op, expected in (
        (nl.add, [18.0, 22.0, 26.0]),
        (nl.average, [4.5, 5.5, 6.5]),
        (nl.maximum, [9.0, 10.0, 11.0]),
    ):
        tensor_partition_reduce(dst=dst, op=op, data=filled(data))
        assert values(dst).tolist() == [expected]
    bits = empty((1, 3), "int32")
    tensor_partition_reduce(bits, nl.bitwise_or, filled(data.astype(np.int32)))
    assert values(bits).tolist() == [[0 | 3 | 6 | 9, 1 | 4 | 7 | 10, 2 | 5 | 8 | 11]]
    assert last().engine == "gpsimd"
    with expect_refusal("operand", "nl.minimum"):
        tensor_partition_reduce(dst, nl.minimum, filled(data))
    with expect_refusal("region", "psum"):
        tensor_partition_reduce(dst, nl.add, filled(data, PSUM))
    with expect_refusal("shape", "(1, 3)"):
        tensor_partition_reduce(empty((4, 3)), nl.add, filled(data))


def test_scalar_reduce_writes_both() -> None:
    data = grid(5, 33)
    dst, total = empty((5, 33), "bfloat16"), empty((5, 1))
    tensor_scalar_reduce(
        dst=dst, data=filled(data), op0=nl.multiply, operand0=2.0, reduce_op=nl.add,
        reduce_res=total,
    )  # fmt: skip
    assert values(dst).tobytes() == (data * 2).astype(ml_dtypes.bfloat16).tobytes()
    np.testing.assert_allclose(values(total)[:, 0], (data * 2).sum(1), rtol=1e-6)
    assert last().details == {"op": "multiply", "reduce": "add", "cmd": "reset_reduce"}
    assert len(last().outputs) == 2


def test_scalar_reduce_chains_over_instructions() -> None:
    parts = [grid(5, n, n) for n in (7, 3, 9)]
    result = empty((5, 1))
    for i, part in enumerate(parts):
        tensor_scalar_reduce(
            empty(part.shape), filled(part), nl.multiply, 1.0, nl.maximum,
            reduce_res=result if i == 2 else None,
            reduce_cmd=reduce_cmd.reset_reduce if i == 0 else reduce_cmd.reduce,
        )  # fmt: skip
    assert np.array_equal(values(result)[:, 0], np.concatenate(parts, 1).max(1))


def test_load_reduce_and_negated_result() -> None:
    data = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    result = empty((2, 1))
    tensor_scalar_reduce(
        empty((2, 2)), filled(data), nl.add, 0.0, nl.add, result,
        reduce_cmd=reduce_cmd.load_reduce, reduce_init=10.0, reduce_res_negate=True,
    )  # fmt: skip
    assert values(result)[:, 0].tolist() == [-13.0, -17.0]
    tensor_scalar_reduce(  # the accumulators hold the value itself, not its negative
        empty((2, 2)), filled(data), nl.add, 0.0, nl.add, result, reduce_cmd=reduce_cmd.reduce
    )
    assert values(result)[:, 0].tolist() == [16.0, 24.0]
    column = filled(np.array([[100.0], [200.0]], np.float32))
    tensor_scalar_reduce(
        empty((2, 2)), filled(data), nl.add, 0.0, nl.add, result,
        reduce_cmd=reduce_cmd.load_reduce, reduce_init=column,
    )  # fmt: skip
    assert values(result)[:, 0].tolist() == [103.0, 207.0]


def test_lanes_are_partitions() -> None:
    tile = filled(grid(64, 4))
    low, high = empty((32, 1)), empty((32, 1))
    for part in (tile[0:32], tile[32:64]):
        tensor_scalar_reduce(empty((32, 4)), part, nl.add, 0.0, nl.add)
    zeros = filled(np.zeros((64, 4), np.float32))
    for part, result in ((zeros[0:32], low), (zeros[32:64], high)):
        tensor_scalar_reduce(
            empty((32, 4)), part, nl.add, 0.0, nl.add, result, reduce_cmd=reduce_cmd.reduce
        )
    both = np.concatenate([values(low), values(high)])[:, 0]
    np.testing.assert_allclose(both, grid(64, 4).sum(1), rtol=1e-5)


def test_accumulators_must_be_reset_first() -> None:
    data, dst, result = filled(grid(3, 4)), empty((3, 4)), empty((3, 1))
    with expect_refusal("uninitialised", "reset_reduce"):
        tensor_scalar_reduce(dst, data, nl.add, 0.0, nl.add, result, reduce_cmd=reduce_cmd.reduce)
    tensor_scalar_reduce(dst, data, nl.add, 0.0, nl.add)
    tensor_scalar_reduce(dst, data, nl.add, 0.0, nl.add, result, reduce_cmd=reduce_cmd.reduce)
    np.testing.assert_allclose(values(result)[:, 0], 2 * grid(3, 4).sum(1), rtol=1e-5)


def test_scalar_reduce_refusals() -> None:
    data, dst, result = filled(grid(3, 4)), empty((3, 4)), empty((3, 1))

    def call(**changes: Any) -> None:
        arguments: dict[str, Any] = {
            "dst": dst, "data": data, "op0": nl.add, "operand0": 0.0, "reduce_op": nl.add,
            "reduce_res": result,
        }  # fmt: skip
        tensor_scalar_reduce(**(arguments | changes))

    call()
    with expect_refusal("operand", "reverse0"):
        call(reverse0=True)
    with expect_refusal("operand", "reduce_op=nl.subtract"):
        call(reduce_op=nl.subtract)
    with expect_refusal("operand", "reduce_cmd=idle"):
        call(reduce_cmd=reduce_cmd.idle)
    with expect_refusal("operand", "load_reduce"):
        call(reduce_cmd=reduce_cmd.load_reduce)
    with expect_refusal("operand", "reduce_init=1.0"):
        call(reduce_init=1.0)
    with expect_refusal("operand", "arithmetic"):
        call(op0=nl.bitwise_and, operand0=1)
    with expect_refusal("operand", "(3, 1)"):
        call(reduce_res=empty((3, 2)))
    with expect_refusal("engine", "Vector engine"):
        call(op0=nl.power, operand0=2.0)
    with expect_refusal("region", "data"):
        call(data=filled(grid(3, 4), HBM))
    with expect_refusal("arguments", "reduce_cmd=3", kind=TypeError):
        call(reduce_cmd=3)
