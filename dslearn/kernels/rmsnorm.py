"""RMSNorm: every row divided by its root mean square, times a gain."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dslearn.kernels.tiles import column_blocks, load_tile, result, row_blocks, store_tile

WIDEST = 8192  # columns at once: x, gain, squares and result in fp32 are 128 of 208 KiB


def _gain(weight: nl.NkiTensor, height: int, first: int, width: int) -> nl.NkiTensor:
    """Columns first.. of the gain [1, K], the same in every row of a tile [height, width]."""
    tile = nl.ndarray(shape=(height, width), dtype=weight.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=weight[:, first : first + width].broadcast(0, height))
    return tile


def _squares(total: nl.NkiTensor, tile: nl.NkiTensor) -> None:
    """total [height, 1] = sum of the squares of each row of the tile, in fp32."""
    squares = nl.ndarray(shape=tile.shape, dtype=tile.dtype, buffer=nl.sbuf)  # nobody reads them
    nisa.activation(
        dst=squares,
        op=nl.square,
        data=tile,
        reduce_op=nl.add,
        reduce_res=total,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )


def _inverse_root(totals: nl.NkiTensor, columns: int, eps: float) -> nl.NkiTensor:
    """1 / sqrt(mean + eps) of each row as a tile [height, 1], from partial sums of squares."""
    total = nl.ndarray(shape=(totals.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=total, op=nl.add, data=totals, axis=1)
    root = nl.ndarray(shape=total.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=root, op=nl.rsqrt, data=total, bias=eps, scale=1.0 / columns)
    return root


@nki.jit
def rmsnorm(x: nl.NkiTensor, weight: nl.NkiTensor, eps: float) -> nl.NkiTensor:
    """y = x / sqrt(mean(x²) + eps) · weight, row by row.

    Dimensions:
        R rows, K columns, each at least 1. Tiles are [<= 128 rows, <= 8192 columns].
    Args:
        x: [R, K] bf16 or fp32, in HBM.
        weight: [K] bf16 or fp32, in HBM.
        eps: number added to the mean; 1e-20 in V4.1, where only a row of zeros feels it.
    Returns:
        y: [R, K], dtype of x, in shared HBM.
    Notes:
        A row lies in one partition, so its sum stays in its lane: the Scalar engine squares and
        adds in one pass, K cycles or 4.3 µs for K = 5120 and up to 128 rows. A sum across
        partitions would take a matrix product and a trip through PSUM. The gain is copied to every
        partition, because a lane cannot read its neighbour's. Arithmetic is fp32; y is rounded
        once. Rows up to 8192 columns are read once, wider ones twice. rsqrt is valid from 2^-87
        (6e-27) to 2^97, so eps must not be smaller than that if a row can be zero.
        Two cores take half of the rows each; a single row is computed by both.
    Pseudocode:
        for each block of rows:
            total[r] = sum over k of x[r, k]²
            root[r] = rsqrt(total[r] / K + eps)
            y[r, k] = (x[r, k] · root[r]) · weight[k]
    """
    rows, columns = x.shape
    y, target = result(rows, columns, x.dtype)
    gains = weight.reshape((1, columns))
    parts = column_blocks(columns, WIDEST)
    wide = len(parts) > 1
    if not wide:
        gain = _gain(gains, min(rows, 128), 0, columns)
    for start, height in row_blocks(rows):
        totals = nl.ndarray(shape=(height, len(parts)), dtype=nl.float32, buffer=nl.sbuf)
        for i in range(len(parts)):
            tile = load_tile(x, start, height, parts[i][0], parts[i][1])
            _squares(totals[:, i : i + 1], tile)
        root = _inverse_root(totals, columns, eps)
        for first, width in parts:
            if wide:  # only one tile is kept
                tile = load_tile(x, start, height, first, width)
                gain = _gain(gains, height, first, width)
            out = nl.ndarray(shape=(height, width), dtype=x.dtype, buffer=nl.sbuf)
            nisa.scalar_tensor_tensor(
                dst=out,
                data=tile,
                op0=nl.multiply,
                operand0=root,
                op1=nl.multiply,
                operand1=gain[0:height, :],
            )
            store_tile(target, start, first, out)
    return y
