"""The product of few rows with an fp8 weight whose scales go into the activations."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dslearn.kernels.linear_parts import (
    LANES,
    Pair,
    columns,
    copy_out,
    my_tiles,
    pipeline,
    powers,
    result_for,
    row_chunks,
)

WIDEST = 512  # fp32 columns of a PSUM bank: rows times blocks
ROOM = 44 * 1024  # bytes per partition for a group of tiles, codes and copies; three are alive


def group_size(rows: int, steps: int, blocks: int) -> int:
    """Tiles of outputs that are loaded at once: 16 if they fit, 64 scales are 64 cycles."""
    return max(1, min(16, ROOM // (steps * LANES + 2 * steps * blocks * rows)))


def rows_at_once(steps: int, blocks: int) -> int:
    """Rows whose copies fit beside the codes of one tile of outputs."""
    return max(1, (ROOM - steps * LANES) // (2 * steps * blocks))


def tiles_per_bank(rows: int, blocks: int) -> int:
    """Tiles whose products share a PSUM bank; 16 are as many as are loaded at once."""
    return min(16, WIDEST // (rows * blocks))


def _copies(x: nl.NkiTensor, wide: nl.NkiTensor, power: nl.NkiTensor) -> nl.NkiTensor:
    """x [128, J, M], in fp32 too, times scales [128, tiles, J, B]: [128, tiles, J, M, B], exact.

    One instruction makes the copies of one input of one row for all tiles, or of all rows for one
    tile, whichever is fewer; Vector and Scalar take turns, because 64 cycles is the least.
    """
    engines = (nisa.engine.vector, nisa.engine.scalar)
    _, tiles, steps, blocks = power.shape
    rows = x.shape[2]
    if blocks > 1 or rows <= tiles:
        copies = nl.ndarray(
            shape=(LANES, rows, tiles, steps, blocks), dtype=x.dtype, buffer=nl.sbuf
        )
        for m in range(rows):
            for j in range(steps):
                nisa.tensor_scalar(
                    dst=copies[:, m, :, j, :],
                    data=power[:, :, j, :],
                    op0=nl.multiply,
                    operand0=wide[:, j, m : m + 1],
                    engine=engines[m % 2],
                )
        return copies.permute((0, 2, 3, 1, 4))
    factor = nl.ndarray(shape=(LANES, tiles, steps), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=factor, src=power[:, :, :, 0], engine=nisa.engine.scalar)
    copies = nl.ndarray(shape=(LANES, tiles, steps, rows), dtype=x.dtype, buffer=nl.sbuf)
    for i in range(tiles):
        for j in range(steps):
            nisa.tensor_scalar(
                dst=copies[:, i, j, :],
                data=x[:, j, :],
                op0=nl.multiply,
                operand0=factor[:, i, j : j + 1],
                engine=engines[i % 2],
            )
    return copies.expand_dim(4)


def load_group(
    weight: nl.NkiTensor,
    power: nl.NkiTensor,
    group: tuple[int, int],
    turned: nl.NkiTensor,
    wide: nl.NkiTensor,
) -> Pair:
    """A group's codes as e4m3 [128, tiles, J, 128], and its copies of x."""
    start, count = group
    scales = powers(power[:, start : start + count, :, :], nl.bfloat16)
    codes = nl.ndarray(shape=(LANES, count, weight.shape[2], LANES), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.dma_copy(dst=codes, src=weight[:, start : start + count, :, :])
    return codes.view(nl.float8_e4m3), _copies(turned, wide, scales)


def products(loaded: Pair, result: nl.NkiTensor, start: int) -> None:
    """Tiles start.. of result [128 outputs, tiles, M], as many as a PSUM bank holds.

    From e4m3 codes [128, tiles, J, 128] and copies of x. A tile of 128 outputs has B scales per
    input, so its product with all B copies is made, B times too much, and the diagonal kept: block
    b of the outputs with copy b. Up to 64 columns the tensor engine takes no longer for it.
    """
    codes, copies = loaded
    _, tiles, steps, rows, blocks = copies.shape
    count, height = min(tiles - start, tiles_per_bank(rows, blocks)), LANES // blocks
    sums = nl.ndarray(shape=(LANES, count, rows, blocks), dtype=nl.float32, buffer=nl.psum)
    for i in range(count):
        for j in range(steps):
            nisa.nc_matmul(
                dst=sums[:, i, :, :],
                stationary=codes[:, start + i, j, :],
                moving=copies[:, start + i, j, :, :],
                accumulate=j > 0,
            )
    for b in range(blocks):
        block = slice(b * height, (b + 1) * height)
        copy_out(result[block, start : start + count, :], sums[block, :, :, b], b)


@nki.jit
def fp8_folded(
    x: nl.NkiTensor,
    weight: nl.NkiTensor,
    power: nl.NkiTensor,
    outputs: int,
    fp32_out: bool = False,
) -> nl.NkiTensor:
    """y = x · Wᵀ for W in e4m3 codes with a power-of-two scale per tile, which never meets W.

    Dimensions:
        M rows, K inputs, N outputs, each at least 1; K up to 20480; 128 rows at a time, fewer for
        K above 5120.
        T tiles of 128 outputs, J steps of 128 inputs, B scales per tile and step (4 or 1).
    Args:
        x: [M, K] bf16, in HBM.
        weight: [128, T, J, 128] uint8, e4m3 codes up to 240 as `place_fp8` puts them, in HBM.
        power: [128, T, J, B] uint8, scale bytes 1 to 254 as `place_fp8` puts them, in HBM.
        outputs: N; tiles beyond it are padding.
        fp32_out: return fp32 instead of bf16.
    Returns:
        y: [M, N] bf16 or fp32, in shared HBM.
    Notes:
        A scale is a power of two, so x · 2^e is exact in bf16 (while it stays a normal number) and
        the codes go to the tensor engine as they lie in HBM: no weight passes another engine.
        For 32 x 32 tiles four copies of x are multiplied and the diagonal kept. Per tile of 128 x
        128 weights the tensor engine takes max(64, M · B) cycles, 27 ns; the bytes take 45 ns.
        Vector and Scalar make the copies, N/32 · K of each row; beyond about 16 rows (32 x 32)
        that takes longer than decoding the weights: use `fp8_linear`.
        Exact up to the sum: fp32 in PSUM, rounded once. Two cores take half of the tiles each.
    Pseudocode:
        for each tile i of 128 outputs:
            c[j, m, b] = x[m, 128j..] · 2^(power[:, i, j, b] - 127)
            s[n, m, b] = sum over j of weight[:, i, j, n] · c[j, m, b]
            y[m, 128i + n] = s[n, m, n / (128 / B)]
    """
    rows, blocks, steps = x.shape[0], power.shape[3], weight.shape[2]
    y = result_for(x, weight.shape[1], outputs, fp32_out)
    for chunk in row_chunks(rows, steps, min(LANES, WIDEST // blocks, rows_at_once(steps, blocks))):
        turned = columns(x, chunk[0], chunk[1], steps)
        wide = nl.ndarray(shape=turned.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=wide, src=turned)

        def load(
            group: tuple[int, int], turned: nl.NkiTensor = turned, wide: nl.NkiTensor = wide
        ) -> Pair:
            return load_group(weight, power, group, turned, wide)

        pipeline(
            y,
            chunk,
            my_tiles(weight.shape[1], group_size(chunk[1], steps, blocks)),
            tiles_per_bank(chunk[1], blocks),
            (load, lambda loaded, start: loaded, products),
        )
    return y
