"""Reductions, running scans and batch-norm statistics, all with fp32 state.

The order in which the hardware adds is not documented. Here it is NumPy's for a contiguous row:
pairwise (blocks of 128, eight partial sums each) for add, left to right for everything else. The
free axes are flattened to one first, so that memory layout does not change the result. Legend:
P partitions, F elements per partition. Source: docs/reference/nki.md, "Reductions".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dslearn.sim.numerics.alu import OPS, Function
from dslearn.sim.numerics.casts import Array

# Where an accumulator starts after a reset; also what reducing nothing gives.
IDENTITY = {
    "add": 0.0,
    "subtract": 0.0,
    "multiply": 1.0,
    "maximum": -np.inf,
    "minimum": np.inf,
}


def reduce_free(name: str, x: Array, axes: int = 1, negate: bool = False) -> Array:
    """Reduce the last `axes` axes with an operator of `alu.OPS`; they are dropped.

    Args:
        name: an operator that `reduces`.
        x: fp32, or unsigned integers for a bitvec operator.
        axes: how many trailing axes, at least 1 and less than x.ndim.
        negate: give the negative (arithmetic operators only).
    Returns:
        fp32 (logical operators: 1.0 or 0.0), or x's dtype for a bitvec operator.
    """
    op = OPS[name]
    assert op.reduces is not None, f"{name} does not reduce"
    kept = x.shape[: x.ndim - axes]
    rows = np.ascontiguousarray(x).reshape(*kept, -1)
    with np.errstate(all="ignore"):
        result = op.reduces.reduce(rows, axis=-1)
    result = np.asarray(result, dtype=np.float32 if op.kind == "arith" else x.dtype)
    return np.negative(result) if negate else result


def reduce_partitions(name: str, x: Array) -> Array:
    """Reduce the partition axis, kept with size 1; "average" is the sum over P.

    Args:
        name: "average" or an operator of `alu.OPS` that reduces.
        x: [P, ...], fp32 or unsigned integers for a bitvec operator.
    """
    if name == "average":
        return reduce_partitions("add", x) / np.float32(x.shape[0])
    moved = np.moveaxis(x, 0, -1)
    return reduce_free(name, moved)[None]


def tensor_tensor_scan(
    data0: Array, data1: Array, initial: Any, op0: Function, op1: Function
) -> Array:
    """r[i] = op1(op0(data0[i], r[i-1]), data1[i]) with r[-1] = initial: fp32 [P, F].

    The state stays fp32 whatever the instruction writes.

    Args:
        data0: fp32 [P, F], free axes flattened.
        data1: the same shape.
        initial: number or fp32 [P, 1].
        op0: function of two fp32 arrays, (data0, state), and `out`; `alu.swapped` reverses one.
        op1: function of two fp32 arrays, (result of op0, data1), and `out`.
    """
    out = np.empty(data0.shape[::-1], dtype=np.float32)  # [F, P]: a step is a contiguous row
    state = _start(initial, data0.shape[0])
    between = np.empty(data0.shape[0], dtype=np.float32)
    with np.errstate(all="ignore"):
        for a, b, row in zip(_columns(data0), _columns(data1), out, strict=True):
            state = op1(op0(a, state, out=between), b, out=row)
    return np.ascontiguousarray(out.T)


def cumulative(values: Array, name: str, initial: Any) -> Array:
    """r[i] = op(values[i], r[i-1]) with r[-1] = initial: fp32 [P, F].

    The new value is the left operand, so a running subtract alternates signs. The last column is
    what stays in the accumulator.

    Args:
        values: fp32 [P, F], free axes flattened.
        name: a key of IDENTITY.
        initial: number or fp32 [P, 1].
    """
    function = OPS[name].function
    state = _start(initial, values.shape[0])
    out = np.empty(values.shape[::-1], dtype=np.float32)
    with np.errstate(all="ignore"):
        for value, row in zip(_columns(values), out, strict=True):
            state = function(value, state, out=row)
    return np.ascontiguousarray(out.T)


def _columns(x: Array) -> Array:
    """The columns of [P, F] as contiguous rows."""
    return np.ascontiguousarray(x.T)


def _start(initial: Any, partitions: int) -> Array:
    start = np.empty(partitions, dtype=np.float32)
    start[:] = np.reshape(initial, -1)
    return start


def bn_stats(x: Array) -> Array:
    """Count, mean and variance * count of the even, then of the odd elements: fp32 [P, 6].

    Computed in float64 and rounded once; without odd elements their three numbers are 0.

    Args:
        x: fp32 [P, F], F >= 1.
    """
    out = np.zeros((x.shape[0], 6), dtype=np.float32)
    for half in range(2):
        part = x[:, half::2].astype(np.float64)
        if part.shape[1]:
            mean = part.mean(axis=1, keepdims=True)
            spread = np.square(part - mean).sum(axis=1)
            out[:, 3 * half] = part.shape[1]
            out[:, 3 * half + 1] = mean[:, 0]
            out[:, 3 * half + 2] = spread
    return out


def bn_aggr(stats: Array) -> Array:
    """Mean and (population) variance from any number of `bn_stats` triples: fp32 [P, 2].

    Args:
        stats: fp32 [P, 3 n]: count, mean, variance * count, n times.
    """
    count, mean, spread = np.moveaxis(stats.reshape(stats.shape[0], -1, 3).astype(np.float64), 2, 0)
    with np.errstate(all="ignore"):
        total = count.sum(axis=1)
        centre = (count * mean).sum(axis=1) / total
        between = (count * np.square(mean - centre[:, None])).sum(axis=1)
        variance = (spread.sum(axis=1) + between) / total
    return np.stack([centre, variance], axis=1).astype(np.float32)
