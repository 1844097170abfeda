"""The product with an fp8 weight, the obvious way: dequantise on the Vector engine, then GEMM."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dslearn.kernels.naive_parts import (
    BLOCK,
    GROUP,
    columns_of,
    multiply,
    output_blocks,
    powers,
    turned,
)


def _dequantised(codes: nl.NkiTensor, scale: nl.NkiTensor, start: int, height: int) -> nl.NkiTensor:
    """Rows start.. of the weight as bf16 [height, K] in SBUF; 4 Vector cycles per element."""
    inner = codes.shape[1]
    blocks = inner // BLOCK
    tile = nl.ndarray(shape=(height, inner), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=codes[start : start + height, :])
    rows = scale[start // BLOCK : (start + height) // BLOCK, :]
    power = powers(rows.expand_dim(1).broadcast(1, BLOCK), height)
    # A signed byte widened to 16 bits repeats its sign, so one shift puts sign, exponent and
    # mantissa where fp16 has them; what is left of the repeated sign is masked away.
    signed = nl.ndarray(shape=(height, inner), dtype=nl.int16, buffer=nl.sbuf)
    nisa.tensor_copy(dst=signed, src=tile.view(nl.int8), engine=nisa.engine.vector)
    half = nl.ndarray(shape=(height, inner), dtype=nl.uint16, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=half,
        data=signed.view(nl.uint16),
        op0=nl.left_shift,
        operand0=7,
        op1=nl.bitwise_and,
        operand1=0xBF80,
    )
    weight = nl.ndarray(shape=(height, inner), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=weight.reshape((height, blocks, BLOCK)),
        data=half.view(nl.float16).reshape((height, blocks, BLOCK)),
        op0=nl.multiply,
        operand0=256.0,  # the exponent of fp16 is read with bias 15, e4m3's is 7
        op1=nl.multiply,
        operand1=power.expand_dim(2).broadcast(2, BLOCK),
    )
    return weight


@nki.jit
def naive_fp8(x: nl.NkiTensor, codes: nl.NkiTensor, scale: nl.NkiTensor) -> nl.NkiTensor:
    """y = x · Wᵀ for W in e4m3 codes with one power-of-two scale per 32 x 32 tile.

    Dimensions:
        M rows, 1 to 128; K inputs and N outputs, multiples of 32.
    Args:
        x: [M, K] bf16, in HBM.
        codes: [N, K] uint8, e4m3fn codes up to 448, in HBM.
        scale: [N/32, K/32] uint8, exponents 2^(byte - 127) with bytes 1 to 254, in HBM.
    Returns:
        y: [M, N] bf16, in shared HBM.
    Notes:
        Written to be understood and beaten: every weight element passes the Vector engine, whose
        128 lanes take one element per cycle. Cycles per element: widen to 16 bits 1, shift and
        mask into fp16 1, times 256 and the scale 2, copy of the transposed tile out of PSUM 0.5:
        4.5 in all, 1.73 ms for 1280 x 36864, beside 0.13 ms that the bytes take from HBM. Codes
        are decoded with integer operations because trn2 reads e4m3fn codes above 240 as infinity
        or NaN. Weights stay in rows of outputs, as in a checkpoint. Everything is exact up to the
        sum: fp32 in PSUM, rounded once. Two cores take half of the outputs each.
    Pseudocode:
        for each block of 128 outputs n:
            w[n, k] = fp16(bits(codes[n, k]) shifted) · 256 · 2^(scale[n/32, k/32] - 127)
            y[m, n] = sum over k of x[m, k] · w[n, k]
    """
    rows, inner = x.shape
    outputs = codes.shape[0]
    assert inner == codes.shape[1] and inner % BLOCK == 0, "inputs: a multiple of 32"
    y = nl.ndarray(shape=(rows, outputs), dtype=x.dtype, buffer=nl.shared_hbm)
    columns = columns_of(x)
    blocks = output_blocks(outputs)
    for i in range(0, len(blocks), GROUP):
        weights = []
        for start, height in blocks[i : i + GROUP]:
            weights.append(_dequantised(codes, scale, start, height))
        multiply(columns, turned(weights, inner), y, blocks[i][0])
    return y
