"""Tensors with a content: zeros, ones, full, constants, identity.

Source: docs/reference/nki.md, section "High-level functions".
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dslearn.sim import layout
from dslearn.sim.access import storage_of
from dslearn.sim.dtypes import DTYPES, FLOATS, NUMPY
from dslearn.sim.dtypes import dtype as as_dtype
from dslearn.sim.isa.copies import memset
from dslearn.sim.isa.dma import dma_copy
from dslearn.sim.language.allocate import ndarray
from dslearn.sim.memory import MemoryRegion
from dslearn.sim.rules import ArgumentError
from dslearn.sim.tensor import NkiTensor

UINT8 = DTYPES["uint8"]
CHUNK = 2048  # elements of the SBUF row from which HBM tensors are filled


def full(
    shape: Sequence[int],
    fill_value: Any,
    dtype: Any,
    buffer: Any = MemoryRegion.sbuf,
    name: str = "",
) -> NkiTensor:
    """A new tensor filled with one value; in HBM by DMA from an SBUF row."""
    t = ndarray(shape, dtype, buffer, name)
    if t.on_chip:
        memset(t, fill_value)
        return t
    row = ndarray((1, min(t.size, CHUNK)), dtype)
    memset(row, fill_value)
    flat = t.reshape((1, t.size))
    for start in range(0, t.size, CHUNK):
        count = min(CHUNK, t.size - start)
        dma_copy(flat[:, start : start + count], row[:, :count])
    return t


def zeros(
    shape: Sequence[int], dtype: Any, buffer: Any = MemoryRegion.sbuf, name: str = ""
) -> NkiTensor:
    """A new tensor of zeros."""
    return full(shape, 0, dtype, buffer, name)


def ones(
    shape: Sequence[int], dtype: Any, buffer: Any = MemoryRegion.sbuf, name: str = ""
) -> NkiTensor:
    """A new tensor of ones."""
    return full(shape, 1, dtype, buffer, name)


def zeros_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """Zeros of the shape, dtype and memory of `x`, unless others are given."""
    return full(x.shape, 0, dtype or x.dtype, buffer or x.buffer, name)


def empty_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """A tensor like `x` that nobody has written yet."""
    return ndarray(x.shape, dtype or x.dtype, buffer or x.buffer, name)


def shared_constant(constant: Any) -> NkiTensor:
    """A shared_hbm tensor that holds a NumPy array, or the array in a `.npy` file.

    Raises:
        ArgumentError: neither.
    """
    if isinstance(constant, str | Path):
        constant = np.load(constant, allow_pickle=False)
    if not isinstance(constant, np.ndarray):
        raise ArgumentError(
            f"nl.shared_constant({type(constant).__name__}): a NumPy array or the path of a .npy",
            rule="arguments",
        )
    data, kind = np.array(constant, order="C"), as_dtype(constant.dtype)
    shape = data.shape or (1,)
    storage = storage_of(data, MemoryRegion.shared_hbm, "constant")
    return NkiTensor(storage, kind, shape, layout.contiguous(shape), 0, "constant")


def shared_identity_matrix(n: int, dtype: Any = UINT8, dst: NkiTensor | None = None) -> NkiTensor:
    """The n x n identity in SBUF (in `dst` if given)."""
    kind = as_dtype(dtype)
    values = np.eye(n, dtype=np.float32 if kind in FLOATS else np.uint8)
    constant = shared_constant(values.astype(NUMPY[kind]))
    target = ndarray((n, n), kind) if dst is None else dst
    dma_copy(target, constant)
    return target
