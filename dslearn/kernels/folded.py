"""Weights in fp8 tiles of 32 x 32 without ever scaling a weight: scales go to the activations.

A tile of 128 inputs and 128 outputs has four scales per input, one for each 32 outputs. The rows
move through the unscaled codes four times, multiplied by one of the scales each, and of the four
results every output keeps its own: the diagonal. Powers of two, so nothing is rounded. It costs
4 M columns instead of M, free up to M = 16, and M · N / 32 products per lane instead of N.
"""

from __future__ import annotations

from collections.abc import Callable

import nki.isa as nisa
import nki.language as nl

from dslearn.kernels.blocks import UNIT, Source, Step, steps_of
from dslearn.kernels.linear_parts import as_powers


def folded(columns: nl.NkiTensor, codes: nl.NkiTensor, scale: nl.NkiTensor, planes: int) -> Source:
    """The source of `blocks.product` for half a weight in 32 x 32 tiles.

    Args:
        columns: [128, J, M] fp32 in SBUF, see `linear_parts.columns`.
        codes: [128, J, W] uint8 in HBM, e4m3 codes up to 240.
        scale: [4, W/32, J] uint8 in HBM: exponents of the tiles of lane p in row p // 32.
        planes: weights that lie in turns of 32 outputs.
    """

    def source(base: int, units: int) -> Step:
        start, count = base * planes, units * planes
        factors = _lane_powers(scale, start, count)
        load = steps_of(codes)

        def step(t: int) -> tuple[nl.NkiTensor, Callable[[int, int, int], nl.NkiTensor]]:
            tile = load(t, start * UNIT, count * UNIT).view(nl.float8_e4m3)
            copies = scaled_copies(columns[:, t, :], factors[:, t, :])
            turns = copies.reshape((128, copies.shape[1], units, planes))

            def moving(first: int, number: int, plane: int) -> nl.NkiTensor:
                return turns[:, :, first : first + number, plane]

            return tile.reshape((128, units, planes, UNIT)), moving

        return step

    return source


def _lane_powers(scale: nl.NkiTensor, start: int, count: int) -> nl.NkiTensor:
    """Scales of `count` blocks of outputs as bf16 powers of two, [128, J, count]."""
    given = nl.ndarray(shape=(128, count, scale.shape[2]), dtype=nl.uint8, buffer=nl.sbuf)
    rows = scale[:, start : start + count, :].expand_dim(1).broadcast(1, UNIT)
    nisa.dma_copy(dst=given, src=rows)
    return as_powers(given.permute((0, 2, 1)), nl.bfloat16)


def row_powers(scale: nl.NkiTensor) -> nl.NkiTensor:
    """Scales [units, N/32] of HBM as bf16 powers of two [32 units, N/32], each row 32 times."""
    units, count = scale.shape
    given = nl.ndarray(shape=(units * UNIT, count), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.dma_copy(dst=given, src=scale.expand_dim(1).broadcast(1, UNIT))
    return as_powers(given, nl.bfloat16)


def scaled_copies(column: nl.NkiTensor, factors: nl.NkiTensor) -> nl.NkiTensor:
    """column [P, M] fp32 times factors [P, n] bf16: [P, M, n] bf16, exact for bf16 columns.

    One instruction per row of activations, because a number per lane costs nothing: Vector takes
    four packed 16-bit values per cycle and 64 cycles at least. Scalar, at one value per cycle,
    helps in proportion.
    """
    lanes, rows = column.shape
    width = factors.shape[1]
    turn = 2 if width <= 128 else 3 if width <= 256 else 4
    copies = nl.ndarray(shape=(lanes, rows, width), dtype=nl.bfloat16, buffer=nl.sbuf)
    for m in range(rows):
        nisa.tensor_scalar(
            dst=copies[:, m, :],
            data=factors,
            op0=nl.multiply,
            operand0=column[:, m : m + 1],
            engine=nisa.engine.scalar if m % turn == turn - 1 else nisa.engine.vector,
        )
    return copies


def own(sums: nl.NkiTensor, unit: int, rows: int) -> nl.NkiTensor:
    """Of sums [32 units, M · units] in PSUM, what unit keeps: [32, M], its own column."""
    units = sums.shape[0] // UNIT
    view = sums[UNIT * unit : UNIT * (unit + 1), 0 : rows * units]
    return view.reshape((UNIT, rows, units))[:, :, unit]


def diagonal(dst: nl.NkiTensor, sums: nl.NkiTensor) -> nl.NkiTensor:
    """dst [32 units, M] in SBUF = the sums [32 units, M · units] that the outputs keep."""
    rows = dst.shape[1]
    for unit in range(sums.shape[0] // UNIT):
        nisa.tensor_copy(
            dst=dst[UNIT * unit : UNIT * (unit + 1), :],
            src=own(sums, unit, rows),
            engine=nisa.engine.scalar if unit % 2 else nisa.engine.vector,
        )
    return dst
