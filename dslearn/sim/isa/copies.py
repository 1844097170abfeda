"""Copies between on-chip tiles: tensor_copy, memset, tensor_copy_predicated.

P partitions, N elements per partition. Source: docs/reference/nki.md, section "Data movement".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dslearn.sim.access import load, store, store_as
from dslearn.sim.dtypes import FLOATS, NUMPY, PACKED, WORDS
from dslearn.sim.isa import checks
from dslearn.sim.isa.enums import engine as engines
from dslearn.sim.memory import MemoryRegion
from dslearn.sim.numerics.casts import narrow
from dslearn.sim.program import NkiInstruction, current
from dslearn.sim.rules import ArgumentError, RuleError
from dslearn.sim.tensor import NkiTensor


def _engines(*tiles: NkiTensor) -> tuple[str, ...]:
    """Who can copy these: GpSimd does not reach PSUM."""
    psum = any(t.buffer is MemoryRegion.psum for t in tiles)
    return ("vector", "scalar") if psum else ("vector", "scalar", "gpsimd")


def tensor_copy(
    dst: NkiTensor, src: NkiTensor, engine: Any = engines.unknown, name: str | None = None
) -> NkiInstruction:
    """dst = src, both on chip [P, N]; bits when dtypes agree, else through fp32, rounded once.

    Raises:
        RuleError: rules region, partition-limit, start-partition, shape, engine, uninitialised.
    """
    dst = checks.tile("tensor_copy", "dst", dst)
    src = checks.tile("tensor_copy", "src", src)
    checks.same_shape("tensor_copy", dst, src=src)
    if src.dtype != dst.dtype:
        checks.computable("tensor_copy", dst=dst, src=src)
    who = checks.choose("tensor_copy", engine, _engines(dst, src), " (GpSimd not with PSUM)")
    store_as(dst, load(src, "tensor_copy src").reshape(dst.shape))
    return current().emit("tensor_copy", who, (dst,), (src,), name)


def memset(
    dst: NkiTensor, value: Any, engine: Any = engines.unknown, name: str | None = None
) -> NkiInstruction:
    """dst[...] = value, on chip.

    Raises:
        RuleError: rules region, operand (a float for an integer tile), engine, ...
    """
    dst = checks.tile("memset", "dst", dst)
    psum = dst.buffer is MemoryRegion.psum
    who = checks.choose("memset", engine, ("vector",) if psum else ("vector", "gpsimd"))
    store(dst, np.broadcast_to(_constant("memset value", value, dst), dst.shape))
    return current().emit("memset", who, (dst,), (), name, value=value)


def tensor_copy_predicated(
    dst: NkiTensor,
    src: Any,
    predicate: NkiTensor,
    reverse_pred: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """dst = src where predicate is not zero (with `reverse_pred`: is zero); dst stays elsewhere.

    dst and predicate are tiles [P, N] on chip, src is one of the dtype of dst, or a number.

    Raises:
        RuleError: rules region, shape, dtype (predicate uint8, uint16 or uint32), two-psum, ...
    """
    at = "tensor_copy_predicated"
    dst = checks.tile(at, "dst", dst)
    predicate = checks.tile(at, "predicate", predicate)
    if predicate.dtype not in ("uint8", "uint16", "uint32"):
        raise RuleError(
            f"{at} predicate is {predicate.dtype}: must be uint8, uint16 or uint32", rule="dtype"
        )
    checks.same_shape(at, dst, predicate=predicate)
    if isinstance(src, NkiTensor):
        checks.tile(at, "src", src)
        checks.same_shape(at, dst, src=src)
        checks.same_dtype(at, dst, src=src)
        checks.not_both_psum(at, src, predicate, "src and predicate")
        values = load(src, f"{at} src").reshape(dst.shape)
    else:
        values = np.broadcast_to(_constant(f"{at} src", src, dst), dst.shape)
    chosen = (load(predicate, f"{at} predicate") != 0).reshape(dst.shape) != bool(reverse_pred)
    store(dst, values, only=chosen)
    tiles = (src, predicate) if isinstance(src, NkiTensor) else (predicate,)
    return current().emit(at, "vector", (dst,), tiles, name)


def _constant(what: str, value: Any, dst: NkiTensor) -> np.ndarray:
    """`value` as one element [1] of the dtype of `dst`: an int, or for float tiles a number."""
    whole = isinstance(value, int | np.integer | np.bool_)
    if not whole and not isinstance(value, float | np.floating):
        raise ArgumentError(f"{what} {value!r}: must be a number", rule="arguments")
    if dst.dtype in PACKED and value != 0:
        raise RuleError(f"{what} {value!r} for {dst.dtype}: only 0", rule="operand")
    if dst.dtype in PACKED:
        value, whole = 0, True
    if dst.dtype in FLOATS and dst.dtype not in PACKED:
        wide = np.array([value], np.float32)
        return narrow(wide, NUMPY[dst.dtype], tf32=dst.dtype == "tfloat32")
    if not whole:
        raise RuleError(
            f"{what} {value!r} for a tile of {dst.dtype}: give an int literal", "operand"
        )
    width = 8 * dst.itemsize
    if not -(1 << (width - 1)) <= value < 1 << width:
        raise RuleError(f"{what} {value!r} does not fit {dst.dtype}", rule="operand")
    word = np.array([int(value) & ((1 << width) - 1)], WORDS[dst.itemsize])
    return word.view(NUMPY[dst.dtype])
