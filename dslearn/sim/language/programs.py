"""Where a kernel runs, and small things: program_id, ds, no_reorder, buffer tests, NKIObject.

Source: docs/reference/nki.md, section "Running a kernel".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from dslearn.sim.indexing import Ds
from dslearn.sim.memory import MemoryRegion
from dslearn.sim.program import current
from dslearn.sim.rules import ArgumentError


def _axis(value: int) -> None:
    if value not in (0, -1):
        raise ArgumentError(f"axis {value} of the launch grid: it has one, 0", rule="arguments")


def program_id(axis: int = 0) -> int:
    """Which core of the launch this is: 0, or 1 in `kernel[2](...)`."""
    _axis(axis)
    return current().core


def num_programs(axes: int | Sequence[int] | None = 0) -> int | tuple[int, ...]:
    """How many cores execute the kernel; a tuple for a tuple of axes."""
    if axes is None or isinstance(axes, int):
        _axis(axes or 0)
        return current().launch.cores
    for axis in axes:
        _axis(axis)
    return tuple(current().launch.cores for _ in axes)


def program_ndim() -> int:
    """Dimensions of the launch grid: 1, or 0 for a launch without one."""
    return 1 if current().launch.grid else 0


def ds(start: Any, size: int) -> Ds:
    """`size` elements from `start`, as an index: t[:, nl.ds(start, size)]."""
    return Ds(start, size)


def no_reorder() -> AbstractContextManager[None]:
    """`with nl.no_reorder():` keeps program order; the simulator always does."""
    return _in_order()


@contextmanager
def _in_order() -> Iterator[None]:
    program = current()
    before, program.reorder = program.reorder, False
    try:
        yield
    finally:
        program.reorder = before


def is_sbuf(buffer: Any) -> bool:
    """Whether `buffer` is SBUF."""
    return buffer is MemoryRegion.sbuf


def is_psum(buffer: Any) -> bool:
    """Whether `buffer` is PSUM."""
    return buffer is MemoryRegion.psum


def is_hbm(buffer: Any) -> bool:
    """Whether `buffer` is private or shared HBM."""
    return buffer in (MemoryRegion.private_hbm, MemoryRegion.shared_hbm)


def is_on_chip(buffer: Any) -> bool:
    """Whether `buffer` is SBUF or PSUM."""
    return is_sbuf(buffer) or is_psum(buffer)


class NKIObject:
    """Base of classes that kernels may use as values: attributes from keywords."""

    def __init__(self, **kwargs: Any) -> None:
        for name, value in kwargs.items():
            setattr(self, name, value)
