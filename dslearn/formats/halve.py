"""Half of every e4m3 value, on bytes: the table `tables.E4M3_HALVED` at memory speed.

A byte-by-byte table look-up runs at 0.1 to 0.7 GB/s. The table is a formula, though: the code of
half the value is c - min((m >> 1) | (m & 1), 8), where m is c without its sign. Codes from 0x10 up
lose one exponent, 8 codes; codes below count in steps of 2^-9, which are halved, ties to even.
Only NaN (m = 0x7f) is not covered. Vector operations on pieces that stay in the cache run at 2 GB/s
and more per core; `benchmarks/rescale.py` measures it.
Source: docs/reference/formats.md, "Device convention".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from dslearn.errors import FormatError
from dslearn.formats import tables

Bytes: TypeAlias = NDArray[np.uint8]
T = TypeVar("T")

PIECE = 1 << 18  # bytes worked on at a time: these and three buffers fill 1 MiB of cache
MAGNITUDE = np.uint8(0x7F)
TABLE = np.array(tables.E4M3_HALVED, dtype=np.uint8)
_LOSS = np.arange(256, dtype=np.uint8) - TABLE
_EIGHTS = np.full(PIECE, 8, dtype=np.uint8)  # np.minimum with a scalar is 15 times slower
_ONE = np.uint8(1)


def losses(size: Bytes, loss: Bytes) -> None:
    """What halving takes away from each code.

    Args:
        size: codes without sign (c & 0x7f), 1-D; used up.
        loss: receives c - TABLE[c], 1-D, equally long.
    """
    for start in range(0, size.size, PIECE):
        m, d = size[start : start + PIECE], loss[start : start + PIECE]
        if m.max() == tables.E4M3_NAN:
            d[:] = _LOSS[m]
            continue
        np.right_shift(m, _ONE, out=d)
        np.bitwise_and(m, _ONE, out=m)
        np.bitwise_or(d, m, out=d)
        np.minimum(d, _EIGHTS[: d.size], out=d)


def halve(codes: Bytes, threads: int = 2, out: Bytes | None = None) -> Bytes:
    """Codes of half the values: `TABLE[codes]`, in pieces, on several threads.

    Args:
        codes: e4m3 codes, any shape, C-contiguous.
        threads: NumPy lets go of the interpreter inside every operation, so threads add up.
        out: where to write, same shape, C-contiguous; `codes` itself halves in place. A new array
            costs more than the work: the system hands out its pages one by one.

    Returns:
        `out`, or a new array.

    Raises:
        FormatError: an array that is not C-contiguous uint8, or an `out` of another shape.
    """
    out = np.empty_like(codes) if out is None else out
    for array in (codes, out):
        if array.dtype != np.uint8 or not array.flags.c_contiguous or array.shape != codes.shape:
            raise FormatError(
                f"halve of {codes.dtype} {codes.shape} into {out.dtype} {out.shape}: both must be "
                "C-contiguous uint8 arrays of one shape; np.ascontiguousarray makes one"
            )
    source, target = codes.reshape(-1), out.reshape(-1)
    share = max(1, -(-source.size // (threads * PIECE))) * PIECE

    def work(first: int) -> None:
        size, loss = np.empty(PIECE, np.uint8), np.empty(PIECE, np.uint8)
        for start in range(first, min(first + share, source.size), PIECE):
            piece = source[start : start + PIECE]
            m, d = size[: piece.size], loss[: piece.size]
            np.bitwise_and(piece, MAGNITUDE, out=m)
            losses(m, d)
            np.subtract(piece, d, out=target[start : start + PIECE])

    in_threads(work, range(0, source.size, share), threads)
    return out


def in_threads(work: Callable[[T], None], shares: Sequence[T], threads: int) -> None:
    """Call `work` for every share, at once when there are several; errors are raised here."""
    if threads < 2 or len(shares) < 2:
        for share in shares:
            work(share)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, shares))
