"""The Scalar engine: activation and activation_reduce.

P partitions, N elements per partition. fp32 inside, rounded once at dst. Tables approximate the
functions on hardware (1e-6 to 1e-5); here they are correctly rounded.
Source: docs/reference/nki.md, section "Activation functions".
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np

from dslearn.sim.access import store32
from dslearn.sim.isa import accumulators, checks, operands, ops
from dslearn.sim.isa.enums import reduce_cmd as commands
from dslearn.sim.numerics.activations import DOMAINS, activate, outside
from dslearn.sim.numerics.scan import reduce_free
from dslearn.sim.program import NkiInstruction, current
from dslearn.sim.rules import RuleError
from dslearn.sim.tensor import NkiTensor


class _Call(NamedTuple):
    """Arguments that both spellings share."""

    at: str
    op: Any
    bias: Any
    scale: Any
    reduce_op: Any
    reduce_res: NkiTensor | None
    name: str | None


def activation(  # noqa: PLR0913 - the vendor's signature
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Any = commands.idle,
    name: str | None = None,
) -> NkiInstruction:
    """dst = op(data * scale + bias) [P, N], and its sum over N into the accumulators if asked.

    `scale` is a number or a (P, 1) fp32 tile, `bias` a number or a (P, 1) tile. `reduce_cmd`: reset
    zeroes the Scalar engine's 128 accumulators, reduce adds this row sum, reset_reduce both, idle
    neither (with a reduce_op and a reduce_res: both); they persist between instructions.
    `reduce_res` (P, 1) reads them. The sum is of the fp32 values before they are rounded to dst.

    Warns:
        UserWarning: inputs outside the range for which the hardware's table is valid.

    Raises:
        RuleError: rules region, shape, dtype, engine, operand, uninitialised.
    """
    allowed = (commands.idle, commands.reset, commands.reduce, commands.reset_reduce)
    cmd = accumulators.command("activation", reduce_cmd, allowed)
    if cmd is commands.idle and reduce_op is not None and reduce_res is not None:
        cmd = commands.reset_reduce  # kernels that ran on trn2 ask for a sum in just this way
    call = _Call("activation", op, bias, scale, reduce_op, reduce_res, name)
    return _run(call, dst, data, cmd)


def activation_reduce(  # noqa: PLR0913 - the vendor's signature
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    reduce_op: Any,
    reduce_res: NkiTensor,
    bias: Any = None,
    scale: Any = 1.0,
    name: str | None = None,
) -> NkiInstruction:
    """`activation` with reduce_cmd.reset_reduce; `reduce_res` (P, 1) receives the sum.

    Raises:
        RuleError: as `activation`.
    """
    if reduce_res is None:
        raise RuleError("activation_reduce reduce_res is None: a (P, 1) tile", rule="operand")
    call = _Call("activation_reduce", op, bias, scale, reduce_op, reduce_res, name)
    return _run(call, dst, data, commands.reset_reduce)


def _run(call: _Call, dst: NkiTensor, data: NkiTensor, cmd: commands) -> NkiInstruction:
    at = call.at
    dst, data = checks.tile(at, "dst", dst), checks.tile(at, "data", data)
    checks.same_shape(at, dst, data=data)
    checks.computable(at, dst=dst, data=data)
    function = ops.function(call.op, f"{at} op")
    p, where = data.shape[0], accumulators.lanes(data)
    result = accumulators.result_tile(at, call.reduce_res, p)
    _check_reduce(at, call.reduce_op, cmd)
    values = _activated(call, function, operands.rows(data, f"{at} data"))
    if cmd in (commands.reduce, commands.reset_reduce):
        start = accumulators.initial("scalar", "add", cmd, where)
        accumulators.accumulate("scalar", "add", start, reduce_free("add", values), where)
    elif cmd is commands.reset:
        accumulators.keep("scalar", np.zeros(p, np.float32), where)
    store32(dst, values)
    if result is not None:
        accumulators.read_out("scalar", result, where)
    outputs = (dst, *operands.tiles(result))
    inputs = (data, *operands.tiles(call.scale, call.bias))
    return current().emit(at, "scalar", outputs, inputs, call.name, op=function, cmd=cmd.name)


def _activated(call: _Call, function: str, x: np.ndarray) -> np.ndarray:
    """op(x * scale + bias), fp32 [P, N]."""
    scale = checks.per_partition(call.at, "scale", call.scale, x.shape[0])
    with np.errstate(all="ignore"):
        if not (isinstance(scale, float) and scale == 1.0):
            x = x * scale
        if call.bias is not None:
            x = x + operands.vector(call.at, "bias", call.bias, x.shape[0])
    if function in DOMAINS:
        bad = int(np.count_nonzero(outside(function, x)))
        if bad:
            d = DOMAINS[function]
            warnings.warn(
                f"{call.at} op=nl.{function}: {bad} of {x.size} inputs lie outside "
                f"{'+-' if d.magnitude else ''}[{d.lowest:g}, {d.highest:g}], where the hardware's "
                "result is not valid",
                stacklevel=5,  # the kernel's line: _run, activation and its binding lie between
            )
    return activate(function, x)


def _check_reduce(at: str, reduce_op: Any, cmd: commands) -> None:
    """Check that the reduction is a sum, and named when there is one.

    Raises:
        RuleError: it is not (rule operand).
    """
    if reduce_op is not None:
        ops.one_of(reduce_op, f"{at} reduce_op", ("add",))
    elif cmd in (commands.reduce, commands.reset_reduce):
        raise RuleError(
            f"{at} reduce_cmd.{cmd.name} without reduce_op: pass reduce_op=nl.add", rule="operand"
        )
