"""Reading operands: rows of a tile as fp32 or raw bits, and one scalar per partition.

P partitions, N elements per partition, free dimensions flattened.
Source: docs/reference/nki.md, section "Elementwise".
"""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from dslearn.sim.access import load, load32, store
from dslearn.sim.dtypes import INTEGERS, NUMPY
from dslearn.sim.isa import checks
from dslearn.sim.memory import MemoryRegion
from dslearn.sim.numerics.alu import as_bits, scalar_bits
from dslearn.sim.numerics.casts import round_tf32
from dslearn.sim.rules import ArgumentError, RuleError
from dslearn.sim.tensor import NkiTensor


def rows(t: NkiTensor, what: str) -> np.ndarray:
    """Elements of `t` as fp32 [P, N]; not to be written."""
    values = load32(t, what).reshape(t.shape[0], -1)
    return round_tf32(values) if t.dtype == "tfloat32" else values


def raw(t: NkiTensor, what: str) -> np.ndarray:
    """Elements of `t` in their own dtype [P, N]; not to be written."""
    return load(t, what).reshape(t.shape[0], -1)


def bits(t: NkiTensor, what: str) -> np.ndarray:
    """Elements of `t` as unsigned integers of their width [P, N]; not to be written."""
    return as_bits(raw(t, what))


def store_bits(dst: NkiTensor, values: np.ndarray) -> None:
    """Write unsigned integers of the width of `dst` as its elements."""
    store(dst, values.view(NUMPY[dst.dtype]))


def same_width(op: str, dst: NkiTensor, **sources: NkiTensor) -> None:
    """Check that bit operands are integers as wide as `dst`: bits are not cast.

    Raises:
        RuleError: a float, or another width (rule dtype).
    """
    checks.integers(op, dst=dst, **sources)
    for name, t in sources.items():
        if t.itemsize != dst.itemsize:
            raise RuleError(
                f"{op} {name} is {t.dtype} and dst {dst.dtype}: bit operations do not cast, the "
                "widths must agree; tensor_copy to a tile of the wider type first",
                rule="dtype",
            )


def vector(op: str, operand: str, value: Any, p: int) -> float | np.ndarray:
    """A number, or a (P, 1) tile of any dtype but tfloat32, as fp32 [P, 1].

    Raises:
        RuleError: a tile of another shape or dtype (rules operand, dtype).
        ArgumentError: neither.
    """
    if not isinstance(value, NkiTensor) or value.dtype == "float32":
        return checks.per_partition(op, operand, value, p)
    t = column(op, operand, value, p)
    if t.dtype == "tfloat32":
        raise RuleError(f"{op} {operand} is tfloat32: use float32", rule="dtype")
    return load32(t, f"{op} {operand}").reshape(p, 1)


def column(op: str, operand: str, value: Any, p: int) -> NkiTensor:
    """A (P, 1) tile of a dtype that trn2 computes with.

    Raises:
        RuleError: another shape (rule operand), dtype or memory.
    """
    t = checks.tile(op, operand, value)
    if t.shape[0] != p or t.size != p:
        raise RuleError(
            f"{op} {operand} {t!r}: must be ({p}, 1), one element per partition", rule="operand"
        )
    checks.computable(op, **{operand: t})
    return t


def bit_scalar(op: str, operand: str, value: Any, like: NkiTensor) -> Any:
    """Operand of a bit operation: an integer that fits `like`, or a (P, 1) tile of its width.

    Raises:
        RuleError: a float, or an integer that does not fit (rules operand, dtype).
    """
    if isinstance(value, NkiTensor):
        t = column(op, operand, value, like.shape[0])
        same_width(op, like, **{operand: t})
        return bits(t, f"{op} {operand}")
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise RuleError(
            f"{op} {operand}={value!r}: bit operations take an int or a ({like.shape[0]}, 1) "
            "integer tile",
            rule="operand",
        )
    width = 8 * like.itemsize
    if not -(1 << (width - 1)) <= value < 1 << width:
        raise RuleError(f"{op} {operand}={value} does not fit {like.dtype}", rule="operand")
    return scalar_bits(int(value), NUMPY[like.dtype])


def whole_number(value: Any) -> bool:
    """Whether `value` is a plain integer."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def number(op: str, operand: str, value: Any) -> float:
    """A Python or NumPy number.

    Raises:
        ArgumentError: a tensor or something else.
    """
    if isinstance(value, numbers.Real):
        return float(value)
    raise ArgumentError(f"{op} {operand}={value!r}: must be a number", rule="arguments")


def integer(op: str, operand: str, value: Any) -> int:
    """A compile-time int32.

    Raises:
        ArgumentError: something else, a register for instance.
        RuleError: it does not fit 32 bits (rule operand).
    """
    if not whole_number(value):
        raise ArgumentError(
            f"{op} {operand}={value!r}: must be a compile-time integer", rule="arguments"
        )
    if not -(2**31) <= value < 2**31:
        raise RuleError(f"{op} {operand}={value} does not fit int32", rule="operand")
    return int(value)


def all_int32(*tiles: NkiTensor) -> bool:
    """Whether every tile is int32 or uint32 and in SBUF: what GpSimd computes exactly."""
    return all(
        t.itemsize == 4 and t.dtype in INTEGERS and t.buffer is MemoryRegion.sbuf for t in tiles
    )


def tiles(*values: Any) -> tuple[NkiTensor, ...]:
    """Those of `values` that are tensors, for the record."""
    return tuple(v for v in values if isinstance(v, NkiTensor))
