"""What a DMA moves: bytes, runs, engines, and how long each engine is busy with its part.

DMA engine e serves partitions 8e to 8e + 7, so a tile of P partitions moves through ceil(P/8) of 16
engines. Source: docs/reference/nki.md, section "Hardware numbers".
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from dslearn.sim.cost.geometry import partitions, run
from dslearn.sim.cost.rates import Rates
from dslearn.sim.record import Instruction, Operand


class Transfer(NamedTuple):
    """One DMA: engines [first, last) are busy `ns` each; HBM sees the bytes."""

    direction: str  # load, store, move (on chip), copy (HBM to HBM)
    first: int
    last: int
    ns: float
    read: int  # bytes from HBM
    written: int  # bytes to HBM
    nbytes: int
    rows: int  # descriptors


def transfer(one: Instruction, rates: Rates) -> Transfer:
    """The movement of a dma_copy, dma_transpose, dma_compute or sendrecv."""
    dst = one.outputs[0]
    sources = _sources(one)
    moved = max(sum(o.nbytes for o in sources), dst.nbytes)
    first, last = _engines((dst, *sources), rates)
    chunk = min(run(o) for o in (dst, *sources))
    rate = chunk_rate(chunk, rates) * _transposing(one, rates)
    return Transfer(
        direction=_direction(dst, sources),
        first=first,
        last=last,
        ns=moved / (last - first) / rate,
        read=sum(o.nbytes for o in sources if not o.region.on_chip),
        written=0 if dst.region.on_chip else dst.nbytes,
        nbytes=moved,
        rows=max(1, moved // chunk),
    )


def _sources(one: Instruction) -> list[Operand]:
    """The tensors that are read, without the tiles that hold offsets."""
    if one.name != "dma_compute":
        return [one.inputs[0]]
    count = prod(one.outputs[0].shape)
    return [o for o in one.inputs if prod(o.shape) == count]


def chunk_rate(chunk: int, rates: Rates) -> float:
    """Bytes per ns of one engine that moves `chunk` consecutive bytes at a time."""
    return min(
        rates.dma_practical_gbs, rates.dma_peak_gbs * chunk / (chunk + rates.dma_chunk_bytes)
    )


def _engines(operands: tuple[Operand, ...], rates: Rates) -> tuple[int, int]:
    """First and one past the last engine: those of the on-chip side's partitions."""
    count, share = int(rates.dma_engines), int(rates.dma_partitions)
    tile = next((o for o in operands if o.region.on_chip), None)
    if tile is None:
        return 0, count
    start, stop = partitions(tile)
    first = min(start // share, count - 1)
    return first, max(first + 1, min(-(-stop // share), count))


def _transposing(one: Instruction, rates: Rates) -> float:
    if one.name != "dma_transpose":
        return 1.0
    return rates.transpose_sbuf if one.inputs[0].region.on_chip else rates.transpose_hbm


def _direction(dst: Operand, sources: list[Operand]) -> str:
    inside = all(o.region.on_chip for o in sources)
    if dst.region.on_chip:
        return "move" if inside else "load"
    return "store" if inside else "copy"
