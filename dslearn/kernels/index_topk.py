"""The best entries of each query, and the best blocks of entries; of equal ones the lowest."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dslearn.kernels.cuts import pieces, place
from dslearn.kernels.threshold import largest

LOWEST = -3.4028234663852886e38  # what hidden and taken entries count as; scores lie above
NEWEST = 3.0e38  # what the block of the newest visible entry counts as
GROUP = 16  # lanes of a row: GpSimd has a core for sixteen, which lists the first one's
ROWS = 8  # at once
SEARCH = 150_000  # entries times selected from which searching for the threshold is faster


def _lanes(rows: int, width: int, dtype: nl.DType) -> nl.NkiTensor:
    """A tile with 16 lanes for each row: all compute the same, and the first is listed."""
    return nl.ndarray(shape=(GROUP * rows, width), dtype=dtype, buffer=nl.sbuf)


def _spread(tile: nl.NkiTensor, source: nl.NkiTensor, first: int, rows: int) -> None:
    """Rows first.. of source [T, n] in HBM to 16 lanes each, columns 0 .. n - 1 of a tile."""
    some = source[first : first + rows, :].expand_dim(1).broadcast(1, GROUP)
    nisa.dma_copy(dst=tile[:, 0 : source.shape[1]], src=some)


def _gathered(target: nl.NkiTensor, tile: nl.NkiTensor, first: int, rows: int) -> None:
    """The first of each row's lanes to rows first.. of target [T, n] in HBM.

    Through HBM: no view on chip skips partitions.
    """
    count = target.shape[1]
    every = nl.ndarray(shape=(rows, GROUP, count), dtype=tile.dtype, buffer=nl.private_hbm)
    nisa.dma_copy(dst=every, src=tile[:, 0:count])
    nisa.dma_copy(dst=target[first : first + rows, :], src=every[:, 0, :])


def _visible(
    scores: nl.NkiTensor, counts: nl.NkiTensor, first: int, rows: int, width: int
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Scores [lanes, width] with LOWEST from each row's count on, and the counts; fp32."""
    given = _lanes(rows, width, nl.float32)
    nisa.memset(dst=given, value=LOWEST)
    _spread(given, scores, first, rows)
    count = _lanes(rows, 1, nl.float32)
    _spread(count, counts, first, rows)
    zero = _lanes(rows, 1, nl.float32)
    nisa.memset(dst=zero, value=0.0)
    seen = _lanes(rows, width, nl.float32)
    nisa.range_select(
        dst=seen,
        on_true_tile=given,
        comp_op0=nl.greater_equal,
        comp_op1=nl.less,
        bound0=zero,
        bound1=count,
        on_false_value=LOWEST,
    )
    return seen, count


def _best(values: nl.NkiTensor, count: int, dtype: nl.DType) -> nl.NkiTensor:
    """1 where one of the `count` largest of its lane lies, LOWEST excepted; `dtype` [lanes, width].

    A round finds the eight largest, equal ones repeated, and takes the first occurrence of each
    away: of equal values the lowest places go first. What changed was chosen.
    """
    rows, width = values.shape[0] // GROUP, values.shape[1]
    chosen = _lanes(rows, width, dtype)
    if count >= width:
        nisa.tensor_scalar(dst=chosen, data=values, op0=nl.greater, operand0=LOWEST)
        return chosen
    left = values
    for taken in range(0, count, 8):
        eight = _lanes(rows, 8, nl.float32)
        nisa.max8(dst=eight, src=left)
        if count - taken < 8:
            nisa.memset(dst=eight[:, count - taken : 8], value=LOWEST)
        fewer = _lanes(rows, width, nl.float32)
        nisa.nc_match_replace8(dst=fewer, data=left, vals=eight, imm=LOWEST)
        left = fewer
    nisa.tensor_tensor(dst=chosen, data1=left, data2=values, op=nl.not_equal)
    return chosen


