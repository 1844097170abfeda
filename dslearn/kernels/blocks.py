"""Products with weights that lie inputs first: blocks of outputs, and the loop over inputs.

A weight's tile of 128 inputs and up to 128 outputs is the stationary operand, the rows of
activations move through it, so a result has outputs on its partitions: 64 cycles per tile however
few rows there are, and nothing to transpose between two products.
M rows, K inputs, N outputs; outputs come in units of 32, a block is up to 4 of them.
"""

from __future__ import annotations

from collections.abc import Callable

import nki.isa as nisa
import nki.language as nl

Block = tuple[int, int]  # first unit, number of units
Load = Callable[[int, int, int], nl.NkiTensor]  # tile of inputs, first output, outputs
Step = Callable[[int], tuple[nl.NkiTensor, Callable[[int, int, int], nl.NkiTensor]]]
Source = Callable[[int, int], Step]
Sums = tuple[Block, list[nl.NkiTensor]]  # of a block: a PSUM view for each plane

LIMITS = "at most 128 rows, and no more inputs than the weight's"
LOAD = 8192  # bytes per lane that one DMA brings
UNIT = 32  # outputs that share a scale, and a quadrant of partitions
BANK = 512  # fp32 columns of a PSUM bank
WIDEST = 32  # blocks computed at once: 4 KiB of fp8 codes per lane keep DMA at full speed
BANKS = 3  # banks that sums fill at once: twice that, with room for transposes, are eight


