"""The product with a packed fp4 weight, decoded tile by tile in SBUF."""

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

ROOM = 6 * 1024  # bytes per partition for the words of a group of tiles
APART = 4  # inputs of a word: they share a partition
HALF = LANES // 2  # outputs of a tile that are the first codes of their bytes
SHARING = 32 // APART  # partitions that share a scale
IN_BANK = 4  # runs of 512 inputs whose scales for 128 outputs fill a PSUM bank
FIRST, SIGN, SIZE = 0x8E8E8E8E, 0x01010101, 0x70707070
UNIT = 2.0**14  # e2m1 bits read as e5m2 are the value times 2^-14: bias 1 for 15


def selectors() -> nl.NkiTensor:
    """[128 blocks, 8, 128] bf16: 2^14 where partition p of run r holds inputs of block g, else 0.

    A product with it copies the scales of 16 blocks to the 8 partitions each that need them.
    """
    one = nl.shared_identity_matrix(n=LANES, dtype=nl.bfloat16)
    chosen = nl.ndarray(shape=(LANES, LANES, SHARING), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=chosen,
        data=one.expand_dim(2).broadcast(2, SHARING),
        op0=nl.multiply,
        operand0=UNIT,
    )
    return chosen.reshape((LANES, SHARING, LANES))


def word_parts(words: nl.NkiTensor) -> list[nl.NkiTensor]:
    """Words [128, ...] masked and shifted: the first codes, and size and sign of the second.

    The host has put the bits so that the first code of every byte is a mask and the second two
    more, to be added; read as e5m2 both are the value times 2^-14, subnormals included.
    """
    parts = []
    for mask, shift, by in (
        (FIRST, nl.left_shift, 0),
        (SIZE, nl.right_shift, 3),
        (SIGN, nl.left_shift, 7),
    ):
        part = nl.ndarray(shape=words.shape, dtype=nl.uint32, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=part, data=words, op0=nl.bitwise_and, operand0=mask, op1=shift, operand1=by
        )
        parts.append(part)
    return parts


def codes_of(parts: list[nl.NkiTensor], tile: int) -> Pair:
    """Both codes of every byte of a tile, e5m2 [128, S, 256] each.

    GpSimd adds the disjoint bits of size and sign, which is an `or`, with 32-bit integers.
    """
    first, size, sign = parts[0][:, tile], parts[1][:, tile], parts[2][:, tile]
    second = nl.ndarray(shape=size.shape, dtype=nl.uint32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=second, data1=size, data2=sign, op=nl.add, engine=nisa.engine.gpsimd)
    return first.view(nl.float8_e5m2), second.view(nl.float8_e5m2)


def scaled(codes: Pair, scales: nl.NkiTensor, chosen: nl.NkiTensor) -> nl.NkiTensor:
    """One tile: codes [128, S, 64 · 4] twice, scales [128, Q, 128 outputs]: bf16 [128, 4 S, 128].

    Vector takes a product per cycle if one operand is in PSUM; GpSimd needs 1.6 times as long, so
    it gets two fifths, and does not reach PSUM, so it gets a copy.
    """
    runs = codes[0].shape[1]
    weights = nl.ndarray(shape=(LANES, runs, APART, LANES), dtype=nl.bfloat16, buffer=nl.sbuf)
    shared = 2 * runs // 5
    for start, stop, engine in (
        (0, shared, nisa.engine.gpsimd),
        (shared, runs, nisa.engine.vector),
    ):
        for first in range(start, stop, IN_BANK):
            last = min(first + IN_BANK, stop)
            factors = _spread(scales, chosen, first, last)
            if engine == nisa.engine.gpsimd:
                near = nl.ndarray(shape=factors.shape, dtype=nl.bfloat16, buffer=nl.sbuf)
                nisa.tensor_copy(dst=near, src=factors, engine=nisa.engine.scalar)
                factors = near
            for half in range(2):
                outputs = slice(half * HALF, half * HALF + HALF)
                part = codes[half][:, first:last, :].reshape((LANES, last - first, HALF, APART))
                nisa.tensor_tensor(
                    dst=weights[:, first:last, :, outputs],
                    data1=part.permute((0, 1, 3, 2)),
                    data2=factors[:, :, outputs].expand_dim(2).broadcast(2, APART),
                    op=nl.multiply,
                    engine=engine,
                )
    return weights.reshape((LANES, runs * APART, LANES))


