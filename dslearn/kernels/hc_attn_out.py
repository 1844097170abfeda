"""Attention's output projection, written to the residual streams while its weights arrive."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dslearn.kernels.fp8_folded import (
    group_size,
    load_group,
    products,
    rows_at_once,
    tiles_per_bank,
)
from dslearn.kernels.linear_parts import BANK, LANES, Pair, columns, my_tiles, put, row_chunks

COPIES = 512  # fp32 columns of a PSUM bank: rows times blocks of one product


def _old_streams(flat: nl.NkiTensor, first: int, count: int, tiles: int) -> nl.NkiTensor:
    """Rows [q, d] of HBM, columns of `count` tiles from `first` on, as [q, count, 128] in SBUF.

    Columns from d on are zeros; a core that has only those reads one column for nothing.
    """
    rows, d = flat.shape
    tile = nl.ndarray(shape=(rows, count * LANES), dtype=flat.dtype, buffer=nl.sbuf)
    if d < tiles * LANES:  # on both cores, which must execute the same instructions
        nisa.memset(dst=tile, value=0.0)
    start, width = first * LANES, min(count * LANES, d - first * LANES)
    if width <= 0:
        start, width = 0, 1
    nisa.dma_copy(dst=tile[:, 0:width], src=flat[:, start : start + width])
    return tile.reshape((rows, count, LANES))


def _in_every_lane(numbers: nl.NkiTensor) -> nl.NkiTensor:
    """Numbers [r, ..] of HBM as [128, r, ..] in SBUF."""
    tile = nl.ndarray(shape=(LANES, *numbers.shape), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=numbers.expand_dim(0).broadcast(0, LANES))
    return tile


def _mix(mixed: nl.NkiTensor, y: nl.NkiTensor, old: nl.NkiTensor, factors: Pair) -> None:
    """New streams [128, tiles, r, S] of some tiles of outputs, the outputs on the partitions.

    From y [128, tiles, r], old streams [r S, tiles, 128], and factors: post [128, r, S], comb
    [128, r, S, S]. The old ones are turned by the tensor engine and stay in PSUM, and so do
    products: Vector takes a cycle per element if one operand lies there.
    """
    post, comb = factors
    _, tiles, _, streams = mixed.shape
    turned = nl.ndarray(shape=mixed.shape, dtype=old.dtype, buffer=nl.psum)
    for i in range(tiles):
        nisa.nc_transpose(dst=turned[:, i, :, :], data=old[:, i, :], engine=nisa.engine.tensor)
    total = nl.ndarray(shape=mixed.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(
        dst=total,
        data1=y.expand_dim(3).broadcast(3, streams),
        data2=post.expand_dim(1).broadcast(1, tiles),
        op=nl.multiply,
    )
    for j in range(streams):
        term = nl.ndarray(shape=mixed.shape, dtype=nl.float32, buffer=nl.psum)
        nisa.tensor_tensor(
            dst=term,
            data1=turned[:, :, :, j].expand_dim(3).broadcast(3, streams),
            data2=comb[:, :, j, :].expand_dim(1).broadcast(1, tiles),
            op=nl.multiply,
        )
        target = mixed if j == streams - 1 else total
        nisa.tensor_tensor(dst=target, data1=total, data2=term, op=nl.add)


def _write(
    target: nl.NkiTensor, row: int, first: int, y: nl.NkiTensor, old: nl.NkiTensor, factors: Pair
) -> None:
    """Mix y [128, tiles, r] of the tiles from `first` on into the streams, rows row.. of target.

    In as many parts as PSUM needs: the products of one part fill a bank.
    """
    _, tiles, rows = y.shape
    streams = old.shape[0] // rows
    mixed = nl.ndarray(shape=(LANES, tiles, rows, streams), dtype=old.dtype, buffer=nl.sbuf)
    several = BANK // (4 * rows * streams)
    for i in range(0, tiles, several):
        part = slice(i, min(i + several, tiles))
        _mix(mixed[:, part, :, :], y[:, part, :], old[:, part, :], factors)
    put(target, mixed.reshape((LANES, tiles, rows * streams)), row, first * LANES)


@nki.jit
def hc_attn_out(  # noqa: PLR0913 - a product's tensors and a mixture's
    x: nl.NkiTensor,
    weight: nl.NkiTensor,
    power: nl.NkiTensor,
    h: nl.NkiTensor,
    post: nl.NkiTensor,
    comb: nl.NkiTensor,
) -> nl.NkiTensor:
    """out_k = post_k · (x Wᵀ) + sum over j of comb[j, k] · h_j, W in e4m3 codes and scales.

    Dimensions:
        R rows; K inputs; S streams up to 32, d columns; T tiles of 128 outputs, J steps of 128
        inputs, B scales per tile and step (4 or 1), as in `fp8_folded`. 128/S rows at a time.
    Args:
        x: [R, K] bf16, in HBM: the input of the output projection.
        weight: [128, T, J, 128] uint8, e4m3 codes up to 240 as `place_fp8` puts them, in HBM.
        power: [128, T, J, B] uint8, scale bytes 1 to 254 as `place_fp8` puts them, in HBM.
        h: [R, S, d] bf16 or fp32, in HBM.
        post: [R, S] fp32, in HBM.
        comb: [R, S, S] fp32, in HBM.
    Returns:
        out: [R, S, d], dtype of h, in shared HBM.
    Notes:
        The weights of 5120 x 8192 take 58 µs to arrive, and all that `hc_expand` waits for, 8 µs
        for one row, happens meanwhile: mixing takes 10 cycles of Vector per row, stream and tile of
        outputs (S = 4), 0.25 µs of a tile's 2.9 µs for 6 rows. A tile comes with the outputs on the
        partitions, so the old streams are turned to lie there too, by the tensor engine, which
        waits for weights anyway. Transposing moves bits: NaN stays in its row. The projection is
        rounded to the dtype of h before it is mixed, as it would be in HBM; sums are fp32, the
        mixture is rounded once. From 12 rows on (32 x 32 tiles) scaling the activations takes
        longer than decoding the weights: use `fp8_linear`, then `hc_expand`.
        Two cores take half of the outputs each.
    Pseudocode:
        for each group of tiles of 128 outputs, while the next one's weights arrive:
            y = x · Wᵀ, rounded                              kernels/fp8_folded.py
            t[n, r, k] = post[r, k] · y[n, r]
            for j = 0 .. S-1:  t[n, r, k] = t[n, r, k] + comb[r, j, k] · h[r, j, n]
            out[r, k, n] = t[n, r, k]
    """
    rows, streams, d = h.shape
    _, tiles, steps, blocks = power.shape
    assert 0 < d <= tiles * LANES, "weight: d outputs in tiles of 128"
    out = nl.ndarray(shape=(rows, streams, d), dtype=h.dtype, buffer=nl.shared_hbm)
    flat, target = h.reshape((rows * streams, d)), out.reshape((rows * streams, d))
    most = min(LANES // streams, COPIES // blocks, rows_at_once(steps, blocks))
    for start, count in row_chunks(rows, steps, most):
        turned = columns(x, start, count, steps)
        wide = nl.ndarray(shape=turned.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=wide, src=turned)
        groups = my_tiles(tiles, group_size(count, steps, blocks))
        base, block = groups[0][0], slice(start, start + count)
        ahead = load_group(weight, power, groups[0], turned, wide)
        lines = flat[start * streams : (start + count) * streams, :]
        old = _old_streams(lines, base, tiles // nl.num_programs(), tiles)
        factors = _in_every_lane(post[block, :]), _in_every_lane(comb[block, :, :])
        finished: list[tuple[int, nl.NkiTensor, nl.NkiTensor]] = []
        for g in range(len(groups) + 1):
            loaded = ahead
            if g + 1 < len(groups):
                ahead = load_group(weight, power, groups[g + 1], turned, wide)
            if g < len(groups):
                first, number = groups[g]
                y = nl.ndarray(shape=(LANES, number, count), dtype=h.dtype, buffer=nl.sbuf)
                for i in range(0, number, tiles_per_bank(count, blocks)):
                    products(loaded, y, i)
            for tile, done, streams_of in finished:  # engines work in order: products come first
                _write(target, start * streams, tile, done, streams_of, factors)
            finished = [(first, y, old[:, first - base : first - base + number, :])]
    return out
