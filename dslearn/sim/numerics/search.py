"""Searching a row: the eight largest, where they are, top-k, nonzeros, segments.

Values are compared in fp32. Legend: P partitions, F elements per partition (free axes flattened),
G = P/16 GpSimd groups. Source: docs/reference/nki.md, "Search and gather".
"""

from __future__ import annotations

import numpy as np

from dslearn.sim.numerics.casts import Array

MISSING = 0xFFFFFFFF  # all ones; cut to uint16 it is 0xFFFF, which is what a uint16 dst gets
GROUP = 16  # partitions that share one GpSimd core


def max8(x: Array) -> Array:
    """The eight largest of each partition, descending: fp32 [P, 8] of fp32 [P, F], F >= 8.

    NaN counts as larger than any number, so that it is seen (undocumented, chosen here).
    """
    rows = x.reshape(x.shape[0], -1)
    largest = np.partition(rows, rows.shape[1] - 8, axis=1)[:, -8:]
    return np.sort(largest, axis=1)[:, ::-1]


def find_index8(data: Array, vals: Array) -> Array:
    """Where each of eight values occurs first: uint32 [P, 8].

    Equal values take successive occurrences, in ascending order of position and of slot. A value
    that does not occur (again), and NaN, gives MISSING.

    Args:
        data: fp32 [P, F].
        vals: fp32 [P, 8].
    """
    return _locate(data, vals, range(8))


def match_replace8(data: Array, vals: Array, imm: float) -> tuple[Array, Array]:
    """Replace the first occurrence of each of eight values: (fp32 like `data`, uint32 [P, 8]).

    Slots are served from 7 down to 0, so of equal values the highest slot gets the lowest
    position: the opposite order to `find_index8`. An element is matched at most once, and never
    after it was replaced (the documentation leaves open what happens when `imm` is among `vals`).
    A value that does not occur replaces nothing; its position is MISSING.

    Args:
        data: fp32 [P, ...]; the free axes count as one.
        vals: fp32 [P, 8].
        imm: the number written.
    """
    positions = _locate(data, vals, range(7, -1, -1))
    out = data.copy()
    rows = out.reshape(data.shape[0], -1)
    places = np.arange(rows.shape[0])[:, None] * rows.shape[1] + positions
    rows.reshape(-1)[places[positions != MISSING]] = imm
    return out, positions


def _locate(data: Array, vals: Array, order: range) -> Array:
    """Positions [P, 8] of the values, slots served in this order, each element given out once."""
    rows, wanted = data.reshape(data.shape[0], -1), vals.reshape(vals.shape[0], 8)
    ascending = np.sort(wanted, axis=1)
    if (ascending[:, 1:] == ascending[:, :-1]).any():
        return _in_turn(rows, wanted, order)
    hits = rows[:, None, :] == wanted[:, :, None]
    first = hits.argmax(axis=2)
    found = np.take_along_axis(hits, first[:, :, None], axis=2)[:, :, 0]
    return np.where(found, first, MISSING).astype(np.uint32)


def _in_turn(rows: Array, wanted: Array, order: range) -> Array:
    """`_locate` where values repeat: slot by slot, crossing out what was given away."""
    left = rows.copy()
    flat, starts = left.reshape(-1), np.arange(left.shape[0]) * left.shape[1]
    positions = np.empty(wanted.shape[::-1], dtype=np.uint32)
    for slot in order:
        hits = left == wanted[:, slot, None]
        first = hits.argmax(axis=1)
        at = starts + first
        found = hits.reshape(-1).take(at)
        positions[slot] = np.where(found, first, MISSING)
        flat[at[found]] = np.nan  # equals nothing from now on
    return np.ascontiguousarray(positions.T)


