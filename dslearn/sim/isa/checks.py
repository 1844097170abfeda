"""Checks that instructions share: memory, partitions, shapes, scalars, engines.

N is the number of elements per partition: shapes may differ in rank as long as N agrees.
Source: docs/reference/nki.md, sections "Rules" and "Engines".
"""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from dslearn.sim import layout
from dslearn.sim.access import load32
from dslearn.sim.dtypes import FLOATS, PACKED
from dslearn.sim.isa.enums import engine, member
from dslearn.sim.memory import BANK_BYTES, MemoryRegion
from dslearn.sim.registers import VirtualRegister
from dslearn.sim.rules import ArgumentError, NotSupportedError, RuleError, enforced
from dslearn.sim.tensor import NkiTensor

SBUF = (MemoryRegion.sbuf,)
PSUM = (MemoryRegion.psum,)
CHIP = (*SBUF, *PSUM)
FREE_DIMS = 4
MOST_ELEMENTS = 65536  # per partition and operand


def tensor(op: str, operand: str, value: Any) -> NkiTensor:
    """`value`, which must be a tensor.

    Raises:
        ArgumentError: something else.
    """
    if isinstance(value, NkiTensor):
        return value
    raise ArgumentError(
        f"{op} {operand} must be a tensor, got {type(value).__name__}", rule="arguments"
    )


def tile(op: str, operand: str, value: Any, regions: tuple[MemoryRegion, ...] = CHIP) -> NkiTensor:
    """`value` as an on-chip operand: right memory, a legal start, a rank that an engine walks.

    Raises:
        ArgumentError, RuleError: see the rules region, start-partition, tile-rank, operand.
    """
    t = tensor(op, operand, value)
    if t.storage.region not in regions:
        raise RuleError(
            f"{op} {operand} must be in {[r.value for r in regions]}, got {t.buffer.value}: "
            f"{'dma_copy it to SBUF first' if not t.on_chip else 'copy it first'}",
            rule="region",
        )
    partitions(op, operand, t)
    if t.size > MOST_ELEMENTS * t.shape[0]:
        raise RuleError(
            f"{op} {operand} has {t.size // t.shape[0]} elements per partition: at most "
            f"{MOST_ELEMENTS}, use several instructions",
            rule="operand",
        )
    return t


def partitions(op: str, operand: str, t: NkiTensor, active: int = 0) -> None:
    """Check start partition and rank of an on-chip operand; no tile has more than 128 partitions.

    `active` is the number of partitions that the instruction works on, if that is more.

    Raises:
        RuleError: see the rules start-partition, tile-rank.
    """
    rows = max(t.shape[0], active)
    start = t.offset // t.row_elements if t.row_elements else 0
    allowed = 128 if rows > 64 else 64 if rows > 32 else 32
    if start % allowed and enforced("start-partition"):
        raise RuleError(
            f"{op} {operand} starts at partition {start} with {rows} partitions: "
            f"{rows} must start at a multiple of {allowed}; move the data to another tile",
            rule="start-partition",
        )
    if len(t.shape) > FREE_DIMS + 1 and merged_dims(t) > FREE_DIMS:
        raise RuleError(
            f"{op} {operand} {t!r} needs {merged_dims(t)} free strides: at most {FREE_DIMS}",
            rule="tile-rank",
        )


def merged_dims(t: NkiTensor) -> int:
    """Free dimensions of `t` after merging those that one stride walks."""
    count, expected = 0, None
    for size, stride in zip(reversed(t.shape[1:]), reversed(t.strides[1:]), strict=True):
        if size == 1:
            continue
        if stride != expected:
            count += 1
        expected = size * stride
    return count


def free(t: NkiTensor) -> int:
    """N: elements per partition."""
    return t.size // t.shape[0]


def same_shape(op: str, dst: NkiTensor, **sources: NkiTensor) -> None:
    """Check that all operands have the partitions and the N of `dst`.

    Raises:
        RuleError: they do not.
    """
    for name, source in sources.items():
        if source.shape[0] != dst.shape[0] or source.size != dst.size:
            raise RuleError(
                f"{op} {name} {source.shape} and dst {dst.shape} must agree in partitions and in "
                f"elements per partition ({free(source)} and {free(dst)}); nothing broadcasts, "
                "use .broadcast() on a free dimension",
                rule="shape",
            )


