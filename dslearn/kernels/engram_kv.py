"""Engram's fused key/value projection: fp8 activations with scales times an fp8 weight in tiles."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from dslearn.kernels.blocks import UNIT, cut, mine, product, store_rows
from dslearn.kernels.folded import diagonal, folded
from dslearn.kernels.linear_parts import turn


def _decoded(codes: nl.NkiTensor, scale: nl.NkiTensor, inner: int) -> nl.NkiTensor:
    """Codes times scales as bf16 [M, inner] in SBUF, exact, zeros behind K."""
    rows, given = codes.shape
    assert rows <= 128 and given % UNIT == 0 and given <= inner, "at most 128 rows; K in blocks"
    tile = nl.ndarray(shape=(rows, given), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=codes)
    powers = nl.ndarray(shape=(rows, given // UNIT), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.dma_copy(dst=powers, src=scale)
    wide = nl.ndarray(shape=powers.shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=wide, src=powers)
    factors = nl.ndarray(shape=powers.shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=factors, data=wide, op0=nl.left_shift, operand0=23)
    x = nl.ndarray(shape=(rows, inner), dtype=nl.bfloat16, buffer=nl.sbuf)
    if given < inner:
        nisa.memset(dst=x[:, given:inner], value=0.0)
    nisa.tensor_tensor(
        dst=x[:, 0:given].reshape((rows, given // UNIT, UNIT)),
        data1=tile.view(nl.float8_e4m3).reshape((rows, given // UNIT, UNIT)),
        data2=factors.view(nl.float32).expand_dim(2).broadcast(2, UNIT),
        op=nl.multiply,
    )
    return x


@nki.jit
def engram_kv(
    codes: nl.NkiTensor, x_scale: nl.NkiTensor, weight: nl.NkiTensor, scale: nl.NkiTensor
) -> nl.NkiTensor:
    """y = (codes · 2^x_scale) · W for W in e4m3 codes with one power of two per 32 x 32 tile.

    Dimensions:
        M rows, 1 to 128; K inputs, a multiple of 32; K' the same padded to 128; N outputs, a
        multiple of 64; J = K'/128.
    Args:
        codes: [M, K] uint8, e4m3 codes up to 240, in HBM.
        x_scale: [M, K/32] uint8, exponents 2^(byte - 127) with bytes 1 to 254, in HBM.
        weight: [2, 128, J, N/2] uint8, e4m3 codes up to 240: two halves of the outputs, input
            128 j + p at [.., p, j, ..], in HBM; `formats.inputs_first.by_half` makes it.
        scale: [2, 4, N/64, J] uint8, exponents of lanes 0 to 31, 32 to 63, .., in HBM.
    Returns:
        y: [M, N] bf16, in shared HBM.
    Notes:
        The weight is read once, as it is stored: 157 MB of the released 6144 x 25600, 0.22 ms. Both
        scales meet in the activations: a code times a power of two has four significant bits, so
        is a bf16 number as long as it is a normal one (2^-126 to 2^127), also after the weight's
        scale. For few rows: modelled 0.24 ms for 6, 0.25 for 16, 1.8 for 64. Decoding takes 2 K
        cycles of Vector for all rows, folding M instructions for every 128 inputs. Exact up to the
        sum: fp32 in PSUM, rounded once. Two cores take half of the outputs each.
    Pseudocode:
        x[m, k] = e4m3(codes[m, k]) · 2^(x_scale[m, k/32] - 127)
        for each block of 128 outputs, each j of its four 32:
            y[m, n] = sum over k of (x[m, k] · 2^(scale[k/32, j] - 127)) · e4m3(weight[k, n])
    """
    rows = codes.shape[0]
    _, _, tiles, width = weight.shape
    y = nl.ndarray(shape=(rows, 2 * width), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    turned = nl.ndarray(shape=(128, tiles, rows), dtype=nl.float32, buffer=nl.sbuf)
    turn(turned, _decoded(codes, x_scale, 128 * tiles))
    for half in mine():
        source = folded(turned, weight[half], scale[half], 1)
        results = []
        for compute in product(cut(width // UNIT), 1, tiles, 4 * rows, source):
            for block, sums in compute():
                out = nl.ndarray(shape=(UNIT * block[1], rows), dtype=y.dtype, buffer=nl.sbuf)
                results.append(diagonal(out, sums[0]))
        store_rows(results, y, half * width)  # at the end: a store waits behind loads
    return y
