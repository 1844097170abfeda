"""Reading the residual streams: their weighted sum, one weight per stream and row."""

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

WIDEST = 2048  # columns at once: a product in fp32 fills half of PSUM


@nki.jit
def hc_collapse(h: nl.NkiTensor, weights: nl.NkiTensor) -> nl.NkiTensor:
    """y = sum over streams c of weights_c · h_c, row by row.

    Dimensions:
        R rows, S streams, d columns, each at least 1. A row lies in n lanes of w = d/n columns.
    Args:
        h: [R, S, d] bf16 or fp32, in HBM.
        weights: [R, S] fp32, in HBM.
    Returns:
        y: [R, d], dtype of h, in shared HBM.
    Notes:
        Moving 10 KiB per stream and row takes longer than computing: with three rows of d = 5120
        a lane multiplies and adds 4 x 128 numbers, 0.5 µs, between a load and a store of 2 µs. One
        lane per row would use one DMA engine of 16 and 3 of 128 lanes. No sum crosses lanes, so a
        row's bytes depend neither on other rows nor on n. fp32 inside, rounded once.
        Two cores take half of the rows each, or half of the columns of a single row.
    Pseudocode:
        for each block of rows, each row in n lanes:
            t = weights[r, 0] · h[r, 0, :]
            for c = 1 .. S-1:  t = t + weights[r, c] · h[r, c, :]
            y[r, :] = t
    """
    rows, streams, columns = h.shape
    y, target = results((rows, columns), h.dtype)
    for start, height, first, width in shares(rows, columns):
        lanes = lanes_per_row(rows, width)
        block = slice(start, start + height)
        factors = load_factors(weights[block, :], lanes)
        source = cut(h[block, :, first : first + width], lanes)
        goal = cut(target[block, first : first + width], lanes)
        for at, wide in column_blocks(width // lanes, WIDEST):
            tile = load_cut(source, at, wide)
            out = nl.ndarray(shape=(height * lanes, 1, wide), dtype=h.dtype, buffer=nl.sbuf)
            values = [tile[:, c, :] for c in range(streams)]
            weighted_sum(out, values, [factors[:, c : c + 1] for c in range(streams)])
            nisa.dma_copy(dst=goal[..., at : at + wide], src=out)
    return y