def one_bank(op: str, t: NkiTensor) -> None:
    """Check that PSUM view `t` lies within one bank.

    Raises:
        RuleError: it does not.
    """
    low, high = layout.reach(t.shape[1:], t.strides[1:])
    column = t.offset % t.row_elements
    first = t.storage.bank + (column + low) * t.itemsize
    last = t.storage.bank + (column + high) * t.itemsize + t.itemsize - 1
    if first // BANK_BYTES != last // BANK_BYTES:
        raise RuleError(
            f"{op} dst {t!r} takes bytes {first} to {last} of its partitions: it must stay within "
            f"one PSUM bank of {BANK_BYTES}; use a tile of its own, or fewer columns",
            rule="psum-bank",
        )


def not_both_psum(op: str, a: NkiTensor, b: NkiTensor, names: str) -> None:
    """Check that at most one of two inputs lies in PSUM.

    Raises:
        RuleError: both do.
    """
    if a.buffer is MemoryRegion.psum and b.buffer is MemoryRegion.psum:
        raise RuleError(f"{op} {names} are both in PSUM: copy one to SBUF", rule="two-psum")


def same_dtype(op: str, dst: NkiTensor, **sources: NkiTensor) -> None:
    """Check that the operands of an instruction that moves bits have the dtype of `dst`.

    Raises:
        RuleError: they do not.
    """
    for name, source in sources.items():
        if source.dtype != dst.dtype:
            raise RuleError(
                f"{op} {name} is {source.dtype} and dst {dst.dtype}: it moves bits, the dtypes "
                "must be the same; tensor_copy casts",
                rule="dtype",
            )


def computable(op: str, **operands: NkiTensor) -> None:
    """Check that trn2 computes with the operands' dtypes.

    Raises:
        RuleError: e4m3fn, e8m0 or packed quadruples.
    """
    for name, t in operands.items():
        if t.dtype in PACKED or t.dtype in ("float8_e4m3fn", "float8_e8m0fnu"):
            raise RuleError(
                f"{op} {name} is {t.dtype}: trn2 computes with float8_e4m3 and float8_e5m2; "
                "view the bytes as uint8 or float8_e4m3",
                rule="dtype",
            )


def integers(op: str, **operands: NkiTensor) -> None:
    """Check that operands of a bit operation are integers.

    Raises:
        RuleError: a float.
    """
    for name, t in operands.items():
        if t.dtype in FLOATS:
            raise RuleError(
                f"{op} {name} is {t.dtype}: bit operations take integers; use .view(dtype)",
                rule="dtype",
            )


def per_partition(op: str, operand: str, value: Any, rows: int) -> float | np.ndarray:
    """A scalar operand: a Python number, or a (P, 1) fp32 tile as an array [P, 1].

    Raises:
        RuleError: a tile of another shape or dtype.
        ArgumentError: neither.
    """
    if isinstance(value, NkiTensor):
        t = tile(op, operand, value)
        if t.dtype != "float32" or t.shape[0] != rows or free(t) != 1:
            raise RuleError(
                f"{op} {operand} {t!r}: a tile operand is ({rows}, 1) float32, one scalar per "
                "partition",
                rule="operand",
            )
        return load32(t, f"{op} {operand}").reshape(rows, 1)
    if isinstance(value, VirtualRegister):
        raise RuleError(
            f"{op} {operand} is a register: store it to a (P, 1) float32 tile", rule="register"
        )
    if isinstance(value, numbers.Real):
        return float(value)
    raise ArgumentError(
        f"{op} {operand}={value!r}: a number or a ({rows}, 1) float32 tile", rule="arguments"
    )


def choose(op: str, asked: Any, allowed: tuple[str, ...], why: str = "") -> str:
    """The engine that executes: the one asked for if it may, else the first of `allowed`.

    Raises:
        RuleError: the engine asked for cannot do it.
    """
    wanted = member(engine, asked, f"{op} engine")
    if wanted is engine.unknown:
        return allowed[0]
    if wanted.name not in allowed:
        raise RuleError(
            f"{op} on engine {wanted.name}: {' or '.join(allowed)} can do it{why}", rule="engine"
        )
    return wanted.name


def trn3(op: str, instead: str) -> NotSupportedError:
    """The exception for an instruction that came with trn3."""
    return NotSupportedError(f"{op} came with trn3: {instead}", rule="platform")
