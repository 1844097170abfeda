"""The Scalar engine: scale, bias, functions, accumulators over several instructions."""

from __future__ import annotations

import math
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dslearn.sim.isa.activation import activation, activation_reduce
from dslearn.sim.isa.enums import reduce_cmd
from dslearn.sim.program import Launch, Program, enter
from tests.support.isa import empty, grid, last, nl
from tests.support.sim import HBM, PSUM, expect_refusal, filled, values


@pytest.fixture(autouse=True)
def _fresh_core() -> Any:
    """Accumulators of a new core: nothing has reset them."""
    previous = enter(Program(Launch(1), 0))
    yield
    enter(previous)


def _silu(x: float) -> float:
    return x / (1 + math.exp(-x))


@pytest.mark.parametrize(
    ("name", "function"),
    [("exp", math.exp), ("tanh", math.tanh), ("silu", _silu), ("erf", math.erf)],
)
def test_functions_round_the_true_value(name: str, function: Any) -> None:
    data = grid(3, 11)
    dst = empty((3, 11))
    activation(dst=dst, op=getattr(nl, name), data=filled(data))
    expected = np.array([[function(float(x)) for x in row] for row in data])
    np.testing.assert_allclose(values(dst), expected, rtol=1e-7)
    assert (last().engine, last().details["op"]) == ("scalar", name)


def test_scale_and_bias_in_fp32_with_one_rounding() -> None:
    data, scale, bias = grid(6, 13), grid(6, 1, 1), filled(grid(6, 1, 2), kind="bfloat16")
    dst = empty((6, 13), "bfloat16")
    activation(dst, nl.copy, filled(data, PSUM), bias=bias, scale=filled(scale))
    expected = data * scale + values(bias).astype(np.float32)
    assert values(dst).tobytes() == expected.astype(ml_dtypes.bfloat16).tobytes()
    assert len(last().inputs) == 3


def test_scalar_bias_is_added_for_copy_too() -> None:
    dst = empty((1, 2))
    activation(dst, nl.copy, filled(np.array([[1.0, 2.0]], np.float32)), bias=0.5, scale=-1.0)
    assert values(dst).tolist() == [[-0.5, -1.5]]


