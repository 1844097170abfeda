"""Writing the residual streams: a sublayer's result added to a mixture of the old ones."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dslearn.kernels.streams import (
    cut,
    lanes_per_row,
    load_cut,
    load_factors,
    results,
    shares,
    weighted_sum,
)
from dslearn.kernels.tiles import column_blocks

WIDEST = 2048  # columns of all streams at once: a product in fp32 fills half of PSUM


@nki.jit
def hc_expand(
    y: nl.NkiTensor, h: nl.NkiTensor, post: nl.NkiTensor, comb: nl.NkiTensor
) -> nl.NkiTensor:
    """out_k = post_k · y + sum over j of comb[j, k] · h_j: over the first index of comb.

    Dimensions:
        R rows, S streams, d columns, each at least 1. A row lies in n lanes of w = d/n columns.
    Args:
        y: [R, d], dtype of h, in HBM: the sublayer's result.
        h: [R, S, d] bf16 or fp32, in HBM.
        post: [R, S] fp32, in HBM.
        comb: [R, S, S] fp32, in HBM.
    Returns:
        out: [R, S, d], dtype of h, in shared HBM.
    Notes:
        S (S + 1) products and S · S sums per column: Scalar makes the products of one term for all
        k, Vector adds them in one instruction, 2.1 µs each and at the same time for three rows of
        d = 5120. The tensor engine would be done in 1 µs with fp32 weights as three bf16 ones, but
        it would multiply each row's numbers by the zeros of all others, and zero times NaN is NaN:
        one broken request would break its batch. Terms are added in the order of j, in fp32,
        and rounded once; a row's bytes depend on nothing but the row.
        Two cores take half of the rows each, or half of the columns of a single row.
    Pseudocode:
        for each block of rows, each row in n lanes, for all k:
            t[k] = post[r, k] · y[r, :]
            for j = 0 .. S-1:  t[k] = t[k] + comb[r, j, k] · h[r, j, :]
            out[r, k, :] = t[k]
    """
    rows, streams, columns = h.shape
    result, target = results((rows, streams, columns), h.dtype)
    for start, height, first, width in shares(rows, columns):
        lanes = lanes_per_row(rows, width)
        block, part = slice(start, start + height), slice(first, first + width)
        mixing = load_factors(comb[block, :, :], lanes)
        factors = [load_factors(post[block, :], lanes)] + [mixing[:, j, :] for j in range(streams)]
        update, source = cut(y[block, part], lanes), cut(h[block, :, part], lanes)
        goal = cut(target[block, :, part], lanes)
        for at, wide in column_blocks(width // lanes, WIDEST // streams):
            tile = load_cut(source, at, wide)
            values = [load_cut(update, at, wide)] + [tile[:, j, :] for j in range(streams)]
            out = nl.ndarray(shape=tile.shape, dtype=h.dtype, buffer=nl.sbuf)
            weighted_sum(out, values, factors)
            nisa.dma_copy(dst=goal[..., at : at + wide], src=out)
    return result
