"""The instruction stream of a simulated kernel: what a cost model needs, and nothing else.

Operands are recorded by storage, offset, shape and strides, so that dependencies can be derived
later, and never keep a tile's memory alive.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from dslearn.sim.dtypes import NUMPY, DType
from dslearn.sim.memory import MemoryRegion
from dslearn.sim.tensor import NkiTensor


class Operand(NamedTuple):
    """One tensor operand: which storage, and which elements of it. Offsets count elements."""

    storage: int
    region: MemoryRegion
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    indirect: bool
    name: str
    rows: int  # of the storage: its partitions on chip, 1 in HBM
    row_bytes: int  # of the storage: bytes per partition on chip, all of it in HBM

    @property
    def nbytes(self) -> int:
        """Bytes that the instruction moves through this operand."""
        return prod(self.shape) * NUMPY[self.dtype].itemsize


@dataclass(slots=True)
class Instruction:
    """One executed instruction of one core; `loops` holds (loop, trip) from the outside in."""

    name: str
    engine: str
    outputs: tuple[Operand, ...]
    inputs: tuple[Operand, ...]
    core: int
    loops: tuple[tuple[int, int], ...]
    details: dict[str, Any] = field(default_factory=dict)
    label: str | None = None
    after: list[int] = field(default_factory=list)  # indices it was told to depend on


@dataclass
class Recording:
    """What one launch executed: the instructions of each core, and the memory it needed."""

    kernel: str = ""
    cores: list[list[Instruction]] = field(default_factory=list)
    peaks: list[dict[str, int]] = field(default_factory=list)  # bytes per partition, per core


_recordings: ContextVar[list[Recording] | None] = ContextVar("dslearn_recordings", default=None)


@contextmanager
def recording() -> Iterator[list[Recording]]:
    """Collect one `Recording` per launch inside the block.

    with recording() as launches:
        nki.simulate(kernel)(x)
    launches[0].cores[0]          # the instructions of core 0
    """
    launches: list[Recording] = []
    token = _recordings.set(launches)
    try:
        yield launches
    finally:
        _recordings.reset(token)


def recordings() -> list[Recording] | None:
    """The list that `recording` fills here, if there is one."""
    return _recordings.get()


def operand(t: NkiTensor) -> Operand:
    """`t` as the recording keeps it."""
    s = t.storage
    return Operand(
        s.serial, s.region, t.dtype, t.shape, t.strides, t.offset, t.is_indirect(), t.name,
        s.rows, s.row_bytes,
    )  # fmt: skip


def offset_tiles(t: NkiTensor) -> list[NkiTensor]:
    """The tiles that an instruction reads to find the elements of `t`."""
    if not t.is_indirect():
        return []
    sources = [source for source, _ in t.scalars]
    sources += [] if t.vector is None else [t.vector[0]]
    return [source for source in sources if isinstance(source, NkiTensor)]
