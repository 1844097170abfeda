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
    if not (wanted[:, 1:] < wanted[:, :-1]).all():  # max8 gives different values in this order
        return _in_turn(rows, wanted, order)
    columns, slots = np.ascontiguousarray(rows.T), np.ascontiguousarray(wanted.T)
    hits = np.flatnonzero(columns == slots[:, None, :])  # few, numbered [slot, place, partition]
    slot = hits // columns.size
    hits -= slot * columns.size
    place = hits // len(rows)
    partition = hits - place * len(rows)
    positions = np.full(wanted.shape, MISSING, dtype=np.uint32)
    np.minimum.at(positions.reshape(-1), 8 * partition + slot, place.astype(np.uint32))
    return positions


def _in_turn(rows: Array, wanted: Array, order: range) -> Array:
    """`_locate` where values may repeat: slot by slot, crossing out what was given away."""
    partitions, length = rows.shape
    left = np.full((partitions, length + 1), np.nan, dtype=np.float32)
    left[:, 1:] = rows  # NaN equals nothing: a value that is not there is found in column 0
    flat, starts = left.reshape(-1), np.arange(0, left.size, length + 1)
    found = np.empty((8, partitions), dtype=np.intp)
    for slot in order:
        (left == wanted[:, slot, None]).argmax(axis=1, out=found[slot])
        flat[starts + found[slot]] = np.nan
    return np.ascontiguousarray((found - 1).astype(np.uint32).T)  # -1 becomes MISSING


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
        src: bf16 values as fp32 [P, columns] with P % 16 == 0 and columns >= ceil(n/16).
        n: below 2^16.
    """
    groups = src.shape[0] // GROUP
    rows = src.reshape(groups, GROUP, -1).transpose(0, 2, 1).reshape(groups, -1)[:, :n]
    best = _largest(rows, k)[:, ::-1]
    values = np.take_along_axis(rows, best, axis=1)
    held = np.ones(best.shape, dtype=bool)
    return _snake(values), _snake(best.astype(np.uint32)), _snake(held)


def _largest(rows: Array, k: int) -> Array:
    """Positions [G, k] of the largest of fp32 [G, n], falling, equal ones by rising position.

    The 16 bits of a bf16 value above 16 bits of position sort many times faster than a stable
    argsort.
    """
    with np.errstate(invalid="ignore"):  # some patterns of NaN
        plain = rows + np.float32(0)  # -0.0 becomes 0.0
    np.copyto(plain, np.float32(np.inf), where=np.isnan(rows))
    bits = plain.view(np.int32)
    falling = (bits ^ ~(bits >> 31) & 0x7FFFFFFF) & ~0xFFFF  # positive numbers turned round
    keys = falling.view(np.uint32) | np.arange(rows.shape[1], dtype=np.uint32)
    best = np.sort(np.partition(keys, k - 1, axis=1)[:, :k], axis=1)
    return (best & np.uint32(0xFFFF)).astype(np.intp)


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
