"""Allocation: `nl.ndarray` and what fills it; `nl.tile_size`.

Shapes on chip are (partitions, free...); sizes in bytes are per partition.
Source: docs/reference/nki.md, section "Memories".
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from math import prod
from typing import Any

from dslearn.sim import layout
from dslearn.sim.dtypes import NUMPY
from dslearn.sim.dtypes import dtype as as_dtype
from dslearn.sim.memory import (
    BANK_BYTES,
    PARTITIONS,
    PSUM_BANKS,
    SBUF_BYTES,
    MemoryRegion,
    Storage,
    check_address,
)
from dslearn.sim.program import Program, current
from dslearn.sim.rules import ArgumentError, NkiValidationError, RuleError
from dslearn.sim.tensor import NkiTensor
from dslearn.sim.values import whole


class TileSize:
    """Limits of one core of trn2; sizes in elements are of fp32."""

    pmax = PARTITIONS
    psum_bank_fmax = psum_fmax = BANK_BYTES // 4
    psum_bank_fmax_bytes = BANK_BYTES
    psum_num_banks = PSUM_BANKS
    gemm_stationary_fmax = 128
    gemm_moving_fmax = 512
    bn_stats_fmax = 512
    psum_min_align = 4  # not published: one fp32
    sbuf_min_align = 1
    sbuf_fmax = SBUF_BYTES // 4
    sbuf_size_bytes = sbuf_fmax_bytes = total_available_sbuf_size = SBUF_BYTES


tile_size = TileSize()


def ndarray(
    shape: Sequence[int],
    dtype: Any,
    buffer: Any = MemoryRegion.sbuf,
    name: str = "",
    address: tuple[int, int] | None = None,
) -> NkiTensor:
    """A new tensor that nobody has written yet.

    Raises:
        RuleError: rules tile-rank, partition-limit, sbuf-capacity, psum-capacity, address, shape.
        ArgumentError: `buffer` is not a memory.
    """
    if not isinstance(buffer, MemoryRegion):
        raise ArgumentError(
            f"buffer={buffer!r}: nl.sbuf, nl.psum, nl.private_hbm or nl.shared_hbm", "arguments"
        )
    kind = as_dtype(dtype)
    size = whole("shape", shape)
    if any(s < 1 for s in size) or not size:
        raise RuleError(f"shape {size}: every dimension holds at least one element", rule="shape")
    program = current()
    if buffer is MemoryRegion.shared_hbm and program.launch.cores > 1:
        return _shared(program, size, kind, name)
    rows = size[0] if buffer.on_chip else 1
    if buffer.on_chip:
        _check_tile(size, kind, buffer)
    storage = Storage.empty(prod(size), kind, buffer, rows, name)
    if address is not None:
        check_address(buffer, address, rows, storage.row_bytes)
    elif buffer.on_chip:
        program.budget.take(storage)
    _born(program, storage)
    return NkiTensor(storage, kind, size, layout.contiguous(size), 0, name)


def _born(program: Program, storage: Storage) -> None:
    """Tiles and tensors allocated in a trip of a dynamic loop end with it."""
    if program.born is not None:
        program.born.append(weakref.ref(storage))


def _check_tile(size: tuple[int, ...], kind: str, buffer: MemoryRegion) -> None:
    if len(size) < 2:
        raise RuleError(
            "SBUF and PSUM tensors must have at least 2 dimensions (partition-dim and free-dim), "
            f"got {size}",
            rule="tile-rank",
        )
    if size[0] > PARTITIONS:
        raise RuleError(
            f"ndarray partition dimension {size[0]} exceeds maximum {PARTITIONS}",
            rule="partition-limit",
        )
    row = prod(size[1:]) * NUMPY[kind].itemsize
    limit = SBUF_BYTES if buffer is MemoryRegion.sbuf else PSUM_BANKS * BANK_BYTES
    if row > limit:
        raise RuleError(
            f"a tile of {size} {kind} needs {row} bytes per partition: {buffer.value} has {limit}",
            rule=f"{buffer.value}-capacity",
        )


def _shared(program: Program, size: tuple[int, ...], kind: Any, name: str) -> NkiTensor:
    """The launch's n-th shared tensor: allocated by the first core that asks, found by the other.

    Raises:
        NkiValidationError: the cores ask for different tensors.
    """
    shared, n = program.launch.shared, program.allocations
    program.allocations += 1
    if n == len(shared):
        storage = Storage.empty(prod(size), kind, MemoryRegion.shared_hbm, 1, name)
        shared.append(NkiTensor(storage, kind, size, layout.contiguous(size), 0, name))
    found = shared[n]
    if (found.shape, found.dtype) != (size, kind):
        raise NkiValidationError(
            f"shared_hbm tensor {n} is {found.shape} {found.dtype} on one core and {size} {kind} "
            "on the other: both cores allocate the same",
            rule="lnc-control-flow",
        )
    _born(program, found.storage)
    return found
