"""The mixing coefficients of the residual streams: projection, statistic, gates and Sinkhorn."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dslearn.kernels.sinkhorn import sinkhorn
from dslearn.kernels.tiles import PARTITIONS, column_blocks, result, row_blocks, store_tile

ROOM = 64 * 1024  # bytes per partition for the rows of a block, as given and in fp32
PIECE = 2048  # bytes per partition of `fn` that one DMA brings: near its full rate, and soon there


def _tallest(steps: int, dtype: nl.DType) -> int:
    """Rows of a block: they lie in SBUF as a whole."""
    return max(1, min(PARTITIONS, ROOM // (steps * (8 if dtype == nl.float32 else 6))))


def _rows(flat: nl.NkiTensor, start: int, height: int, steps: int) -> nl.NkiTensor:
    """Rows start.. of [R, K] in HBM as a tile [128, height, J]: K cut into 128 runs of J."""
    inputs = flat.shape[1]
    full, rest = inputs // steps, inputs % steps
    tile = nl.ndarray(shape=(PARTITIONS, height, steps), dtype=flat.dtype, buffer=nl.sbuf)
    if full < PARTITIONS:
        nisa.memset(dst=tile, value=0.0)
    block = flat[start : start + height, :]
    runs = block[:, 0 : full * steps].reshape_dim(1, (full, steps))
    nisa.dma_copy(dst=tile[0:full, :, :], src=runs.permute((1, 0, 2)))
    if rest:
        nisa.dma_copy(dst=tile[full : full + 1, :, 0:rest], src=block[:, full * steps : inputs])
    return tile


def _projected(tile: nl.NkiTensor, fn: nl.NkiTensor) -> nl.NkiTensor:
    """Rows [128, height, J] times fn [128, J, M] of HBM, summed over 128 and J: [height, M]."""
    _, height, steps = tile.shape
    outputs = fn.shape[2]
    sums = nl.ndarray(shape=(height, outputs), dtype=nl.float32, buffer=nl.psum)
    for first, count in column_blocks(steps, max(1, PIECE // (4 * outputs))):
        weight = nl.ndarray(shape=(PARTITIONS, count, outputs), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=weight, src=fn[:, first : first + count, :])
        part = tile[:, :, first : first + count]
        if tile.dtype != nl.float32:  # fp32 multiplies with fp32 only
            wide = nl.ndarray(shape=part.shape, dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=wide, src=part)
            part = wide
        for j in range(count):
            nisa.nc_matmul(
                dst=sums,
                stationary=part[:, :, j],
                moving=weight[:, j, :],
                accumulate=first + j > 0,
            )
    return sums


def _inverse_root(tile: nl.NkiTensor, tallest: int, inputs: int, eps: float) -> nl.NkiTensor:
    """1 / sqrt(mean of squares + eps) of each row of [128, height, J]: [height, 1].

    A core with a row less than `tallest` does its last row twice: both cores must execute the same
    instructions.
    """
    _, height, steps = tile.shape
    parts = nl.ndarray(shape=(PARTITIONS, height), dtype=nl.float32, buffer=nl.sbuf)
    for i in range(tallest):
        r = min(i, height - 1)
        squares = nl.ndarray(shape=(PARTITIONS, steps), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(
            dst=squares,
            op=nl.square,
            data=tile[:, r, :],
            reduce_op=nl.add,
            reduce_res=parts[:, r : r + 1],
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )
    ones = nl.ndarray(shape=(PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    total = nl.ndarray(shape=(height, 1), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=total, stationary=parts, moving=ones, accumulate=False)
    root = nl.ndarray(shape=(height, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=root, op=nl.rsqrt, data=total, bias=eps, scale=1.0 / inputs)
    return root


def _every_row(numbers: nl.NkiTensor, height: int) -> nl.NkiTensor:
    """Numbers [n] of HBM as a tile [height, n]: the same in every row."""
    tile = nl.ndarray(shape=(height, numbers.shape[0]), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=numbers.expand_dim(0).broadcast(0, height))
    return tile


def _affine(
    sums: nl.NkiTensor, root: nl.NkiTensor, base: nl.NkiTensor, scale: nl.NkiTensor, streams: int
) -> nl.NkiTensor:
    """Sums [height, M] in PSUM times root, times the scale of their group, plus base: in SBUF."""
    height, outputs = sums.shape
    offsets, factors = _every_row(base, height), _every_row(scale, height)
    m = nl.ndarray(shape=(height, outputs), dtype=nl.float32, buffer=nl.sbuf)
    edges = (0, streams, 2 * streams, outputs)
    for group in range(3):
        some = slice(edges[group], edges[group + 1])
        nisa.tensor_scalar(
            dst=m[:, some],
            data=sums[:, some],
            op0=nl.multiply,
            operand0=root,
            op1=nl.multiply,
            operand1=factors[:, group : group + 1],
        )
    nisa.tensor_tensor(dst=m, data1=m, data2=offsets, op=nl.add)
    return m


@nki.jit
def hc_mixes(  # noqa: PLR0913 - the parameters of a sublayer
    h: nl.NkiTensor,
    fn: nl.NkiTensor,
    base: nl.NkiTensor,
    scale: nl.NkiTensor,
    norm_eps: float,
    hc_eps: float,
    iterations: int = 20,
) -> tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor]:
    """(pre, post, comb): how a sublayer's streams are read, written and mixed, from the streams.

    Dimensions:
        R rows, S streams up to 8, d columns; K = S d inputs in 128 runs of J = ceil(K/128);
        M = S (S + 2) values.
    Args:
        h: [R, S, d] bf16 or fp32, in HBM.
        fn: [128, J, M] fp32, in HBM: input p J + j at [p, j, :], zeros from K on;
            `ops.hc_mixes.place` makes it of [M, K].
        base: [M] fp32, in HBM.
        scale: [3] fp32, in HBM: of pre, post and comb.
        norm_eps: number added to the mean of squares, at least 2^-87 (1e-20 in V4.1).
        hc_eps: number added to pre, to the softmax and to every sum of Sinkhorn.
        iterations: 20 in V4.1; the first counts, at least 1.
    Returns:
        pre: [R, S], post: [R, S], comb: [R, S, S], fp32, in shared HBM.
    Notes:
        The tensor engine sums over partitions, and K may be cut in any way that h and fn share:
        run p of a row lies in lane p as it lies in HBM, 320 bytes of it for d = 5120, and nothing
        is transposed. Rows are stationary, so a row's values come out in its own lane: 24 columns
        move per step instead of 64, 40 ns in fp32, and NaN stays in its row. Sinkhorn then runs
        for up to 128 rows at once. Nothing is quantised or rounded below fp32.
        Its 2 iterations - 1 further divisions depend on each other: three Vector instructions of
        0.1 µs each, 12 µs of the 27 µs for 6 rows of d = 5120, and as much for 128 rows. pre serves
        the next sublayer and post, comb the end of this one: nothing waits for them at first.
        Two cores take half of the rows each and both read fn (2 MB). A single row is done by both:
        a sum cut in two would save 4 µs of products and need an exchange and a barrier, 3 µs.
    Pseudocode:
        m[r, :] = (sum over p, j of h[r, p J + j] · fn[p, j, :]) · rsqrt(mean h[r]² + norm_eps)
        m = m · scale of its group + base
        pre = sigmoid(m[:, 0 .. S-1]) + hc_eps;  post = 2 · sigmoid(m[:, S .. 2S-1])
        comb = sinkhorn(m[:, 2S ..] as [S, S])          kernels/sinkhorn.py
    """
    rows, streams, columns = h.shape
    inputs, steps, outputs = streams * columns, fn.shape[1], fn.shape[2]
    assert outputs == streams * (streams + 2), "fn: [128, J, S (S + 2)], see ops.hc_mixes.place"
    assert steps == -(-inputs // PARTITIONS), "fn: J = ceil(S d / 128), see ops.hc_mixes.place"
    pre, pre_mine = result(rows, streams, nl.float32)
    post, post_mine = result(rows, streams, nl.float32)
    comb, comb_mine = result(rows, streams * streams, nl.float32)
    flat = h.reshape((rows, inputs))
    blocks = row_blocks(rows, _tallest(steps, h.dtype))
    tallest = -(-rows // (nl.num_programs() * len(blocks)))
    for start, height in blocks:
        tile = _rows(flat, start, height, steps)
        root = _inverse_root(tile, tallest, inputs, norm_eps)  # while the first of fn arrives
        m = _affine(_projected(tile, fn), root, base, scale, streams)
        gates = nl.ndarray(shape=(height, 2 * streams), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=gates, op=nl.sigmoid, data=m[:, 0 : 2 * streams])
        reads, writes = gates[:, 0:streams], gates[:, streams : 2 * streams]
        nisa.tensor_scalar(dst=reads, data=reads, op0=nl.add, operand0=hc_eps)
        nisa.tensor_scalar(dst=writes, data=writes, op0=nl.multiply, operand0=2.0)
        store_tile(pre_mine, start, 0, reads)
        store_tile(post_mine, start, 0, writes)
        logits = m[:, 2 * streams : outputs].reshape((height, streams, streams))
        mixing = sinkhorn(logits, iterations, hc_eps)
        store_tile(comb_mine, start, 0, mixing.reshape((height, streams * streams)))
    return pre, post, comb.reshape((rows, streams, streams))
