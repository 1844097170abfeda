"""What the high-level functions share: result tiles, result dtypes, views that repeat.

P partitions, F free elements. Source: docs/reference/nki.md, section "High-level functions".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dslearn.sim.dtypes import DTYPES, FLOATS, DType
from dslearn.sim.dtypes import dtype as as_dtype
from dslearn.sim.isa import checks
from dslearn.sim.language.allocate import ndarray
from dslearn.sim.memory import MemoryRegion
from dslearn.sim.rules import RuleError
from dslearn.sim.tensor import NkiTensor

FP32 = DTYPES["float32"]


def new(
    shape: Sequence[int], dtype: Any = FP32, buffer: MemoryRegion = MemoryRegion.sbuf
) -> NkiTensor:
    """A result tile, in SBUF unless said otherwise."""
    return ndarray(shape, dtype, buffer)


def like(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A result tile of the shape of `x`, and of its dtype unless another is asked for."""
    return new(x.shape, x.dtype if dtype is None else as_dtype(dtype))


def tile(op: str, operand: str, value: Any) -> NkiTensor:
    """`value` as an on-chip tile, before anything is allocated for the result.

    Raises:
        ArgumentError, RuleError: no tensor; rules region, partition-limit, start-partition.
    """
    return checks.tile(f"nl.{op}", operand, value)


def promote(a: DType, b: DType) -> DType:
    """The dtype of a result of two tiles: floats over integers, then the wider, else fp32."""
    if a == b or (a in FLOATS) != (b in FLOATS):
        return a if a in FLOATS or a == b else b
    if a.itemsize != b.itemsize:
        return a if a.itemsize > b.itemsize else b
    return FP32 if a in FLOATS else a


def axes_of(op: str, x: NkiTensor, axis: Any) -> tuple[int, ...]:
    """`axis` (an int, or a tuple or list of them) counted from the front, ascending.

    Raises:
        RuleError: no such dimension.
    """
    given = tuple(axis) if isinstance(axis, tuple | list) else (axis,)
    if not all(isinstance(a, int) and -x.ndim <= a < x.ndim for a in given):
        raise RuleError(f"nl.{op} axis={axis!r} of {x!r}: no such dimension", rule="bounds")
    return tuple(sorted({a % x.ndim for a in given}))


def reduced(x: NkiTensor, axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    """Shape of `x` reduced over `axes`; a tile keeps at least one free dimension."""
    if keepdims:
        return tuple(1 if d in axes else n for d, n in enumerate(x.shape))
    left = tuple(n for d, n in enumerate(x.shape) if d not in axes)
    return left if len(left) > 1 else (*left, 1)


def spread(x: NkiTensor, shape: Sequence[int]) -> NkiTensor:
    """`x` with its free dimensions of size 1 repeated to fit `shape`: a view."""
    for dim in range(1, x.ndim):
        if x.shape[dim] == 1 and shape[dim] != 1:
            x = x.broadcast(dim, shape[dim])
    return x
