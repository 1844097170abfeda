"""select_reduce and range_select: values, accumulators, the fill that bf16 turns into -inf."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dslearn.sim.isa.enums import reduce_cmd
from dslearn.sim.isa.reductions import tensor_scalar_reduce
from dslearn.sim.isa.select import range_select, select_reduce
from dslearn.sim.numerics.patterns import FP32_MIN
from dslearn.sim.program import Launch, Program, enter
from tests.support.isa import empty, grid, last, nl
from tests.support.sim import PSUM, expect_refusal, filled, values


@pytest.fixture(autouse=True)
def _fresh_core() -> Any:
    """Accumulators of a new core: nothing has reset them."""
    previous = enter(Program(Launch(1), 0))
    yield
    enter(previous)


def _mask(p: int, n: int, kind: str = "uint8") -> np.ndarray:
    return (grid(p, n, 7) > 0).astype(kind) * 3


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("column", [False, True])
def test_select(reverse: bool, column: bool) -> None:
    data, mask, other = grid(4, 10), _mask(4, 10, "int16"), grid(4, 1, 1)
    dst = empty((4, 10))
    select_reduce(
        dst=dst, predicate=filled(mask), on_true=filled(data),
        on_false=filled(other) if column else -7.0, reverse_pred=reverse,
    )  # fmt: skip
    chosen = (mask == 0) if reverse else (mask != 0)
    assert np.array_equal(values(dst), np.where(chosen, data, other if column else -7.0))


def test_select_maximum_over_two_instructions() -> None:
    parts, masks = [grid(3, 6), grid(3, 4, 1)], [_mask(3, 6), _mask(3, 4)]
    result = empty((3, 1))
    for i, (part, mask) in enumerate(zip(parts, masks, strict=True)):
        select_reduce(
            empty(part.shape), filled(mask), filled(part), -9.0, result,
            reduce_cmd.reduce if i else reduce_cmd.reset_reduce,
        )  # fmt: skip
    chosen = [np.where(m != 0, p, -9.0) for p, m in zip(parts, masks, strict=True)]
    assert np.array_equal(values(result)[:, 0], np.concatenate(chosen, 1).max(1))


def test_idle_leaves_the_accumulators_unknown() -> None:
    data, mask, result = filled(grid(3, 4)), filled(_mask(3, 4)), empty((3, 1))
    tensor_scalar_reduce(empty((3, 4)), data, nl.add, 0.0, nl.add)
    select_reduce(empty((3, 4)), mask, data, 0.0)
    with expect_refusal("uninitialised", "reset_reduce"):
        select_reduce(empty((3, 4)), mask, data, 0.0, result, reduce_cmd.reduce)
    select_reduce(empty((3, 4)), mask, data, 0.0, result, reduce_cmd.reset_reduce)
    assert values(result).shape == (3, 1)


def test_select_refusals() -> None:
    data, mask, dst = filled(grid(3, 4)), filled(_mask(3, 4)), empty((3, 4))
    with expect_refusal("dtype", "predicate is uint32"):
        select_reduce(dst, filled(_mask(3, 4, "uint32")), data, 0.0)
    with expect_refusal("dtype", "on_true is int32"):
        select_reduce(dst, mask, filled(np.ones((3, 4), np.int32)), 0.0)
    with expect_refusal("two-psum", "predicate and on_true"):
        select_reduce(dst, filled(_mask(3, 4), PSUM), filled(grid(3, 4), PSUM), 0.0)
    with expect_refusal("operand", "reduce_op=nl.add"):
        select_reduce(dst, mask, data, 0.0, reduce_op=nl.add)
    with expect_refusal("operand", "nothing is reduced"):
        select_reduce(dst, mask, data, 0.0, empty((3, 1)))
    with expect_refusal("dtype", "must be a float"):
        select_reduce(dst, mask, data, 0.0, empty((3, 1), "int32"), reduce_cmd.reset_reduce)
    with expect_refusal("operand", "reduce_cmd=load_reduce"):
        select_reduce(dst, mask, data, 0.0, reduce_cmd=reduce_cmd.load_reduce)
    with expect_refusal("shape", "predicate"):
        select_reduce(dst, filled(_mask(3, 5)), data, 0.0)
    select_reduce(dst, filled(_mask(3, 4), PSUM), data, 0.0)
    assert last().details == {"cmd": "idle"}


def _bounds(*numbers: float) -> Any:
    return filled(np.array(numbers, np.float32)[:, None])


def _select(dst: Any, data: Any, low: Any, high: Any, **options: Any) -> None:
    range_select(
        dst=dst, on_true_tile=data, comp_op0=nl.greater_equal, comp_op1=nl.less,
        bound0=low, bound1=high, **options,
    )  # fmt: skip


def test_range_keeps_positions_between_the_bounds() -> None:
    data = grid(2, 6)
    dst, peak = empty((2, 6)), empty((2, 1))
    _select(dst, filled(data), _bounds(101, 100), _bounds(104, 102), range_start=100,
            reduce_res=peak)  # fmt: skip
    expected = np.full((2, 6), np.float32(FP32_MIN))
    expected[0, 1:4], expected[1, 0:2] = data[0, 1:4], data[1, 0:2]
    assert np.array_equal(values(dst), expected)
    assert np.array_equal(values(peak)[:, 0], expected.max(1))


def test_range_fill_is_minus_infinity_in_bf16_but_not_in_the_accumulators() -> None:
    dst, peak = empty((1, 4), "bfloat16"), empty((1, 1))
    _select(dst, filled(grid(1, 4)), _bounds(9), _bounds(9), reduce_res=peak)
    assert np.isneginf(values(dst).astype(np.float32)).all()
    assert values(peak)[0, 0] == np.float32(FP32_MIN)


def test_range_refusals() -> None:
    data, dst = filled(grid(2, 6)), empty((2, 6))
    low, high = _bounds(0, 0), _bounds(6, 6)
    _select(dst, data, low, high, on_false_value=-3.4028235e38)
    assert np.array_equal(values(dst), values(data))
    with expect_refusal("operand", "on_false_value"):
        _select(dst, data, low, high, on_false_value=0.0)
    with expect_refusal("operand", "2^24"):
        _select(dst, data, low, high, range_start=2**24 - 5)
    with expect_refusal("dtype", "must be a float"):
        _select(dst, filled(np.ones((2, 6), np.int16)), low, high)
    with expect_refusal("operand", "bound0"):
        _select(dst, data, filled(np.zeros((2, 1), np.float32), kind="bfloat16"), high)
    with expect_refusal("arguments", "bound1", kind=TypeError):
        _select(dst, data, low, 6.0)
    with expect_refusal("operand", "comp_op0=nl.not_equal"):
        range_select(dst, data, nl.not_equal, nl.less, low, high)
    with expect_refusal("arguments", "range_start", kind=TypeError):
        _select(dst, data, low, high, range_start=0.5)
