"""The product of any number of rows with an fp8 weight, decoded tile by tile in SBUF."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dslearn.kernels.linear_parts import (
    LANES,
    Pair,
    columns,
    my_tiles,
    pipeline,
    powers,
    product,
    result_for,
    row_chunks,
)

ROOM = 40 * 1024  # bytes per partition for the codes of a group of tiles
PART = 4096 // LANES  # steps per instruction: an operand in PSUM has 4096 elements at most


def _decoded(codes: nl.NkiTensor, scales: nl.NkiTensor, tile: int) -> nl.NkiTensor:
    """Codes [128, J, 128] of one tile times scales [128, J, B]: bf16 [128, J, 128], exact.

    Vector takes a product per cycle if one operand is in PSUM, so it reads the scales there. GpSimd
    takes two tiles of five: it needs 1.6 times as long and does not reach PSUM.
    """
    _, steps, blocks = scales.shape
    weights = nl.ndarray(shape=(LANES, steps, LANES), dtype=nl.bfloat16, buffer=nl.sbuf)
    gpsimd = tile % 5 in (1, 3)
    for j in range(0, steps, PART):
        count = min(PART, steps - j)
        factors = scales[:, j : j + count, :]
        if not gpsimd:
            bank = nl.ndarray(shape=(LANES, count, blocks), dtype=nl.float32, buffer=nl.psum)
            nisa.tensor_copy(dst=bank, src=factors, engine=nisa.engine.scalar)
            factors = bank
        shape = (LANES, count, blocks, LANES // blocks)
        nisa.tensor_tensor(
            dst=weights[:, j : j + count, :].reshape(shape),
            data1=codes[:, j : j + count, :].reshape(shape),
            data2=factors.expand_dim(3).broadcast(3, LANES // blocks),
            op=nl.multiply,
            engine=nisa.engine.gpsimd if gpsimd else nisa.engine.vector,
        )
    return weights


@nki.jit
def fp8_linear(
    x: nl.NkiTensor,
    weight: nl.NkiTensor,
    power: nl.NkiTensor,
    outputs: int,
    fp32_out: bool = False,
) -> nl.NkiTensor:
    """y = x · Wᵀ for W in e4m3 codes with a power-of-two scale per tile, decoded tile by tile.

    Dimensions:
        M rows, K inputs, N outputs, each at least 1; K up to 20480; 512 rows at a time, fewer for
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
        trn2 reads e4m3 in every engine, so decoding is one product per weight: 128 cycles of Vector
        per step of a tile, or 256 of GpSimd, about 80 ns together. The bytes take 45 ns, the
        tensor engine max(64, M) cycles, 213 ns for 512 rows: from 200 rows on decoding is hidden.
        For few rows `fp8_folded` decodes nothing. Weights arrive as the tensor engine contracts
        them, so nothing but the result is transposed. Code times scale is exact in bf16 while it
        is a normal number. Sums are fp32 in PSUM, rounded once. Two cores take half of the tiles.
    Pseudocode:
        for each chunk of 512 rows and tile i of 128 outputs:
            w[k, n] = weight[k, i, j, n] · 2^(power[k, i, j, n / (128 / B)] - 127)
            y[m, 128i + n] = sum over j and k of x[m, 128j + k] · w[k, n]
    """
    rows, steps = x.shape[0], weight.shape[2]
    y = result_for(x, weight.shape[1], outputs, fp32_out)
    groups = my_tiles(weight.shape[1], max(1, min(10, ROOM // (steps * LANES))))

    def load(group: tuple[int, int]) -> Pair:
        start, count = group
        scales = powers(power[:, start : start + count, :, :], nl.bfloat16)
        codes = nl.ndarray(shape=(LANES, count, steps, LANES), dtype=nl.uint8, buffer=nl.sbuf)
        nisa.dma_copy(dst=codes, src=weight[:, start : start + count, :, :])
        return codes.view(nl.float8_e4m3), scales

    def make(loaded: Pair, i: int) -> nl.NkiTensor:
        return _decoded(loaded[0][:, i, :, :], loaded[1][:, i, :, :], i)

    for chunk in row_chunks(rows, steps):
        turned = columns(x, chunk[0], chunk[1], steps)

        def finish(
            weights: nl.NkiTensor, result: nl.NkiTensor, i: int, turned: nl.NkiTensor = turned
        ) -> None:
            sums = product(weights, turned)
            nisa.tensor_copy(dst=result[:, i, :], src=sums, engine=nisa.engine.scalar)

        pipeline(y, chunk, groups, 1, (load, make, finish))
    return y
