"""The product with an fp4 weight, the obvious way: dequantise on the Vector engine, then GEMM."""

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

# Of the four bytes of a word: where the low nibbles have magnitude and sign, and the high ones.
LOW, LOW_SIGN, HIGH, HIGH_SIGN = 0x07070707, 0x08080808, 0x70707070, 0x80808080


def _nibbles(
    words: nl.NkiTensor, magnitude: tuple[object, ...], sign: tuple[object, ...]
) -> nl.NkiTensor:
    """One nibble of every byte as an e4m3 code: bits see m of e2m1 become s00eem00.

    That is the value times 2^-6, exactly, because e2m1 has bias 1 and e4m3 bias 7; 0.5 becomes a
    subnormal number. `magnitude` and `sign` are (mask, operator, shift). Four codes per word and
    operation.
    """
    parts = []
    for mask, shift, by in (magnitude, sign):
        part = nl.ndarray(shape=words.shape, dtype=nl.uint32, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=part, data=words, op0=nl.bitwise_and, operand0=mask, op1=shift, operand1=by
        )
        parts.append(part)
    codes = nl.ndarray(shape=words.shape, dtype=nl.uint32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=codes, data1=parts[0], data2=parts[1], op=nl.bitwise_or)
    return codes.view(nl.float8_e4m3)


def _dequantised(
    packed: nl.NkiTensor, scale: nl.NkiTensor, start: int, height: int
) -> nl.NkiTensor:
    """Rows start.. of the weight as bf16 [height, K] in SBUF; 3 Vector cycles per element."""
    inner = packed.shape[1] * 2
    blocks = inner // BLOCK
    tile = nl.ndarray(shape=(height, inner // 2), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=packed[start : start + height, :])
    power = powers(scale[start : start + height, :], height)
    words = tile.view(nl.uint32)
    low = _nibbles(words, (LOW, nl.left_shift, 2), (LOW_SIGN, nl.left_shift, 4))
    high = _nibbles(words, (HIGH, nl.right_shift, 2), (HIGH_SIGN, nl.right_shift, 0))
    weight = nl.ndarray(shape=(height, inner), dtype=nl.bfloat16, buffer=nl.sbuf)
    pairs = weight.reshape((height, blocks, BLOCK // 2, 2))
    for half, codes in ((0, low), (1, high)):
        nisa.scalar_tensor_tensor(
            dst=pairs[:, :, :, half],
            data=codes.reshape((height, blocks, BLOCK // 2)),
            op0=nl.multiply,
            operand0=64.0,
            op1=nl.multiply,
            operand1=power.expand_dim(2).broadcast(2, BLOCK // 2),
        )
    return weight


@nki.jit
def naive_fp4(x: nl.NkiTensor, packed: nl.NkiTensor, scale: nl.NkiTensor) -> nl.NkiTensor:
    """y = x · Wᵀ for W in e2m1 codes, two per byte, with one power-of-two scale per 32 inputs.

    Dimensions:
        M rows, 1 to 128; K inputs and N outputs, multiples of 32.
    Args:
        x: [M, K] bf16, in HBM.
        packed: [N, K/2] uint8, input 2j in the low half of byte j, 2j + 1 in the high half, in HBM.
        scale: [N, K/32] uint8, exponents 2^(byte - 127) with bytes 1 to 254, in HBM.
    Returns:
        y: [M, N] bf16, in shared HBM.
    Notes:
        Written to be understood and beaten. Vector cycles per element: masks and shifts on words
        of eight codes 4/8, two bitwise ors 4/8, times 64 and the scale 2, copy of the transposed
        tile out of PSUM 0.5: 3.5 in all, 0.67 ms for 5120 x 4608, beside 0.034 ms that the bytes
        take from HBM. Assumes that the Vector engine reads subnormal e4m3 numbers as what they
        are. Weights stay in rows of outputs, as in a checkpoint. Everything is exact up to the
        sum: fp32 in PSUM, rounded once. Two cores take half of the outputs each.
    Pseudocode:
        for each block of 128 outputs n:
            w[n, k] = e4m3(nibble moved) · 64 · 2^(scale[n, k/32] - 127)
            y[m, n] = sum over k of x[m, k] · w[n, k]
    """
    rows, inner = x.shape
    outputs = packed.shape[0]
    assert inner == packed.shape[1] * 2 and inner % BLOCK == 0, "inputs: a multiple of 32"
    y = nl.ndarray(shape=(rows, outputs), dtype=x.dtype, buffer=nl.shared_hbm)
    columns = columns_of(x)
    blocks = output_blocks(outputs)
    for i in range(0, len(blocks), GROUP):
        weights = []
        for start, height in blocks[i : i + GROUP]:
            weights.append(_dequantised(packed, scale, start, height))
        multiply(columns, turned(weights, inner), y, blocks[i][0])
    return y
