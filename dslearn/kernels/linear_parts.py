"""What the quantised products share: x turned, scale bytes as numbers, results put in rows.

M rows of activations, K inputs, N outputs. Weights are placed (docs/reference/formats.md, "Device
placement"): T tiles of 128 outputs, J steps of 128 inputs. Products come out as [outputs, rows],
with the outputs on the partitions, and are turned before they are stored.
"""

from __future__ import annotations

from collections.abc import Callable

import nki.isa as nisa
import nki.language as nl

Pair = tuple[nl.NkiTensor, nl.NkiTensor]

LANES = 128
BANK = 2048  # bytes per partition of one PSUM bank
ROWS_ROOM = 40 * 1024  # bytes per partition for the activations of a chunk of rows


def my_tiles(tiles: int, largest: int) -> list[tuple[int, int]]:
    """(first tile of outputs, number) of this core's groups, at most `largest` tiles each.

    Two cores take half of an even number each. The last groups are smaller: what remains to be
    done once the last bytes have come is short.
    """
    mine = tiles // nl.num_programs()
    assert mine * nl.num_programs() == tiles, "tiles of outputs: an even number on two cores"
    start, groups = nl.program_id(axis=0) * mine, []
    while mine > 0:
        count = min(largest, mine, max(4, -(-mine // 2)))
        groups.append((start, count))
        start, mine = start + count, mine - count
    return groups


def result_for(x: nl.NkiTensor, tiles: int, outputs: int, fp32_out: bool) -> nl.NkiTensor:
    """y [M, N] in shared HBM, in fp32 or the dtype of x."""
    assert 0 < outputs <= tiles * LANES, "outputs: those that were placed, at least 1"
    kind = nl.float32 if fp32_out else x.dtype
    return nl.ndarray(shape=(x.shape[0], outputs), dtype=kind, buffer=nl.shared_hbm)


def row_chunks(rows: int, steps: int, most: int = 512) -> list[tuple[int, int]]:
    """(first row, number) of chunks whose turned activations fit: 512 rows at most."""
    widest = min(most, max(1, ROWS_ROOM // (2 * steps)))
    return [(first, min(widest, rows - first)) for first in range(0, rows, widest)]


def columns(
    x: nl.NkiTensor,
    first: int,
    rows: int,
    steps: int,
    apart: int = 1,
    dtype: nl.DType = nl.bfloat16,
) -> nl.NkiTensor:
    """Rows first.. of x [M, K] in HBM as [128, steps, rows] in SBUF: inputs on the partitions.

    With `apart` 1, [p, j, m] is input 128 j + p. With 4, [p, 4 s + i, m] is input 512 s + 4 p + i,
    so that four neighbours of one block share a partition. Inputs from K on are zeros.
    """
    inputs = x.shape[1]
    out = nl.ndarray(shape=(LANES, steps, rows), dtype=dtype, buffer=nl.sbuf)
    for top in range(0, rows, LANES):
        height = min(LANES, rows - top)
        wide = nl.ndarray(shape=(height, steps * LANES), dtype=x.dtype, buffer=nl.sbuf)
        if inputs < steps * LANES:
            nisa.memset(dst=wide[:, inputs : steps * LANES], value=0.0)
        nisa.dma_copy(dst=wide[:, 0:inputs], src=x[first + top : first + top + height, :])
        turn(out[:, :, top : top + height], wide, apart)
    return out


def turn(out: nl.NkiTensor, wide: nl.NkiTensor, apart: int = 1) -> None:
    """out [128, steps, M] = wide [M, 128 steps], both in SBUF, see `columns`."""
    height, steps = wide.shape[0], out.shape[1]
    parts = wide.reshape((height, steps // apart, LANES, apart))
    size = 4 if wide.dtype == nl.float32 else 2
    several = BANK // (size * height)  # steps that one bank holds
    for start in range(0, steps, several):
        count = min(several, steps - start)
        bank = nl.ndarray(shape=(LANES, count, height), dtype=wide.dtype, buffer=nl.psum)
        for j in range(count):
            block, inner = (start + j) // apart, (start + j) % apart
            nisa.nc_transpose(
                dst=bank[:, j, :], data=parts[:, block, :, inner], engine=nisa.engine.tensor
            )
        nisa.tensor_copy(dst=out[:, start : start + count, :], src=bank)


def powers(source: nl.NkiTensor, dtype: nl.DType) -> nl.NkiTensor:
    """Scale bytes (a view in HBM) as bf16 or fp32 powers of two in SBUF."""
    codes = nl.ndarray(shape=source.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.dma_copy(dst=codes, src=source)
    return as_powers(codes, dtype)


def as_powers(codes: nl.NkiTensor, dtype: nl.DType) -> nl.NkiTensor:
    """Scale bytes in SBUF as bf16 or fp32 powers of two, 2^(byte - 127).

    A byte from 1 to 254 is the exponent of a bf16 or fp32 number: times 2^7 as a 16-bit integer,
    times 2^23 as a 32-bit one. The Scalar engine does it, which has little else to do.
    """
    integer, place = (nl.int32, 2.0**23) if dtype == nl.float32 else (nl.uint16, 2.0**7)
    bits = nl.ndarray(shape=codes.shape, dtype=integer, buffer=nl.sbuf)
    nisa.activation(dst=bits, op=nl.copy, data=codes, scale=place)
    return bits.view(dtype)


def product(weights: nl.NkiTensor, turned: nl.NkiTensor) -> nl.NkiTensor:
    """One tile of outputs: sums [128, M] in PSUM of weights [128, J, 128] and x [128, J, M]."""
    sums = nl.ndarray(shape=(LANES, turned.shape[2]), dtype=nl.float32, buffer=nl.psum)
    for j in range(turned.shape[1]):
        nisa.nc_matmul(
            dst=sums, stationary=weights[:, j, :], moving=turned[:, j, :], accumulate=j > 0
        )
    return sums


def copy_out(dst: nl.NkiTensor, src: nl.NkiTensor, turn: int) -> None:
    """PSUM to SBUF, on Vector and Scalar in turn."""
    engine = nisa.engine.scalar if turn % 2 else nisa.engine.vector
    nisa.tensor_copy(dst=dst, src=src, engine=engine)


def pipeline(
    y: nl.NkiTensor,
    chunk: tuple[int, int],
    groups: list[tuple[int, int]],
    step: int,
    stages: tuple[Callable[..., object], Callable[..., object], Callable[..., object]],
) -> None:
    """Tile after tile, so ordered that no engine waits for another: engines work in program order.

    A group of tiles is loaded while the one before is computed, and stored while the next one is;
    weights of a tile are made before the product of the one before.

    Args:
        y: [M, N] in HBM.
        chunk: first row and number of rows.
        groups: first tile and number of tiles, of `my_tiles`.
        step: tiles that are made and finished at once.
        stages: load(group) -> loaded; make(loaded, i) -> made, for tiles i.. of the group;
            finish(made, result, i): tiles i.. of a result [128 outputs, tiles, rows].
    """
    load, make, finish = stages
    row, rows = chunk
    loaded = load(groups[0])
    waiting: list[tuple[object, nl.NkiTensor, int]] = []
    full: list[tuple[nl.NkiTensor, int]] = []
    for g in range(len(groups)):
        ahead = load(groups[g + 1]) if g + 1 < len(groups) else None
        result = nl.ndarray(shape=(LANES, groups[g][1], rows), dtype=y.dtype, buffer=nl.sbuf)
        for i in range(0, groups[g][1], step):
            made = make(loaded, i)
            for weights, target, at in waiting:
                finish(weights, target, at)
            waiting = [(made, result, i)]
            for done, first in full:
                put(y, done, row, first * LANES)
            full = []
        loaded = ahead
        full = [(result, groups[g][0])]
    finish(waiting[0][0], waiting[0][1], waiting[0][2])
    put(y, full[0][0], row, full[0][1] * LANES)


def put(y: nl.NkiTensor, result: nl.NkiTensor, row: int, column: int) -> None:
    """y[row.., column..] = results [128 outputs, tiles, rows] of consecutive tiles, turned.

    Padded outputs are not stored. A core whose outputs are all padding stores one column to memory
    of its own, because both cores must execute the same instructions.
    """
    _, tiles, rows = result.shape
    width = min(tiles * LANES, y.shape[1] - column)
    target = y
    if width <= 0:
        width, column = 1, 0
        target = nl.ndarray(shape=y.shape, dtype=y.dtype, buffer=nl.private_hbm)
    several = BANK // (LANES * (4 if result.dtype == nl.float32 else 2))
    for top in range(0, rows, LANES):
        height = min(LANES, rows - top)
        wide = nl.ndarray(shape=(height, tiles, LANES), dtype=result.dtype, buffer=nl.sbuf)
        for start in range(0, tiles, several):
            count = min(several, tiles - start)
            bank = nl.ndarray(shape=(height, count, LANES), dtype=result.dtype, buffer=nl.psum)
            for i in range(count):
                nisa.nc_transpose(
                    dst=bank[:, i, :],
                    data=result[:, start + i, top : top + height],
                    engine=nisa.engine.tensor,
                )
            copy_out(wide[:, start : start + count, :], bank, start // several)
        flat = wide.reshape((height, tiles * LANES))
        nisa.dma_copy(
            dst=target[row + top : row + top + height, column : column + width],
            src=flat[:, 0:width],
        )