def topk(src: Array, n: int, k: int) -> tuple[Array, Array, Array]:
    """The k largest of each 16-partition snake, ascending: (fp32, uint32, bool), each [P, C].

    A snake is a row of n elements over 16 partitions, element s at partition s % 16 and column
    s // 16. The answers lie the same way: the j-th smallest of the k, and its s, at partition
    j % 16 and column j // 16 of the group, in C = ceil(k/16) columns; the bool array marks the
    places that hold an answer. NaN ranks as infinity.

    Not certain: the vendor's page gives a row of k per partition, its own kernel library reads
    the layout above, and neither says which of two equal values is kept (here: the lower s; in
    the ascending answer the higher s of two equal ones comes first, as in that library's check).

    Args:
        src: fp32 [P, columns] with P % 16 == 0 and columns >= ceil(n/16).
    """
    groups = src.shape[0] // GROUP
    rows = src.reshape(groups, GROUP, -1).transpose(0, 2, 1).reshape(groups, -1)[:, :n]
    best = _largest(rows, k)[:, ::-1]
    values = np.take_along_axis(rows, best, axis=1)
    held = np.ones(best.shape, dtype=bool)
    return _snake(values), _snake(best.astype(np.uint32)), _snake(held)


def _largest(rows: Array, k: int) -> Array:
    """Positions [G, k] of the largest of fp32 [G, n], falling, equal ones by rising position.

    Integers of value above position sort several times faster than a stable argsort.
    """
    plain = np.where(np.isnan(rows), np.float32(np.inf), rows + np.float32(0))  # -0.0 becomes 0.0
    bits = plain.view(np.uint32)
    falling = np.where(bits >> 31, bits, ~bits & np.uint32(0x7FFFFFFF)).astype(np.uint64)
    keys = falling << np.uint64(32) | np.arange(rows.shape[1], dtype=np.uint64)
    best = np.sort(np.partition(keys, k - 1, axis=1)[:, :k], axis=1)
    return (best & np.uint64(0xFFFFFFFF)).astype(np.intp)


def _snake(rows: Array) -> Array:
    """Rows [G, k] laid over 16 partitions each: [16 G, ceil(k/16)], zero where nothing lies."""
    groups, length = rows.shape
    columns = -(-length // GROUP)
    padded = np.zeros((groups, columns * GROUP), dtype=rows.dtype)
    padded[:, :length] = rows
    return padded.reshape(groups, columns, GROUP).transpose(0, 2, 1).reshape(-1, columns)


def nonzero_with_count(src: Array, index_offset: int = 0, padding_val: int = -1) -> Array:
    """Positions of the nonzeros, padding, and their count: int32 [ceil(P/16), F+1] of [P, F].

    Row g is for partition 16 g, the only one of its group that is read and written. NaN counts
    as nonzero.
    """
    rows = src.reshape(src.shape[0], -1)[::GROUP]
    out = np.full((rows.shape[0], rows.shape[1] + 1), padding_val, dtype=np.int32)
    for row, result in zip(rows, out, strict=True):
        found = np.flatnonzero(row)
        result[: found.size] = found + index_offset
        result[-1] = found.size
    return out


def sequence_bounds(segment_ids: Array) -> Array:
    """Start and end (exclusive) of the run each element belongs to: [P, 2, F] of [P, F].

    Runs are stretches of equal neighbours. Id 0 is padding and gets start F and end -1.
    """
    ids = segment_ids.reshape(segment_ids.shape[0], -1)
    length = ids.shape[1]
    places = np.arange(length)
    breaks = ids[:, 1:] != ids[:, :-1]
    edge = np.ones((ids.shape[0], 1), dtype=bool)
    starts = np.where(np.hstack([edge, breaks]), places, 0)
    ends = np.where(np.hstack([breaks, edge]), places + 1, length)
    first = np.maximum.accumulate(starts, axis=1)
    last = np.minimum.accumulate(ends[:, ::-1], axis=1)[:, ::-1]
    padding = ids == 0
    bounds = [np.where(padding, length, first), np.where(padding, -1, last)]
    return np.stack(bounds, axis=1).astype(segment_ids.dtype)
