"""nc_stream_shuffle: move partitions within quadrants of 32.

Source: docs/reference/nki.md, section "Search and gather".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dslearn.sim.access import load, store
from dslearn.sim.dtypes import NUMPY
from dslearn.sim.isa import checks
from dslearn.sim.numerics.gather import KEEP, QUADRANT, shuffle_pairs
from dslearn.sim.program import NkiInstruction, current
from dslearn.sim.rules import BoundsError, RuleError
from dslearn.sim.tensor import NkiTensor
from dslearn.sim.values import whole


def nc_stream_shuffle(
    dst: NkiTensor, src: NkiTensor, shuffle_mask: Sequence[int], name: str | None = None
) -> NkiInstruction:
    """Partition p of each quadrant of dst = partition shuffle_mask[p] of that quadrant of src.

    dst [P, N], src [Q, N], same dtype, SBUF or PSUM, in place or not; 255 leaves a partition of dst
    as it is. One partition and a mask of zeros is a broadcast to 32.

    Raises:
        RuleError: rules region, dtype, shape, start-partition, operand, uninitialised.
        BoundsError: the mask names a partition that src does not have.
    """
    at = "nc_stream_shuffle"
    dst, src = checks.tile(at, "dst", dst), checks.tile(at, "src", src)
    checks.same_dtype(at, dst, src=src)
    if checks.free(src) != checks.free(dst):
        raise RuleError(
            f"{at} src {src.shape} and dst {dst.shape} must agree in elements per partition",
            rule="shape",
        )
    active = max(dst.shape[0], src.shape[0])
    checks.partitions(at, "dst", dst, active)
    checks.partitions(at, "src", src, active)
    rows, sources = _pairs(shuffle_mask, dst, src)
    values = np.zeros(dst.shape, NUMPY[dst.dtype])
    values[rows] = load(src, f"{at} src")[sources].reshape(len(rows), *dst.shape[1:])
    moved = np.zeros(dst.shape, bool)
    moved[rows] = True
    store(dst, values, only=None if len(rows) == dst.shape[0] else moved)
    return current().emit(at, "vector", (dst,), (src,), name, moved=len(rows))


def _pairs(mask: Sequence[int], dst: NkiTensor, src: NkiTensor) -> tuple[np.ndarray, np.ndarray]:
    """(partitions of dst, partitions of src) that the mask connects."""
    entries = whole("nc_stream_shuffle shuffle_mask", mask)
    legal = {*range(QUADRANT), KEEP}
    if len(entries) != QUADRANT or not legal.issuperset(entries):
        raise RuleError(
            f"nc_stream_shuffle shuffle_mask={list(entries)}: {QUADRANT} integers, each 0 to "
            f"{QUADRANT - 1}, or {KEEP} to leave a partition as it is",
            rule="operand",
        )
    rows, sources = shuffle_pairs(entries, dst.shape[0])
    if len(sources) and sources.max() >= src.shape[0]:
        raise BoundsError(
            f"nc_stream_shuffle: the mask names partition {sources.max()} of src, which has "
            f"{src.shape[0]}; each quadrant of dst reads the same quadrant of src",
            rule="bounds",
        )
    return rows, sources
