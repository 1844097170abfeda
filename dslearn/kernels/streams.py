"""What the kernels of the residual streams share: how rows are cut, and sums of few terms.

R rows (tokens), S streams, d hidden, P partitions of a tile, w columns. Few rows would leave most
lanes idle, so a row lies in n partitions with w = d/n neighbouring columns each.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from dslearn.kernels.tiles import PARTITIONS, row_blocks

SHORTEST = 64  # columns: an instruction takes 64 cycles however few elements it has


def shares(rows: int, columns: int) -> list[tuple[int, int, int, int]]:
    """(first row, rows, first column, columns) of the blocks that this core does.

    Two cores take half of the rows each, or half of the columns of a single row; a single row of
    an odd width is done by both.
    """
    cores, core = nl.num_programs(), nl.program_id(axis=0)
    if rows == 1 and columns % cores == 0:
        return [(0, 1, core * columns // cores, columns // cores)]
    return [(start, height, 0, columns) for start, height in row_blocks(rows)]


def results(shape: tuple[int, ...], dtype: nl.DType) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """A tensor [R, .., d] that the kernel returns, and where this core writes its `shares`.

    They differ where both cores do the same row: two cores must not write one place.
    """
    shared = nl.ndarray(shape=shape, dtype=dtype, buffer=nl.shared_hbm)
    if shape[0] == 1 and shape[-1] % 2 == 1 and nl.program_id(axis=0) == 1:
        return shared, nl.ndarray(shape=shape, dtype=dtype, buffer=nl.private_hbm)
    return shared, shared


def lanes_per_row(rows: int, columns: int) -> int:
    """n: the largest divisor of the columns that fits 128 partitions and leaves w >= 64.

    From the rows of the whole matrix, because both cores must execute the same instructions and
    their blocks may differ by one row.
    """
    tallest = min(PARTITIONS, -(-rows // nl.num_programs()))
    return divisor(columns, min(PARTITIONS // tallest, max(1, columns // SHORTEST)))


def divisor(number: int, largest: int) -> int:
    """The largest divisor of `number` that is at most `largest`."""
    found = 1
    for candidate in range(2, largest + 1):
        if number % candidate == 0:
            found = candidate
    return found


def cut(rows: nl.NkiTensor, lanes: int) -> nl.NkiTensor:
    """A view of rows [r, .., d] in HBM as [r, n, .., w], the order of a tile [r n, .., w]."""
    last = rows.ndim - 1
    width = rows.shape[last] // lanes
    parts = rows.reshape_dim(last, (lanes, width))
    return parts.permute((0, 2, 1, 3)) if last == 2 else parts


def load_cut(source: nl.NkiTensor, first: int, width: int) -> nl.NkiTensor:
    """Columns first.. of a view [r, n, .., w] of `cut` as a tile [r n, .., width] in SBUF."""
    part = source[..., first : first + width]
    shape = (part.shape[0] * part.shape[1], *part.shape[2:])
    tile = nl.ndarray(shape=shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=part)
    return tile


def load_factors(source: nl.NkiTensor, lanes: int) -> nl.NkiTensor:
    """Numbers of each row, [r, ..] in HBM, as a tile [r n, ..]: the same in a row's n lanes."""
    tile = nl.ndarray(
        shape=(source.shape[0] * lanes, *source.shape[1:]), dtype=nl.float32, buffer=nl.sbuf
    )
    nisa.dma_copy(dst=tile, src=source.expand_dim(1).broadcast(1, lanes))
    return tile


def products(out: nl.NkiTensor, values: nl.NkiTensor, factors: nl.NkiTensor) -> nl.NkiTensor:
    """out [P, k, w] = factors [P, k] times values [P, w], by the Scalar engine."""
    for i in range(out.shape[1]):
        nisa.activation(dst=out[:, i, :], op=nl.copy, data=values, scale=factors[:, i : i + 1])
    return out


def weighted_sum(
    out: nl.NkiTensor, values: list[nl.NkiTensor], factors: list[nl.NkiTensor]
) -> None:
    """out [P, k, w] = sum over c of factors[c] [P, k] times values[c] [P, w].

    In order of c, in fp32, rounded once. Scalar multiplies into PSUM while Vector adds: with one
    operand in PSUM it takes a cycle per element. Multiplying and adding in one instruction would
    take two, and leave Scalar idle.
    """
    total = nl.ndarray(shape=out.shape, dtype=nl.float32, buffer=nl.sbuf)
    only = len(values) == 1
    products(out if only else total, values[0], factors[0])
    for c in range(1, len(values)):
        term = nl.ndarray(shape=out.shape, dtype=nl.float32, buffer=nl.psum)
        products(term, values[c], factors[c])
        last = c == len(values) - 1
        nisa.tensor_tensor(dst=out if last else total, data1=total, data2=term, op=nl.add)
