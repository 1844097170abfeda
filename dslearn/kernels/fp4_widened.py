"""The product with an fp4 weight that was widened to fp8 when it was loaded: nothing to decode."""

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


@nki.jit
def fp4_widened(
    x: nl.NkiTensor,
    weight: nl.NkiTensor,
    power: nl.NkiTensor,
    outputs: int,
    fp32_out: bool = False,
) -> nl.NkiTensor:
    """y = x · Wᵀ for W in e4m3 codes with one power-of-two scale per output.

    Dimensions:
        M rows, K inputs, N outputs, each at least 1; K up to 20480; 512 rows at a time, fewer for
        K above 5120.
        T tiles of 128 outputs, J steps of 128 inputs.
    Args:
        x: [M, K] bf16, in HBM.
        weight: [128, T, J, 128] uint8, e4m3 codes of `place_widened`, in HBM.
        power: [128, T] uint8, scale bytes 1 to 254; [c, i] for output 128 i + c, in HBM.
        outputs: N; tiles beyond it are padding.
        fp32_out: return fp32 instead of bf16.
    Returns:
        y: [M, N] bf16 or fp32, in shared HBM.
    Notes:
        A tile's 128 outputs lie on the partitions of its result, so their scales are one number
        per lane, applied while the sum leaves PSUM: no weight passes Vector, Scalar or GpSimd. Per
        128 x 128 weights the tensor engine takes max(64, M) cycles, 27 ns up to 64 rows, and the
        bytes 45 ns, twice those of packed fp4. Assumes that the tensor engine multiplies subnormal
        e4m3 numbers as what they are. Exact up to the sum: fp32 in PSUM, times a power of two,
        rounded once. Two cores take half of the tiles each.
    Pseudocode:
        for each chunk of 512 rows and tile i of 128 outputs:
            s[n, m] = sum over j and k of weight[k, i, j, n] · x[m, 128j + k]
            y[m, 128i + n] = s[n, m] · 2^(power[n, i] - 127)
    """
    rows, steps = x.shape[0], weight.shape[2]
    y = result_for(x, weight.shape[1], outputs, fp32_out)
    groups = my_tiles(weight.shape[1], max(1, min(16, ROOM // (steps * LANES))))

    def load(group: tuple[int, int]) -> Pair:
        start, count = group
        scales = powers(power[:, start : start + count], nl.float32)
        codes = nl.ndarray(shape=(LANES, count, steps, LANES), dtype=nl.uint8, buffer=nl.sbuf)
        nisa.dma_copy(dst=codes, src=weight[:, start : start + count, :, :])
        return codes.view(nl.float8_e4m3), scales

    def make(loaded: Pair, i: int) -> Pair:
        return loaded[0][:, i, :, :], loaded[1][:, i : i + 1]

    for chunk in row_chunks(rows, steps):
        turned = columns(x, chunk[0], chunk[1], steps)

        def finish(made: Pair, result: nl.NkiTensor, i: int, turned: nl.NkiTensor = turned) -> None:
            nisa.tensor_scalar(
                dst=result[:, i, :],
                data=product(made[0], turned),
                op0=nl.multiply,
                operand0=made[1],
            )

        pipeline(y, chunk, groups, 1, (load, make, finish))
    return y
