"""What the two naive quantised products share: blocks of outputs, scales, transposes, the GEMM.

M rows of activations, K inputs, N outputs; a weight has its N outputs in rows, as in a checkpoint.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

BLOCK = 32  # rows and columns that one scale may cover
GROUP = 4  # tiles of 128 outputs that fill one PSUM bank of 512 fp32 columns


def output_blocks(outputs: int) -> list[tuple[int, int]]:
    """(first output, number) of this core's blocks: at most 128, in multiples of 32.

    Both cores get equally many blocks, because both must execute the same instructions.
    """
    cores, core = nl.num_programs(), nl.program_id(axis=0)
    units = outputs // BLOCK
    assert outputs % BLOCK == 0 and units >= cores, "outputs: a multiple of 32, 32 per core"
    mine = -(-units // (cores * GROUP))
    blocks = []
    for i in range(core * mine, core * mine + mine):
        start, stop = units * i // (cores * mine), units * (i + 1) // (cores * mine)
        blocks.append((start * BLOCK, (stop - start) * BLOCK))
    return blocks


def powers(scale: nl.NkiTensor, height: int) -> nl.NkiTensor:
    """Scale bytes [height, blocks] (a view in HBM) as fp32 powers of two in SBUF, 2^(byte - 127).

    The byte is the exponent of an fp32 number, so a shift by 23 decodes it. Bytes 1 to 254.
    """
    count = scale.shape[-1]
    codes = nl.ndarray(shape=(height, count), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.dma_copy(dst=codes, src=scale)
    wide = nl.ndarray(shape=(height, count), dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=wide, src=codes)
    bits = nl.ndarray(shape=(height, count), dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=bits, data=wide, op0=nl.left_shift, operand0=23)
    return bits.view(nl.float32)


def columns_of(x: nl.NkiTensor) -> list[nl.NkiTensor]:
    """x [M, K] of HBM as tiles [<= 128, M] in SBUF: K on the partitions, where products want it."""
    rows, inner = x.shape
    assert rows <= 128, "at most 128 rows: one partition each"
    tile = nl.ndarray(shape=(rows, inner), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    columns = []
    for k in range(0, inner, 128):
        width = min(128, inner - k)
        turned = nl.ndarray(shape=(width, rows), dtype=x.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=turned, data=tile[:, k : k + width], engine=nisa.engine.tensor)
        column = nl.ndarray(shape=(width, rows), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=column, src=turned)
        columns.append(column)
    return columns


def turned(weights: list[nl.NkiTensor], inner: int) -> list[nl.NkiTensor]:
    """Up to four weight tiles [<= 128 outputs, K] as tiles [<= 128 inputs, outputs] in SBUF.

    A product contracts over partitions, so each 128 x 128 piece of a weight is transposed by the
    tensor engine into PSUM and copied back by the Vector engine: half a pass over the weight.
    """
    total = sum([w.shape[0] for w in weights])
    tiles = []
    for k in range(0, inner, 128):
        width = min(128, inner - k)
        pieces = nl.ndarray(shape=(width, total), dtype=weights[0].dtype, buffer=nl.psum)
        at = 0
        for w in weights:
            height = w.shape[0]
            nisa.nc_transpose(
                dst=pieces[:, at : at + height],
                data=w[:, k : k + width],
                engine=nisa.engine.tensor,
            )
            at += height
        tile = nl.ndarray(shape=(width, total), dtype=weights[0].dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=tile, src=pieces, engine=nisa.engine.vector)
        tiles.append(tile)
    return tiles


def multiply(
    columns: list[nl.NkiTensor], tiles: list[nl.NkiTensor], y: nl.NkiTensor, first: int
) -> None:
    """y[:, first ...] = sum over i of columns[i]ᵀ · tiles[i]; at most 512 outputs."""
    rows, total = columns[0].shape[1], tiles[0].shape[1]
    sums = nl.ndarray(shape=(rows, total), dtype=nl.float32, buffer=nl.psum)
    for i in range(len(columns)):
        nisa.nc_matmul(dst=sums, stationary=columns[i], moving=tiles[i], accumulate=i > 0)
    out = nl.ndarray(shape=(rows, total), dtype=y.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=out, src=sums)
    nisa.dma_copy(dst=y[:, first : first + total], src=out)
