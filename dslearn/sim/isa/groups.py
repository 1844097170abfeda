"""Searches that GpSimd makes in groups of 16 partitions: topk, nonzero_with_count, sequence_bounds.

P partitions, N elements per partition. Source: docs/reference/nki.md, section "Search and gather".
"""

from __future__ import annotations

import numpy as np

from dslearn.sim.access import Place, store, store_as
from dslearn.sim.dtypes import NUMPY
from dslearn.sim.isa import checks, operands
from dslearn.sim.numerics import search
from dslearn.sim.numerics.casts import narrow
from dslearn.sim.numerics.search import GROUP
from dslearn.sim.program import NkiInstruction, current
from dslearn.sim.rules import RuleError
from dslearn.sim.tensor import NkiTensor

N_LIMIT, K_LIMIT = 65536, 32768


def topk(
    val_dst: NkiTensor, idx_dst: NkiTensor, src: NkiTensor, n: int, name: str | None = None
) -> NkiInstruction:
    """The k largest of each 16-partition row and their places, ascending, on GpSimd.

    A group's row is a snake: element s at partition s % 16, column s // 16 of `src` (bf16), n of
    them. k is the free size of `val_dst` (bf16) and `idx_dst` (uint32). The j-th answer lies at
    partition j % 16, column j // 16: the vendor's library reads it there, its reference page
    promises rows of k instead, so the other columns keep what they held and count as written.

    Raises:
        RuleError: rules region, dtype, shape, operand, uninitialised.
    """
    at = "topk"
    src = checks.tile(at, "src", src, checks.SBUF)
    val_dst = checks.tile(at, "val_dst", val_dst, checks.SBUF)
    idx_dst = checks.tile(at, "idx_dst", idx_dst, checks.SBUF)
    for what, t, kind in (
        ("src", src, "bfloat16"), ("val_dst", val_dst, "bfloat16"), ("idx_dst", idx_dst, "uint32")
    ):  # fmt: skip
        if t.dtype != kind:
            raise RuleError(f"{at} {what} is {t.dtype}: must be {kind}", rule="dtype")
    n, k, p = operands.integer(at, "n", n), checks.free(val_dst), src.shape[0]
    if not 8 <= n < N_LIMIT or not 1 <= k <= min(n, K_LIMIT - 1):
        raise RuleError(
            f"{at} n={n}, k={k}: 8 <= n < {N_LIMIT}, k < {K_LIMIT}, k <= n", rule="operand"
        )
    columns = -(-n // GROUP)
    if p % GROUP or checks.free(src) < columns:
        raise RuleError(
            f"{at} src {src.shape}: partitions in sixteens and at least {columns} columns for "
            f"n={n}",
            rule="shape",
        )
    checks.same_shape(at, idx_dst, val_dst=val_dst)
    if val_dst.shape[0] != p:
        raise RuleError(f"{at} val_dst {val_dst.shape}: must have {p} partitions", rule="shape")
    values, places, held = search.topk(_snake(src, n, columns), n, k)
    _overlay(val_dst, narrow(values, NUMPY[val_dst.dtype]), held)
    _overlay(idx_dst, places, held)
    return current().emit(at, "gpsimd", (val_dst, idx_dst), (src,), name, n=n, k=k)


def _snake(src: NkiTensor, n: int, columns: int) -> np.ndarray:
    """The columns of `src` that hold the snake, fp32; only its n elements need be written."""
    flat = src.reshape((src.shape[0], checks.free(src)))
    full = n // GROUP
    out = np.zeros((src.shape[0], columns), np.float32)
    if full:
        out[:, :full] = operands.rows(flat[:, :full], "topk src")
    if n % GROUP:
        for start in range(0, src.shape[0], GROUP):
            step, rows = flat.strides[0], n % GROUP
            offset = flat.offset + start * step + full * flat.strides[1]
            tail = flat.derive((rows, 1), flat.strides, offset)
            out[start : start + rows, full:] = operands.rows(tail, "topk src")
    return out


def _overlay(dst: NkiTensor, values: np.ndarray, held: np.ndarray) -> None:
    """Write `values` where `held`, columns from 0; everything else keeps its value."""
    whole = Place(dst).of(dst.storage.data, NUMPY[dst.dtype]).reshape(dst.shape[0], -1).copy()
    part = whole[:, : values.shape[1]]
    part[held] = values[held]
    store(dst, whole)


def nonzero_with_count(
    dst: NkiTensor,
    src: NkiTensor,
    index_offset: int = 0,
    padding_val: int = -1,
    name: str | None = None,
) -> NkiInstruction:
    """dst (P, N+1) = places of the nonzeros of `src` (P, N), padding, and last their count.

    Only partitions 0, 16, ..., 112 are read and written. src fp32 or int32, dst int32, SBUF.

    Raises:
        RuleError: rules region, dtype, shape, operand, uninitialised.
    """
    at = "nonzero_with_count"
    dst = checks.tile(at, "dst", dst, checks.SBUF)
    src = checks.tile(at, "src", src, checks.SBUF)
    if src.dtype not in ("float32", "int32") or dst.dtype != "int32":
        raise RuleError(
            f"{at} src is {src.dtype}, dst {dst.dtype}: float32 or int32 to int32", rule="dtype"
        )
    if dst.shape[0] != src.shape[0] or checks.free(dst) != checks.free(src) + 1:
        raise RuleError(
            f"{at} dst {dst.shape}: one element per partition more than src {src.shape}", "shape"
        )
    offset = operands.integer(at, "index_offset", index_offset)
    padding = operands.integer(at, "padding_val", padding_val)
    rows = operands.raw(_every(src), f"{at} src")
    spread = np.repeat(rows, GROUP, axis=0)  # numerics picks every sixteenth again
    store(_every(dst), search.nonzero_with_count(spread, offset, padding))
    return current().emit(at, "gpsimd", (dst,), (src,), name)


def _every(t: NkiTensor) -> NkiTensor:
    """Partitions 0, 16, ... of `t`: what the first lane of each GpSimd core sees."""
    count = -(-t.shape[0] // GROUP)
    return t.derive((count, *t.shape[1:]), (GROUP * t.strides[0], *t.strides[1:]))


def sequence_bounds(
    dst: NkiTensor, segment_ids: NkiTensor, name: str | None = None
) -> NkiInstruction:
    """dst (1, 2, N) = first place and end of the segment of each element of `segment_ids` (1, N).

    Id 0 is padding and gets (N, -1). Both fp32 or int32, SBUF.

    Raises:
        RuleError: rules region, dtype, shape, uninitialised.
    """
    at = "sequence_bounds"
    dst = checks.tile(at, "dst", dst, checks.SBUF)
    ids = checks.tile(at, "segment_ids", segment_ids, checks.SBUF)
    for what, t in (("dst", dst), ("segment_ids", ids)):
        if t.dtype not in ("float32", "int32"):
            raise RuleError(f"{at} {what} is {t.dtype}: float32 or int32", rule="dtype")
    n = checks.free(ids)
    if ids.shape[0] != 1 or dst.shape != (1, 2, n):
        raise RuleError(
            f"{at} segment_ids {ids.shape}, dst {dst.shape}: must be (1, N) and (1, 2, N)", "shape"
        )
    store_as(dst, search.sequence_bounds(operands.raw(ids, f"{at} segment_ids")))
    return current().emit(at, "gpsimd", (dst,), (ids,), name)
