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

PIECE = 1 << 18  # bytes worked on at a time: with two buffers and the eights, 1 MiB of cache
MAGNITUDE = np.uint8(0x7F)
TABLE = np.array(tables.E4M3_HALVED, dtype=np.uint8)
EIGHT = np.uint8(8)  # the most that a code loses
_EIGHTS = np.full(PIECE, EIGHT, dtype=np.uint8)  # np.minimum with a scalar is 15 times slower
_EVEN, _ODD, _ONE_BIT = np.uint8(0x7E), np.uint8(1), np.uint64(1)


def room(size: int) -> Bytes:
    """Scratch for `half_steps` of up to `size` codes: uint8 [2, size rounded up to words]."""
    return np.empty((2, -(-size // 8) * 8), dtype=np.uint8)


def half_steps(codes: Bytes, scratch: Bytes) -> tuple[Bytes, Bytes]:
    """(m >> 1) | (m & 1) of each code, and scratch of the same size: both 1-D parts of `scratch`.

    Args:
        codes: 1-D; what comes out for NaN is wrong, `keep_nan` knows.
        scratch: from `room`.
    """
    steps, odd = scratch[0, : codes.size], scratch[1, : codes.size]
    np.bitwise_and(codes, _EVEN, out=steps)
    padded = scratch[0, : -(-codes.size // 8) * 8]
    padded[codes.size :] = 0
    words = padded.view(np.uint64)  # single bytes shift far slower
    np.right_shift(words, _ONE_BIT, out=words)  # _EVEN: no bit goes to the byte below
    np.bitwise_and(codes, _ODD, out=odd)
    np.bitwise_or(steps, odd, out=steps)
    return steps, odd


def keep_nan(codes: Bytes, loss: Bytes) -> None:
    """Set `loss` to 0 where a code is NaN; both of one shape, C-contiguous."""
    if codes.size and (codes.max() == 0xFF or codes.view(np.int8).max() == tables.E4M3_NAN):
        loss[codes & MAGNITUDE == tables.E4M3_NAN] = 0


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
        scratch = room(PIECE)
        for start in range(first, min(first + share, source.size), PIECE):
            piece = source[start : start + PIECE]
            loss, _ = half_steps(piece, scratch)
            np.minimum(loss, _EIGHTS[: loss.size], out=loss)
            keep_nan(piece, loss)
            np.subtract(piece, loss, out=target[start : start + PIECE])

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
