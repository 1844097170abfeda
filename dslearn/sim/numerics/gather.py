"""Moving elements: gathers within a partition, shuffles between partitions of a quadrant.

Bits are moved, so any dtype goes in and comes out unchanged. An offset outside the data raises
NumPy's IndexError; callers that want their own message look at the offsets first.
Legend: P partitions, F elements per partition, G = P/16 GpSimd groups. Source:
docs/reference/nki.md, "Search and gather".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dslearn.sim.numerics.casts import Array
from dslearn.sim.numerics.search import GROUP

QUADRANT = 32
KEEP = 255  # in a shuffle mask: leave the partition as it is


def local_offsets(index: Array, num_elem_per_idx: int = 1, num_valid: int | None = None) -> Array:
    """The element offsets that each group of 16 partitions gathers: int64 [G, n * e].

    A group reads its 16-partition slab of `index` column by column, keeps the first n values and
    takes e elements from each value on. Values are element offsets, not multiples of e.

    Args:
        index: unsigned integers [P, I], P % 16 == 0.
        num_elem_per_idx: e.
        num_valid: n, by default all 16 I of them.
    """
    groups = index.shape[0] // GROUP
    slabs = index.reshape(groups, GROUP, -1).transpose(0, 2, 1).reshape(groups, -1)
    starts = slabs[:, :num_valid].astype(np.int64)
    return (starts[:, :, None] + np.arange(num_elem_per_idx)).reshape(groups, -1)


def local_gather(src: Array, offsets: Array) -> Array:
    """Every partition of a group gathers the group's offsets: [P, n * e].

    Args:
        src: [P, F], free axes flattened.
        offsets: [G, n * e] from `local_offsets`.
    """
    return n_gather(src, np.repeat(offsets, GROUP, axis=0))


def n_gather(data: Array, indices: Array) -> Array:
    """Each partition gathers from its own flattened elements: the shape of `indices`.

    Args:
        data: [P, ...].
        indices: integers [P, ...].
    """
    rows = data.reshape(data.shape[0], -1)
    columns = indices.reshape(indices.shape[0], -1).astype(np.int64)
    return np.take_along_axis(rows, columns, axis=1).reshape(indices.shape)


def shuffle_pairs(mask: Sequence[int], partitions: int) -> tuple[Array, Array]:
    """Which source partition each destination partition copies: (destinations, sources).

    Args:
        mask: 32 entries, the source within the quadrant of 32 partitions or KEEP.
        partitions: of the destination; each of its quadrants uses the same mask.
    """
    rows = np.arange(partitions)
    entries = np.asarray(mask)[rows % QUADRANT]
    moved = entries != KEEP
    return rows[moved], (rows - rows % QUADRANT + entries)[moved]


def stream_shuffle(dst: Array, src: Array, mask: Sequence[int]) -> Array:
    """`dst` [P, ...] after the shuffle of `src`'s partitions; the arguments are left alone.

    Partitions of `src` that no entry names need not exist: one partition and a mask of zeros is a
    broadcast to 32.
    """
    destinations, sources = shuffle_pairs(mask, dst.shape[0])
    out = dst.copy()
    out[destinations] = src[sources].reshape(len(sources), *dst.shape[1:])
    return out
