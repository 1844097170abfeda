"""What kernels share: how a matrix is cut into tiles, who gets which, and how one is loaded.

R rows, K columns. Cuts are plain integers, computed when a kernel is compiled.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

PARTITIONS = 128  # rows of a tile: one per lane


def row_blocks(rows: int, tallest: int = PARTITIONS) -> list[tuple[int, int]]:
    """(first row, number of rows) of each block that this core does; at most `tallest` rows each.

    Both cores of a launch must execute the same instructions, so they get equally many blocks,
    and the blocks differ in height by at most one. A single row cannot be shared: both cores do it.

    Args:
        rows: R >= 1, rows of the whole matrix.
        tallest: 128, or less where more rows do not fit.
    """
    cores, core = nl.num_programs(), nl.program_id(axis=0)
    if rows < cores:
        return [(0, rows)]
    mine = -(-rows // (cores * tallest))
    blocks = []
    for i in range(core * mine, core * mine + mine):
        start, stop = rows * i // (cores * mine), rows * (i + 1) // (cores * mine)
        blocks.append((start, stop - start))
    return blocks


def column_blocks(columns: int, widest: int) -> list[tuple[int, int]]:
    """(first column, number of columns) of blocks of at most `widest` columns."""
    return [(first, min(widest, columns - first)) for first in range(0, columns, widest)]


def result(rows: int, columns: int, dtype: nl.DType) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """The matrix [R, K] that the kernel returns, and the one that this core writes.

    They are the same, but for a single row on two cores: the second core's copy of it goes to
    memory of its own, because two cores must not write one place.
    """
    shared = nl.ndarray(shape=(rows, columns), dtype=dtype, buffer=nl.shared_hbm)
    if rows == 1 and nl.program_id(axis=0) == 1:
        return shared, nl.ndarray(shape=(rows, columns), dtype=dtype, buffer=nl.private_hbm)
    return shared, shared


def load_tile(
    source: nl.NkiTensor, start: int, height: int, first: int, width: int
) -> nl.NkiTensor:
    """Rows start.. and columns first.. of an HBM matrix as a tile [height, width] in SBUF."""
    tile = nl.ndarray(shape=(height, width), dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source[start : start + height, first : first + width])
    return tile


def store_tile(target: nl.NkiTensor, start: int, first: int, tile: nl.NkiTensor) -> None:
    """The tile to the rows start.. and columns first.. of an HBM matrix."""
    height, width = tile.shape
    nisa.dma_copy(dst=target[start : start + height, first : first + width], src=tile)