def test_exp_with_negative_maximum() -> None:
    data = grid(4, 9) * 50
    peak = -data.max(axis=1, keepdims=True)
    dst, total = empty((4, 9)), empty((4, 1))
    activation(
        dst, nl.exp, filled(data), bias=filled(peak), reduce_op=nl.add, reduce_res=total,
        reduce_cmd=reduce_cmd.reset_reduce,
    )  # fmt: skip
    expected = np.exp((data + peak).astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(values(dst), expected, rtol=1e-6)
    np.testing.assert_allclose(values(total)[:, 0], expected.sum(1), rtol=1e-6)


def test_accumulators_persist_over_instructions() -> None:
    parts = [np.full((3, n), n, np.float32) for n in (2, 3, 4)]
    total = empty((3, 1))
    for i, part in enumerate(parts):
        activation(
            empty(part.shape, "bfloat16"), nl.square, filled(part), reduce_op=nl.add,
            reduce_cmd=reduce_cmd.reduce if i else reduce_cmd.reset_reduce,
        )  # fmt: skip
    activation(empty((3, 2)), nl.exp, filled(parts[0]), reduce_res=total)  # idle: only reads
    assert values(total)[:, 0].tolist() == [8.0 + 27.0 + 64.0] * 3
    activation(empty((3, 2)), nl.exp, filled(parts[0]), reduce_cmd=reduce_cmd.reset)
    activation(empty((3, 2)), nl.copy, filled(parts[0]), reduce_res=total)
    assert values(total)[:, 0].tolist() == [0.0] * 3


def test_sum_sees_fp32_before_dst_rounds() -> None:
    data = filled(np.full((1, 4), 1 + 2**-10, np.float32))
    dst, total = empty((1, 4), "bfloat16"), empty((1, 1))
    activation_reduce(dst, nl.copy, data, nl.add, total)
    assert values(total)[0, 0] == 4 + 2**-8
    assert values(dst).astype(np.float32).tolist() == [[1.0] * 4]


def test_activation_reduce_is_reset_reduce() -> None:
    data = filled(grid(3, 5))
    total, again = empty((3, 1)), empty((3, 1))
    for result in (total, again):
        activation_reduce(
            dst=empty((3, 5)), op=nl.square, data=data, reduce_op=nl.add, reduce_res=result
        )
    assert np.array_equal(values(total), values(again))
    np.testing.assert_allclose(values(total)[:, 0], np.square(grid(3, 5)).sum(1), rtol=1e-6)
    with expect_refusal("operand", "reduce_res is None"):
        activation_reduce(empty((3, 5)), nl.exp, data, nl.add, None)  # type: ignore[arg-type]


def test_accumulators_must_be_reset_first() -> None:
    data, total = filled(grid(3, 5)), empty((3, 1))
    with expect_refusal("uninitialised", "scalar engine's accumulators"):
        activation(empty((3, 5)), nl.exp, data, reduce_res=total)
    with expect_refusal("uninitialised", "reset_reduce"):
        activation(empty((3, 5)), nl.exp, data, reduce_op=nl.add, reduce_cmd=reduce_cmd.reduce)
    activation(empty((3, 5)), nl.exp, data, reduce_cmd=reduce_cmd.reset, reduce_res=total)
    assert values(total).tolist() == [[0.0]] * 3


def test_reset_of_some_lanes_leaves_others_unknown() -> None:
    tile = filled(grid(64, 5))
    activation(empty((32, 5)), nl.exp, tile[0:32], reduce_cmd=reduce_cmd.reset)
    with expect_refusal("uninitialised", "accumulators"):
        activation(empty((64, 5)), nl.exp, tile, reduce_res=empty((64, 1)))
    activation(empty((32, 5)), nl.exp, tile[0:32], reduce_res=empty((32, 1)))
    assert last().details["cmd"] == "idle"


@pytest.mark.parametrize(
    ("name", "inside", "beyond"),
    [("log", 1.0, 2.0**65), ("sin", 3.0, 4.0), ("arctan", 1.5, 2.0), ("rsqrt", 4.0, 2.0**-100)],
)
def test_inputs_outside_the_table_warn(name: str, inside: float, beyond: float) -> None:
    dst = empty((1, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        activation(dst, getattr(nl, name), filled(np.full((1, 2), inside, np.float32)))
    with pytest.warns(UserWarning, match=f"nl.{name}: 1 of 2 inputs lie outside"):
        activation(dst, getattr(nl, name), filled(np.array([[inside, beyond]], np.float32)))
    assert np.isnan(values(dst)[0, 1]) == (name == "sin")


def test_refusals() -> None:
    data, dst = filled(grid(3, 4)), empty((3, 4))
    with expect_refusal("engine", "op=nl.add", "Scalar engine"):
        activation(dst, nl.add, data)
    with expect_refusal("operand", "scale", "float32"):
        activation(dst, nl.exp, data, scale=filled(grid(3, 1), kind="bfloat16"))
    with expect_refusal("dtype", "bias is tfloat32"):
        activation(dst, nl.exp, data, bias=filled(grid(3, 1), kind="tfloat32"))
    with expect_refusal("operand", "bias"):
        activation(dst, nl.exp, data, bias=filled(grid(3, 2)))
    with expect_refusal("operand", "reduce_op=nl.maximum"):
        activation(dst, nl.exp, data, reduce_op=nl.maximum, reduce_cmd=reduce_cmd.reset_reduce)
    with expect_refusal("operand", "without reduce_op"):
        activation(dst, nl.exp, data, reduce_cmd=reduce_cmd.reset_reduce)
    with expect_refusal("operand", "reduce_cmd=load_reduce"):
        activation(dst, nl.exp, data, reduce_op=nl.add, reduce_cmd=reduce_cmd.load_reduce)
    with expect_refusal("operand", "reduce_res"):
        activation(dst, nl.exp, data, reduce_res=empty((3, 2)))
    with expect_refusal("region", "data"):
        activation(dst, nl.exp, filled(grid(3, 4), HBM))
    with expect_refusal("shape", "data"):
        activation(dst, nl.exp, filled(grid(3, 5)))
    with expect_refusal("dtype", "float8_e4m3fn"):
        activation(dst, nl.copy, filled(grid(3, 4), kind="float8_e4m3fn"))
    activation(dst, nl.copy, filled(grid(3, 4), kind="float8_e4m3"))
    assert np.isfinite(values(dst)).all()