def _spread(scales: nl.NkiTensor, chosen: nl.NkiTensor, first: int, last: int) -> nl.NkiTensor:
    """Scales of runs first to last of one tile, times 2^14, on their partitions: in PSUM, fp32."""
    factors = nl.ndarray(shape=(LANES, last - first, LANES), dtype=nl.float32, buffer=nl.psum)
    for run in range(first, last):
        nisa.nc_matmul(
            dst=factors[:, run - first, :],
            stationary=chosen[:, run % SHARING, :],
            moving=scales[:, run // SHARING, :],
            accumulate=False,
        )
    return factors


@nki.jit
def fp4_linear(
    x: nl.NkiTensor,
    words: nl.NkiTensor,
    power: nl.NkiTensor,
    outputs: int,
    fp32_out: bool = False,
) -> nl.NkiTensor:
    """y = x · Wᵀ for W in e2m1 codes, two per byte, with one power-of-two scale per 32 inputs.

    Dimensions:
        M rows, K inputs (a multiple of 32, up to 20480), N outputs; 512 rows at a time, fewer for
        K above 5120.
        T tiles of 128 outputs, S runs of 512 inputs, Q sets of 128 blocks of 32 inputs.
    Args:
        x: [M, K] bf16, in HBM.
        words: [128, T, S, 64, 4] uint8, codes as `place_fp4` puts them, in HBM.
        power: [128, Q, 128 T] uint8, scale bytes 1 to 240 as `place_fp4` puts them, in HBM.
        outputs: N; tiles beyond it are padding.
        fp32_out: return fp32 instead of bf16.
    Returns:
        y: [M, N] bf16 or fp32, in shared HBM.
    Notes:
        Per weight: 3/8 cycles of Vector and 2/8 of GpSimd to make e5m2 codes, eight codes per
        word, then a product with the scale, one cycle of Vector or two of GpSimd: 1 cycle in
        all when GpSimd takes two fifths. That is 134 ns per 128 x 128 weights, beside 26 ns for
        the bytes: keep a weight widened (`fp4_widened`) if its scales allow. Assumes that Vector
        and GpSimd read subnormal e5m2 numbers (0.5) as what they are. Codes times scale are exact
        in bf16 while they are normal numbers. Sums are fp32 in PSUM, rounded once. Two cores take
        half of the tiles each.
    Pseudocode:
        for each chunk of 512 rows and tile t of 128 outputs:
            w[k, n] = e5m2(bits of words[.., t, ..]) · 2^14 · 2^(power[k / 32, n] - 127)
            y[m, n] = sum over k of x[m, k] · w[k, n]
    """
    rows, runs = x.shape[0], words.shape[2]
    y = result_for(x, words.shape[1], outputs, fp32_out)
    groups = my_tiles(words.shape[1], max(1, ROOM // (runs * LANES * 2)))
    chosen = selectors()

    def load(group: tuple[int, int]) -> tuple[list[nl.NkiTensor], nl.NkiTensor]:
        start, count = group
        scales = powers(power[:, :, start * LANES : (start + count) * LANES], nl.bfloat16)
        packed = nl.ndarray(shape=(LANES, count, runs, LANES * 2), dtype=nl.uint8, buffer=nl.sbuf)
        nisa.dma_copy(
            dst=packed.reshape((LANES, count, runs, HALF, APART)),
            src=words[:, start : start + count, :, :, :],
        )
        return word_parts(packed.view(nl.uint32)), scales

    def make(loaded: tuple[list[nl.NkiTensor], nl.NkiTensor], i: int) -> nl.NkiTensor:
        parts, scales = loaded
        tile = scales[:, :, i * LANES : (i + 1) * LANES]
        return scaled(codes_of(parts, i), tile, chosen)

    for chunk in row_chunks(rows, runs * APART):
        turned = columns(x, chunk[0], chunk[1], runs * APART, APART)

        def finish(
            weights: nl.NkiTensor, result: nl.NkiTensor, i: int, turned: nl.NkiTensor = turned
        ) -> None:
            sums = product(weights, turned)
            nisa.tensor_copy(dst=result[:, i, :], src=sums, engine=nisa.engine.scalar)

        pipeline(y, chunk, groups, 1, (load, make, finish))
    return y