def cut(units: int) -> list[Block]:
    """Blocks (first unit, number of units) of at most four units, as equal as can be."""
    count = -(-units // 4)
    blocks = []
    for i in range(count):
        start, stop = units * i // count, units * (i + 1) // count
        blocks.append((start, stop - start))
    return blocks


def mine() -> list[int]:
    """Which halves of the outputs this core does, 0 and 1 of one core alone.

    Weights lie in HBM as two halves, and a half is computed in the same way on one core and on
    two: so the bytes of the result are the same.
    """
    return [0, 1] if nl.num_programs() == 1 else [nl.program_id(axis=0)]


def product(
    blocks: list[Block], planes: int, tiles: int, columns: int, source: Source
) -> list[Callable[[], list[Sums]]]:
    """Sums over all tiles of inputs, block by block.

    Args:
        blocks: (first unit, number of units) of each, next to each other.
        planes: weights that lie in turns of 32 outputs, 2 for gate and up.
        tiles: number of tiles of 128 inputs.
        columns: columns of PSUM that one block of one plane takes, at most 512.
        source: source(first unit, units) -> step(t) -> (weight [128, units, planes, 32] in SBUF,
            moving(first unit, units, plane) -> [128, columns]), units counted from the first.
    Returns:
        Groups to be computed one after another: functions without arguments that return, for each
        block of theirs, (block, [a PSUM view [32 units, columns] for each plane]).
    """
    at_once = min(WIDEST, max(1, BANKS * (BANK // columns) // planes))
    number = -(-len(blocks) // at_once)
    groups = []
    for i in range(number):
        some = blocks[len(blocks) * i // number : len(blocks) * (i + 1) // number]
        groups.append(_group(some, planes, tiles, columns, source))
    return groups


def steps_of(weight: nl.NkiTensor) -> Load:
    """load(t, first, width) of a weight [128, J, W] in HBM: [128, width] of tile t, in SBUF.

    Tiles are loaded several at a time and asked for in order. A lane's bytes lie side by side
    when the width is W, and DMA is fast from 2 KiB in a row.
    """
    _, tiles, _ = weight.shape

    def fetch(t: int, count: int, first: int, width: int) -> nl.NkiTensor:
        tile = nl.ndarray(shape=(128, count, width), dtype=weight.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=weight[:, t : t + count, first : first + width])
        return tile

    return several(fetch, tiles, 2 if weight.dtype == nl.bfloat16 else 1)


def several(fetch: Callable[[int, int, int, int], nl.NkiTensor], tiles: int, size: int) -> Load:
    """load(t, first, width) on top of fetch(t, number of tiles, first, width), see `steps_of`."""
    held: list[nl.NkiTensor] = [None]

    def load(t: int, first: int, width: int) -> nl.NkiTensor:
        count = max(1, LOAD // (width * size))
        if t % count == 0:
            held[0] = fetch(t, min(count, tiles - t), first, width)
        return held[0][:, t % count, :]

    return load


def plain(columns: Callable[[int], nl.NkiTensor], load: Load, planes: int) -> Source:
    """The source of `product` for weights that need nothing but loading.

    Args:
        columns: columns(t) -> the moving operand [inputs, M] for tile t.
        load: load(t, first output, outputs) -> the stationary operand [inputs, outputs] in SBUF.
        planes: weights that lie in turns of 32 outputs.
    """

    def source(base: int, units: int) -> Step:
        def step(t: int) -> tuple[nl.NkiTensor, Callable[[int, int, int], nl.NkiTensor]]:
            tile = load(t, base * planes * UNIT, units * planes * UNIT)

            def moving(first: int, number: int, plane: int) -> nl.NkiTensor:
                return columns(t)

            return tile.reshape((tile.shape[0], units, planes, UNIT)), moving

        return step

    return source


def _group(
    blocks: list[Block], planes: int, tiles: int, columns: int, source: Source
) -> Callable[[], list[Sums]]:
    """The function that computes some blocks at once; see `product`."""

    def compute() -> list[Sums]:
        base = blocks[0][0]
        step = source(base, blocks[-1][0] + blocks[-1][1] - base)
        places = _places(len(blocks) * planes, columns)
        for t in range(tiles):
            weight, moving = step(t)
            for b in range(len(blocks)):
                first, count = blocks[b][0] - base, blocks[b][1]
                for p in range(planes):
                    streamed = moving(first, count, p)
                    nisa.nc_matmul(
                        dst=_part(places[b * planes + p], count, streamed),
                        stationary=weight[:, first : first + count, p, :],
                        moving=streamed,
                        accumulate=t > 0,
                    )
        found = []
        for b in range(len(blocks)):
            sums = [places[b * planes + p][0 : UNIT * blocks[b][1], :] for p in range(planes)]
            found.append((blocks[b], sums))
        return found

    return compute


def _places(number: int, columns: int) -> list[nl.NkiTensor]:
    """Views [128, columns] of PSUM, as many as fit in each bank."""
    each = BANK // columns
    places = []
    for i in range(0, number, each):
        count = min(each, number - i)
        bank = nl.ndarray(shape=(128, count, columns), dtype=nl.float32, buffer=nl.psum)
        for j in range(count):
            places.append(bank[:, j, :])
    return places


def _part(place: nl.NkiTensor, count: int, streamed: nl.NkiTensor) -> nl.NkiTensor:
    """Where a product of `count` units with the moving operand `streamed` goes."""
    return place[0 : UNIT * count, 0 : streamed.size // streamed.shape[0]]


def store_rows(tiles: list[nl.NkiTensor], y: nl.NkiTensor, first: int) -> None:
    """Tiles [outputs, M], one after another, to columns first.. of y [M, N] in HBM.

    Eight tiles of 128 outputs fill a bank with 16-bit rows, so that 2 KiB of a row move at once.
    """
    rows = tiles[0].shape[1]
    for i in range(0, len(tiles), 8):
        some = tiles[i : i + 8]
        width = sum([tile.shape[0] for tile in some])
        turned = nl.ndarray(shape=(rows, width), dtype=y.dtype, buffer=nl.psum)
        at = 0
        for tile in some:
            part = turned[:, at : at + tile.shape[0]]
            nisa.nc_transpose(dst=part, data=tile, engine=nisa.engine.tensor)
            at += tile.shape[0]
        out = nl.ndarray(shape=(rows, width), dtype=y.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=out, src=turned, engine=nisa.engine.scalar)
        nisa.dma_copy(dst=y[:, first : first + width], src=out)
        first += width