def _searched(values: nl.NkiTensor, count: int) -> nl.NkiTensor:
    """`_best` in fp32 for long rows, whose 16 lanes share the work; [lanes, width].

    The width is a multiple of 16, the count smaller.
    """
    rows, width = values.shape[0] // GROUP, values.shape[1]
    every = nl.ndarray(shape=(rows, GROUP, width), dtype=nl.float32, buffer=nl.private_hbm)
    nisa.dma_copy(dst=every, src=values)
    part = _lanes(rows, width // GROUP, nl.float32)
    nisa.dma_copy(dst=part, src=every[:, 0, :])
    mask = nl.ndarray(shape=(rows, width), dtype=nl.float32, buffer=nl.private_hbm)
    nisa.dma_copy(dst=mask, src=largest(part, count))
    chosen = _lanes(rows, width, nl.float32)
    _spread(chosen, mask, 0, rows)
    nisa.scalar_tensor_tensor(
        dst=chosen,
        data=values,
        op0=nl.greater,
        operand0=LOWEST,
        op1=nl.multiply,
        operand1=chosen,
    )
    return chosen


@nki.jit
def index_topk(
    scores: nl.NkiTensor,
    counts: nl.NkiTensor,
    k: int,
    allowed: nl.NkiTensor = None,
) -> nl.NkiTensor:
    """The k best of the entries that each query sees, ascending, -1 where there are fewer.

    Dimensions:
        T queries, N entries, k selected, each at least 1; N and k up to 16384. n blocks of b
        entries, n · b at least N.
    Args:
        scores: [T, N] fp32, finite and above -3.4e38, in HBM.
        counts: [T, 1] int32: a query sees entries 0 .. count - 1, in HBM.
        k: entries to select.
        allowed: [T, n] uint8, 0 for blocks of b = N / n entries, rounded up, that a query must not
            select from, in HBM; None for none.
    Returns:
        chosen: [T, k] int32, in shared HBM.
    Notes:
        Equal scores go to the lowest entry, by instructions whose order of ties is documented: max8
        repeats equal values, nc_match_replace8 takes the first occurrence of each. Not the values'
        places are collected but what is missing at the end, which comes out in ascending order from
        GpSimd's list of nonzeros; that has one row per 16 partitions, so 8 queries are searched at
        once. k / 8 rounds of two passes over N are long: 512 of 2048 would be 0.27 ms on Vector.
        Then the k-th score is searched bit by bit instead, in 33 counts that all 16 lanes of a row
        share, and equal ones are counted from the lowest entry on: 0.07 ms, see `threshold`.
        Two cores take half of the queries each; a single one is searched by both.
    Pseudocode:
        s[j] = scores[t, j] where j < counts[t] and allowed[t, j / b], else nothing
        repeat k / 8 times: take the eight largest away, the lowest of equal ones first
        or: b = the largest number with k scores at or above it; take those above, the first at it
        chosen[t] = what was taken, ascending, then -1
    """
    queries, entries = scores.shape
    y, target = place((queries, k), nl.int32, queries == 1)
    width = -(-max(entries, k) // GROUP) * GROUP
    search = k < width and k * entries > SEARCH
    for first, rows in pieces(queries, ROWS):
        seen, _ = _visible(scores, counts, first, rows, width)
        if allowed != None:  # noqa: E711 - the language has no `is`
            blocks = allowed.shape[1]
            size = -(-entries // blocks)
            padded = blocks * size
            mask = _lanes(rows, blocks, nl.uint8)
            _spread(mask, allowed, first, rows)
            ok = _lanes(rows, padded, nl.uint8)
            nisa.tensor_copy(
                dst=ok.reshape((GROUP * rows, blocks, size)),
                src=mask.expand_dim(2).broadcast(2, size),
            )
            nisa.tensor_copy_predicated(
                dst=seen[:, 0:entries], src=LOWEST, predicate=ok[:, 0:entries], reverse_pred=True
            )
        listed = _lanes(rows, width + 1, nl.int32)
        nisa.memset(dst=listed, value=0)
        chosen = _searched(seen, k) if search else _best(seen, k, nl.float32)
        nisa.nonzero_with_count(dst=listed, src=chosen)
        _gathered(target, listed, first, rows)
    return y


@nki.jit
def candidate_blocks(
    scores: nl.NkiTensor, counts: nl.NkiTensor, size: int, keep: int
) -> nl.NkiTensor:
    """Which blocks of entries later layers may select from: the best ones, and the newest.

    Dimensions:
        T queries, N entries, n = N / size blocks, rounded up; N up to 16384.
    Args:
        scores: [T, N] fp32, finite and above -3.4e38, in HBM.
        counts: [T, 1] int32: a query sees entries 0 .. count - 1, in HBM.
        size: entries per block.
        keep: blocks to keep.
    Returns:
        kept: [T, n] uint8, 1 for a kept block, in shared HBM; `index_topk` takes it as `allowed`.
    Notes:
        A block counts as its best visible entry, one reduction over the last axis of [n, size]; the
        block with the newest visible entry counts as 3e38. Blocks without a visible entry are never
        kept. Then the search of `index_topk`, over n instead of N.
        Two cores take half of the queries each; a single one is searched by both.
    Pseudocode:
        best[b] = max over visible entries j of block b of scores[t, j]
        best[(counts[t] - 1) / size] = 3e38
        kept[t] = the `keep` best blocks, the lowest of equal ones first
    """
    queries, entries = scores.shape
    blocks = -(-entries // size)
    y, target = place((queries, blocks), nl.uint8, queries == 1)
    width = max(blocks, 8)
    for first, rows in pieces(queries, ROWS):
        seen, count = _visible(scores, counts, first, rows, blocks * size)
        best = _lanes(rows, width, nl.float32)
        nisa.memset(dst=best, value=LOWEST)
        nisa.tensor_reduce(
            dst=best[:, 0:blocks],
            op=nl.maximum,
            data=seen.reshape((GROUP * rows, blocks, size)),
            axis=2,
        )
        past = _lanes(
            rows, blocks, nl.float32
        )  # entries of the block and after it that are visible
        nisa.iota(dst=past, pattern=[[-size, blocks]], offset=0)
        nisa.tensor_scalar(dst=past, data=past, op0=nl.add, operand0=count)
        some = _lanes(rows, blocks, nl.float32)
        nisa.tensor_scalar(dst=some, data=past, op0=nl.greater, operand0=0.0)
        newest = _lanes(rows, blocks, nl.uint8)
        nisa.scalar_tensor_tensor(
            dst=newest,
            data=past,
            op0=nl.less_equal,
            operand0=float(size),
            op1=nl.multiply,
            operand1=some,
        )
        nisa.tensor_copy_predicated(dst=best[:, 0:blocks], src=NEWEST, predicate=newest)
        _gathered(target, _best(best, keep, nl.uint8), first, rows)
    return y
