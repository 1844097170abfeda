"""The product of any number of rows with a weight that is not quantised: router, head, ..."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dslearn.kernels.linear_parts import (
    LANES,
    columns,
    my_tiles,
    pipeline,
    product,
    result_for,
    row_chunks,
)

ROOM = 40 * 1024  # bytes per partition for the weights of a group of tiles


def _widened(tile: nl.NkiTensor, turn: int) -> nl.NkiTensor:
    """A bf16 tile [128, J, 128] in fp32, by one of three engines that have little else to do."""
    wide = nl.ndarray(shape=tile.shape, dtype=nl.float32, buffer=nl.sbuf)
    engine = (nisa.engine.vector, nisa.engine.gpsimd, nisa.engine.scalar)[turn % 3]
    nisa.tensor_copy(dst=wide, src=tile, engine=engine)
    return wide


@nki.jit
def plain_linear(x: nl.NkiTensor, weight: nl.NkiTensor, outputs: int) -> nl.NkiTensor:
    """y = x · Wᵀ in fp32 for W in bf16 or fp32, without quantisation of either.

    Dimensions:
        M rows, K inputs, N outputs, each at least 1; K up to 10240; 512 rows at a time, fewer for
        K above 5120 in bf16 and above 2560 in fp32.
        T tiles of 128 outputs, J steps of 128 inputs.
    Args:
        x: [M, K] fp32, or bf16 if the weight is, in HBM.
        weight: [128, T, J, 128] bf16 or fp32 as `place_codes` puts it, in HBM.
        outputs: N; tiles beyond it are padding.
    Returns:
        y: [M, N] fp32, in shared HBM.
    Notes:
        Both operands of a product are fp32 or none: fp32 rows meet a bf16 weight that Vector,
        GpSimd and Scalar widen in turns. That halves the bytes of a weight that bf16 holds, as a
        checkpoint stores most. fp32 products take the tensor engine's full-precision path, 4
        cycles per column for 1 in bf16: per 128 x 128 weights and up to 64 rows 107 ns, beside 181
        ns for fp32 bytes and 90 ns for bf16 ones; with bf16 rows 27 ns. Each product of two bf16
        numbers is exact, one of fp32 numbers is rounded to fp32; sums are fp32 in PSUM, in an order
        that the vendor does not document, and are stored as they are. Two cores take half of the
        tiles each.
    Pseudocode:
        for each chunk of 512 rows and tile i of 128 outputs:
            y[m, 128i + n] = sum over j and k of x[m, 128j + k] · weight[k, i, j, n]
    """
    rows, steps = x.shape[0], weight.shape[2]
    wide = x.dtype == nl.float32
    assert wide or weight.dtype != nl.float32, "x: fp32 where the weight is fp32"
    y = result_for(x, weight.shape[1], outputs, True)
    size = 4 if weight.dtype == nl.float32 else 2
    groups = my_tiles(weight.shape[1], max(1, min(16, ROOM // (steps * LANES * size))))

    def load(group: tuple[int, int]) -> nl.NkiTensor:
        start, count = group
        tiles = nl.ndarray(shape=(LANES, count, steps, LANES), dtype=weight.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tiles, src=weight[:, start : start + count, :, :])
        return tiles

    def make(loaded: nl.NkiTensor, i: int) -> nl.NkiTensor:
        tile = loaded[:, i, :, :]
        return _widened(tile, i) if wide and weight.dtype != nl.float32 else tile

    for chunk in row_chunks(rows, 2 * steps if wide else steps):
        turned = columns(x, chunk[0], chunk[1], steps, dtype=x.dtype)

        def finish(
            weights: nl.NkiTensor, result: nl.NkiTensor, i: int, turned: nl.NkiTensor = turned
        ) -> None:
            nisa.tensor_copy(dst=result[:, i, :], src=product(weights, turned))

        pipeline(y, chunk, groups, 1, (load, make, finish))
    return y
