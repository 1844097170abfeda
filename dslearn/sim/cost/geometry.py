"""Which bytes an operand touches: regions for dependencies, runs and partitions for DMA.

A region is a rectangle of rows by bytes: on chip rows are partitions; in HBM they are steps of the
view's largest stride, so that column blocks of one matrix do not overlap.
"""

from __future__ import annotations

from typing import NamedTuple

from dslearn.sim.dtypes import NUMPY
from dslearn.sim.layout import reach
from dslearn.sim.memory import MemoryRegion
from dslearn.sim.record import Instruction, Operand

LINEAR = 1 << 62  # the step of a region that is one range of bytes


class Region(NamedTuple):
    """Rows [top, bottom) of bytes [left, right), rows `step` bytes apart; [low, high) in all."""

    step: int
    top: int
    bottom: int
    left: int
    right: int
    low: int
    high: int


def itemsize(o: Operand) -> int:
    """Bytes of one element."""
    return NUMPY[o.dtype].itemsize


def free(o: Operand) -> int:
    """N: elements per partition."""
    n = 1
    for size in o.shape[1:]:
        n *= size
    return n


def widest(instruction: Instruction) -> int:
    """N of the operand with the most elements per partition."""
    return max(free(o) for o in (*instruction.outputs, *instruction.inputs))


def region(o: Operand) -> Region:
    """The bytes that `o` may touch; for a runtime offset, all of its storage."""
    if o.indirect:
        rows = o.rows if o.region.on_chip else 1
        step = o.row_bytes if o.region.on_chip else LINEAR
        return Region(step, 0, rows, 0, o.row_bytes, 0, rows * o.row_bytes)
    size = itemsize(o)
    below, above = reach(o.shape, o.strides)
    low, high = (o.offset + below) * size, (o.offset + above + 1) * size
    step = o.row_bytes if o.region.on_chip else max((abs(s) for s in o.strides), default=0) * size
    inner = [(n, s) for n, s in zip(o.shape, o.strides, strict=True) if s * size != step]
    down, up = reach([n for n, _ in inner], [s for _, s in inner])
    left = low % step if step else 0
    width = (up - down + 1) * size
    if step <= size or left + width > step:
        return Region(LINEAR, 0, 1, low, high, low, high)
    return Region(step, low // step, (high - 1) // step + 1, left, left + width, low, high)


def overlap(a: Region, b: Region) -> bool:
    """Whether the regions may share a byte of one storage."""
    if a.step == b.step:
        return a.top < b.bottom and b.top < a.bottom and a.left < b.right and b.left < a.right
    return a.low < b.high and b.low < a.high


def covers(a: Region, b: Region) -> bool:
    """Whether every byte of `b` lies in `a`."""
    if a.step != b.step:
        return a.step == LINEAR and a.low <= b.low and b.high <= a.high
    rows = a.top <= b.top and b.bottom <= a.bottom
    return rows and a.left <= b.left and b.right <= a.right


def run(o: Operand) -> int:
    """Bytes that lie next to each other; on chip they stay inside one partition."""
    size = itemsize(o)
    first, count = (1 if o.region.on_chip else 0), 1
    for n, stride in zip(reversed(o.shape[first:]), reversed(o.strides[first:]), strict=True):
        if n == 1:
            continue
        if stride != count:
            break
        count *= n
    return count * size


def partitions(o: Operand) -> tuple[int, int]:
    """First and one past the last partition of an on-chip operand."""
    start = o.offset * itemsize(o) // o.row_bytes
    return start, start + o.shape[0]


def stride_bytes(o: Operand) -> int:
    """Bytes from one element to the next along the innermost free dimension that moves."""
    for n, stride in zip(reversed(o.shape[1:]), reversed(o.strides[1:]), strict=True):
        if n > 1:
            return abs(stride) * itemsize(o)
    return 0


def in_psum(o: Operand) -> bool:
    """Whether the operand lies in PSUM."""
    return o.region is MemoryRegion.psum
