"""Rotary embedding of the last dims of each head, forwards and back."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dslearn.kernels.cuts import pieces, place
from dslearn.kernels.tiles import PARTITIONS

TOGETHER = 64  # heads of a token in a tile: half of the lanes, so that two tokens fit


def _turns(table: nl.NkiTensor, first: int, tokens: int, heads: int) -> nl.NkiTensor:
    """Rows first.. of cos or sin [T, R], each repeated for all heads: [tokens · H, R] in SBUF."""
    rotated = table.shape[1]
    tile = nl.ndarray(shape=(tokens * heads, rotated), dtype=nl.float32, buffer=nl.sbuf)
    rows = table[first : first + tokens, :].expand_dim(1).broadcast(1, heads)
    nisa.dma_copy(dst=tile, src=rows)
    return tile


def _turned(part: nl.NkiTensor, cos: nl.NkiTensor, sin: nl.NkiTensor, op: nl.NKIObject) -> None:
    """part [P, R] = part · cos op swapped(part) · sin, in place."""
    lanes, rotated = part.shape
    straight = nl.ndarray(shape=(lanes, rotated), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=straight, data1=part, data2=cos, op=nl.multiply)
    crossed = nl.ndarray(shape=(lanes, rotated // 2, 2), dtype=nl.float32, buffer=nl.sbuf)
    pairs, turns = (lanes, rotated // 2, 2), sin.reshape((lanes, rotated // 2, 2))
    for side in range(2):
        nisa.tensor_tensor(
            dst=crossed[:, :, side],
            data1=part.reshape(pairs)[:, :, 1 - side],
            data2=turns[:, :, side],
            op=nl.multiply,
        )
    nisa.tensor_tensor(dst=part, data1=straight, data2=crossed.reshape(part.shape), op=op)


@nki.jit
def rope(
    x: nl.NkiTensor, cos: nl.NkiTensor, sin: nl.NkiTensor, inverse: bool = False
) -> nl.NkiTensor:
    """y = x with each pair of its last R dims turned by the token's angle.

    Dimensions:
        T tokens, H heads, D values of a head; R rotated dims, even, at most D.
    Args:
        x: [T, H, D] bf16 or fp32, in HBM.
        cos: [T, R] fp32, each pair's cosine twice, in HBM.
        sin: [T, R] fp32, -sin and sin of each pair, in HBM.
        inverse: turn back, which attention does with its output.
    Returns:
        y: [T, H, D], dtype of x, in shared HBM.
    Notes:
        A lane is a head of a token, so as many tokens as fit in 128 lanes turn at once: with 64
        heads, 6 tokens are three tiles and 4 instructions of 64 to 128 cycles each. DMA repeats the
        token's row of the tables for all heads. Dims before the last R pass through SBUF and are
        not computed. fp32, rounded once, bit for bit what torch computes in fp32.
        Two cores take half of the tokens each; a single one is turned by both.
    Pseudocode:
        for each token t, head h, pair (a, b) at column j, j + 1 of the last R:
            y[j]     = a cos[t, j]     + b sin[t, j]          (- when inverse)
            y[j + 1] = b cos[t, j + 1] + a sin[t, j + 1]
    """
    tokens, heads, dim = x.shape
    rotated = cos.shape[1]
    assert rotated % 2 == 0 and rotated <= dim, "R: even, at most D"
    y, target = place((tokens, heads, dim), x.dtype, tokens == 1)
    op = nl.subtract if inverse else nl.add
    for head in range(0, heads, TOGETHER):
        some = min(TOGETHER, heads - head)
        for first, count in pieces(tokens, PARTITIONS // some):
            tile = nl.ndarray(shape=(count * some, dim), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=x[first : first + count, head : head + some, :])
            _turned(
                tile[:, dim - rotated : dim],
                _turns(cos, first, count, some),
                _turns(sin, first, count, some),
                op,
            )
            nisa.dma_copy(dst=target[first : first + count, head : head + some, :], src=tile)
    return y
