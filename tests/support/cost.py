"""Hand-made recordings: tiles, matrices in HBM, instructions, without running a kernel."""

from __future__ import annotations

import itertools
from math import prod
from typing import Any

from dslearn.sim.cost import load, profile_recording
from dslearn.sim.dtypes import DTYPES, NUMPY
from dslearn.sim.layout import contiguous
from dslearn.sim.memory import MemoryRegion
from dslearn.sim.record import Instruction, Operand, Recording

_serial = itertools.count(1 << 40)  # far from the simulator's own


def tile(
    *shape: int, dtype: str = "float32", region: str = "sbuf", serial: int | None = None
) -> Operand:
    """A whole fresh tensor; dimension 0 are partitions on chip."""
    place = MemoryRegion[region]
    size = prod(shape) * NUMPY[dtype].itemsize
    rows = shape[0] if place.on_chip else 1
    return Operand(
        next(_serial) if serial is None else serial,
        *(place, DTYPES[dtype], shape, contiguous(shape), 0, False, ""),
        *(rows, size // rows),
    )


def part(o: Operand, *cuts: slice) -> Operand:
    """o[cuts], one slice per dimension."""
    bounds = [cut.indices(n) for cut, n in zip(cuts, o.shape, strict=True)]
    offset = o.offset + sum(b[0] * s for b, s in zip(bounds, o.strides, strict=True))
    return o._replace(
        shape=tuple(len(range(*b)) for b in bounds),
        strides=tuple(b[2] * s for b, s in zip(bounds, o.strides, strict=True)),
        offset=offset,
    )


def run(name: str, engine: str, dst: Any, *inputs: Operand, **details: Any) -> Instruction:
    """One instruction of core 0; `dst` is an operand or a tuple of them."""
    outputs = dst if isinstance(dst, tuple) and not isinstance(dst, Operand) else (dst,)
    return Instruction(name, engine, outputs, inputs, 0, (), details)


def copy(dst: Operand, src: Operand, engine: str = "vector") -> Instruction:
    """A tensor_copy, or a dma_copy where HBM takes part."""
    if dst.region.on_chip and src.region.on_chip:
        return run("tensor_copy", engine, dst, src)
    return run("dma_copy", "dma", dst, src, dge="unknown", issuer="unknown")


def product(dst: Operand, stationary: Operand, moving: Operand, **changes: Any) -> Instruction:
    """An nc_matmul with the details that the simulator records."""
    details: dict[str, Any] = {
        **{"k": stationary.shape[0], "m": dst.shape[0], "n": dst.shape[1]},
        **{"is_transpose": False, "onezero": False, "tile_size": (), "perf_mode": "none"},
    }
    return run("nc_matmul", "tensor", dst, stationary, moving, **{**details, **changes})


def launch(*cores: list[Instruction]) -> Recording:
    """A recording of these cores."""
    for number, core in enumerate(cores):
        for one in core:
            one.core = number
    peaks = [{"sbuf": 0, "psum": 0} for _ in cores]
    return Recording("made", [list(core) for core in cores], peaks)


def modelled(*cores: list[Instruction]) -> Any:
    """The profile of these cores under the rates that ship."""
    return profile_recording(launch(*cores), load())
