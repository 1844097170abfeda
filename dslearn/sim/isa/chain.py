"""Chains of one or two operators with one scalar operand each: `(data op0 a) op1 b`.

Shared by the tensor_scalar family. P partitions, N elements per partition.
Source: docs/reference/nki.md, section "Elementwise".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dslearn.sim.isa import checks, operands, ops
from dslearn.sim.numerics.alu import Op, exact_int
from dslearn.sim.rules import RuleError
from dslearn.sim.tensor import NkiTensor


class Step(NamedTuple):
    """One operator of a chain, with its scalar operand."""

    op: Op
    operand: Any
    reverse: bool
    name: str


def step(at: str, op: Any, operand: Any, reverse: bool, name: str) -> Step:
    """Operator `op` with its operand, which is None or 0 for a unary one.

    Raises:
        RuleError: a unary operator with an operand, or a binary one without (rule operand).
    """
    act = ops.alu(op, f"{at} op{name[-1]}")
    if act.arity == 1:
        if not (operand is None or (not isinstance(operand, NkiTensor) and operand == 0)):
            raise RuleError(
                f"{at} {name}={operand!r}: nl.{act.name} takes one input, so None or 0", "operand"
            )
        return Step(act, None, False, name)
    if operand is None:
        raise RuleError(f"{at} {name} is None: nl.{act.name} needs it", rule="operand")
    return Step(act, operand, bool(reverse), name)


def apply(x: np.ndarray, steps: list[Step], values: list[Any]) -> np.ndarray:
    """`x` [P, N] after the steps, with `values` for their operands."""
    for one, value in zip(steps, values, strict=True):
        if one.op.arity == 1:
            x = one.op(x)
        else:
            x = one.op(value, x) if one.reverse else one.op(x, value)
    return x


def arithmetic(at: str, x: np.ndarray, steps: list[Step]) -> np.ndarray:
    """fp32 `x` [P, N] after arithmetic steps, whose operands are numbers or (P, 1) fp32 tiles.

    Raises:
        RuleError, ArgumentError: another operand.
    """
    p = x.shape[0]
    values = [
        None if s.operand is None else checks.per_partition(at, s.name, s.operand, p) for s in steps
    ]
    return apply(x, steps, values)


def bitwise(at: str, data: NkiTensor, steps: list[Step]) -> np.ndarray:
    """Bits of `data` [P, N] after bit steps, whose operands are integers or (P, 1) integer tiles.

    Raises:
        RuleError: another operand.
    """
    values = [
        None if s.operand is None else operands.bit_scalar(at, s.name, s.operand, data)
        for s in steps
    ]
    return apply(operands.bits(data, f"{at} data"), steps, values)


def address(data: NkiTensor, steps: list[Step], dtype: np.dtype[Any]) -> np.ndarray:
    """int32 or uint32 `data` [P, N] after adding and multiplying integers, wrapped to `dtype`."""
    x = operands.raw(data, "tensor_scalar data")
    for one in steps:
        x = exact_int(one.op.name, x, one.operand, dtype)
    return x


def on_vector(at: str, op: Op) -> Op:
    """`op`, which the Vector engine must have.

    Raises:
        RuleError: it has not (rule engine).
    """
    if "vector" not in op.engines:
        raise RuleError(
            f"{at} runs on the Vector engine, which has no nl.{op.name}; activation or "
            "tensor_scalar on GpSimd may",
            rule="engine",
        )
    return op
