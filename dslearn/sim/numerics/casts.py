"""Casts: every dtype to fp32 and back, one rounding each way at most.

Engines compute in fp32. `widen` is what happens on the way in (always exact, but for 32-bit
integers above 2^24), `narrow` what happens on the way out. Source: docs/reference/nki.md, "Casts".

Speed decides what a simulated GEMM costs, so the 8-bit formats go through tables: two codes at a
time on the way in, and on the way out the upper half of the fp32 pattern, whose last bit is set
when anything below it was lost. Those 16 bits round like the full 32 for every format with at most
five mantissa bits. bfloat16 needs none of this, ml_dtypes' own loop is faster than bit arithmetic.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
DType = np.dtype[Any]

FP32 = np.dtype(np.float32)
FLOAT8 = frozenset(
    np.dtype(t)
    for t in (
        ml_dtypes.float8_e4m3,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e8m0fnu,
    )
)
PAIRS_FROM = 2048  # elements: below this the 256-entry table, which stays in the first cache, wins


@cache
def _values(dtype: DType) -> Array:
    """fp32 [256]: the value of each code of an 8-bit float."""
    return np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)


@cache
def _value_pairs(dtype: DType) -> Array:
    """uint64 [65536]: two fp32 values for two codes read as one little-endian uint16."""
    codes = np.arange(65536, dtype=np.uint16).view(np.uint8)
    return _values(dtype)[codes].view(np.uint64)


@cache
def _codes(dtype: DType) -> Array:
    """uint8 [65536]: the code nearest to each upper half of an fp32 pattern, ties to even."""
    patterns = np.arange(65536, dtype=np.uint32) << 16
    with np.errstate(all="ignore"):
        return patterns.view(np.float32).astype(dtype).view(np.uint8)


def widen(a: Array) -> Array:
    """The values of `a` as fp32, in the same shape; fp32 comes back as the same array.

    Exact for every dtype but int32 and uint32, which round to the nearest fp32 (ties to even).
    Source: docs/reference/nki.md, "Casts".
    """
    if a.dtype == FP32:
        return a
    if a.dtype not in FLOAT8:
        return a.astype(np.float32)
    codes = np.ascontiguousarray(a).view(np.uint8)
    if codes.size < PAIRS_FROM or codes.size % 2:
        return _values(a.dtype).take(codes)
    pairs = _value_pairs(a.dtype).take(codes.reshape(-1).view(np.uint16))
    return pairs.view(np.float32).reshape(a.shape)


def narrow(x: Array, dtype: DType, tf32: bool = False) -> Array:
    """fp32 values rounded once to `dtype`: to the nearest, ties to even.

    Overflow is not clamped: float8_e4m3 (largest 240) gives infinity from 248 on, float8_e4m3fn
    (448, no infinity) gives NaN, the other floats infinity. What the hardware gives for float8 is
    not documented, so kernels clamp first. Integers saturate; NaN becomes 0, a choice made here.
    float8_e8m0fnu holds powers of two, 2^-127 to 2^127: zero, negative numbers and infinity become
    what ml_dtypes makes of them.

    Args:
        x: fp32, any shape.
        dtype: NumPy dtype of the result; fp32 returns `x` itself.
        tf32: keep 10 mantissa bits and stay in fp32 (tfloat32 has no dtype of its own).
    Source: docs/reference/nki.md, "Casts".
    """
    if tf32:
        return round_tf32(x)
    if dtype == FP32:
        return x
    if dtype in FLOAT8:
        return _narrow_float8(x, dtype)
    if dtype.kind in "iu":
        return _saturate(x, dtype)
    with np.errstate(all="ignore"):
        return x.astype(dtype)


def _narrow_float8(x: Array, dtype: DType) -> Array:
    halves = np.ascontiguousarray(x).view(np.uint16).reshape(-1, 2)
    upper = halves[:, 1] | (halves[:, 0] != 0)  # little-endian: [lower, upper]
    return _codes(dtype).take(upper).view(dtype).reshape(x.shape)


def _saturate(x: Array, dtype: DType) -> Array:
    limits = np.iinfo(dtype)
    whole = np.rint(x)
    if dtype.itemsize == 4:  # 2^31 - 1 is no fp32 number
        whole = whole.astype(np.float64)
    whole = np.where(np.isnan(whole), whole.dtype.type(0), whole)
    return whole.clip(limits.min, limits.max).astype(dtype)


def round_tf32(x: Array) -> Array:
    """fp32 values with the mantissa rounded to 10 bits, ties to even; NaN stays as it is."""
    bits = x.view(np.uint32)
    nearest = (bits + (np.uint32(0xFFF) + ((bits >> 13) & 1))) & np.uint32(0xFFFFE000)
    return np.where(np.isnan(x), x, nearest.view(np.float32))


def convert(a: Array, dtype: DType, tf32: bool = False) -> Array:
    """`a` in another dtype, as a copy instruction or a DMA makes it.

    The same dtype is a copy of the bits (so int32 stays exact, and a NaN keeps its payload);
    anything else goes through fp32. Source: docs/reference/nki.md, "Casts".
    """
    if a.dtype == dtype and not tf32:
        return a.copy()
    return narrow(widen(a), dtype, tf32)
