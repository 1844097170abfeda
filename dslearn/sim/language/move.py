"""Moving tiles: load, store, transpose, matmul, gather, broadcast_to, expand_dims, device_print.

P partitions, F free elements. Source: docs/reference/nki.md, section "High-level functions".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dslearn.sim.access import load as read
from dslearn.sim.isa import checks
from dslearn.sim.isa.copies import tensor_copy
from dslearn.sim.isa.dma import dma_copy
from dslearn.sim.isa.dma_transpose import dma_transpose
from dslearn.sim.isa.gathers import nc_n_gather
from dslearn.sim.isa.matmul import nc_matmul
from dslearn.sim.isa.shuffle import nc_stream_shuffle
from dslearn.sim.isa.transpose import nc_transpose
from dslearn.sim.language.results import FP32, like, new, spread, tile
from dslearn.sim.memory import MemoryRegion
from dslearn.sim.rules import RuleError
from dslearn.sim.tensor import NkiTensor

QUADRANT = 32


def load(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The HBM tensor `src` [P, F...] as a new SBUF tile."""
    src = checks.tensor("nl.load", "src", src)
    dst = like(src, dtype)
    dma_copy(dst, src)
    return dst


def store(dst: NkiTensor, value: NkiTensor) -> None:
    """The SBUF tile `value` into the HBM tensor `dst`.

    Raises:
        RuleError: rule region, for a tile in PSUM (copy it to SBUF first).
    """
    dma_copy(dst, checks.tensor("nl.store", "value", value))


def load_transpose2d(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The HBM tensor `src` [F, P] as a new SBUF tile [P, F], by a transposing DMA."""
    src = checks.tensor("nl.load_transpose2d", "src", src)
    dst = new(tuple(reversed(src.shape)), src.dtype)
    dma_transpose(dst, src)
    if dtype is None or dst.dtype == dtype:
        return dst
    cast = like(dst, dtype)
    tensor_copy(cast, dst)
    return cast


def transpose(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The tile `x` [P, F] as [F, P], in PSUM; the dtype stays."""
    x = tile("transpose", "x", x)
    dst = new((checks.free(x), x.shape[0]), dtype or x.dtype, MemoryRegion.psum)
    nc_transpose(dst, x)
    return dst


def matmul(x: NkiTensor, y: NkiTensor, transpose_x: bool = False) -> NkiTensor:
    """x.T @ y in PSUM, fp32: x [K, M], y [K, N].

    Raises:
        RuleError: rule operand without transpose_x=True: the tensor engine contracts partitions.
    """
    x, y = tile("matmul", "x", x), tile("matmul", "y", y)
    if not transpose_x:
        raise RuleError(
            "nl.matmul without transpose_x=True fails on hardware: nl.transpose x, copy it to "
            "SBUF, and pass transpose_x=True",
            rule="operand",
        )
    dst = new((checks.free(x), checks.free(y)), FP32, MemoryRegion.psum)
    nc_matmul(dst, x, y)
    return dst


def gather_flattened(
    data: NkiTensor, indices: NkiTensor, axis: int = 0, dtype: Any = None
) -> NkiTensor:
    """data[p, indices[p, i]] with the free dimensions of `data` flattened; `axis` stays 0."""
    data, indices = tile("gather_flattened", "data", data), tile("gather_flattened", "i", indices)
    if axis != 0:
        raise RuleError(
            f"nl.gather_flattened axis={axis}: only 0, the free dimensions are flattened", "operand"
        )
    dst = new(indices.shape, data.dtype)
    nc_n_gather(dst, data, indices)
    if dtype is None or dst.dtype == dtype:
        return dst
    cast = like(dst, dtype)
    tensor_copy(cast, dst)
    return cast


def expand_dims(x: NkiTensor, axis: int) -> NkiTensor:
    """A view of `x` with a dimension of size 1 at `axis`."""
    return checks.tensor("nl.expand_dims", "x", x).expand_dim(axis)


def broadcast_to(x: NkiTensor, shape: Sequence[int], dtype: Any = None) -> NkiTensor:
    """`x` with its dimensions of size 1 repeated to `shape`, partitions included; same rank.

    Raises:
        RuleError: rule shape, where a size is neither 1 nor the one asked for.
    """
    x, shape = tile("broadcast_to", "x", x), tuple(shape)
    if len(shape) != x.ndim or any(a not in (1, b) for a, b in zip(x.shape, shape, strict=True)):
        raise RuleError(f"nl.broadcast_to {x.shape} to {shape}: sizes match or are 1", rule="shape")
    if x.shape == shape and (dtype is None or x.dtype == dtype):
        return x
    dst = new(shape, dtype or x.dtype)
    if x.shape[0] == shape[0]:
        tensor_copy(dst, spread(x, shape))
        return dst
    tensor_copy(dst[0:1], spread(x, shape))
    for start in range(0, shape[0], QUADRANT):  # each quadrant of lanes reads lane 0 of the tile
        rows = min(QUADRANT, shape[0] - start)
        nc_stream_shuffle(dst[start : start + rows], dst[0:1], [0] * QUADRANT)
    return dst


def device_print(print_prefix: str, tensor: NkiTensor) -> None:
    """Print a tensor, at once."""
    print(print_prefix, read(checks.tensor("nl.device_print", "tensor", tensor), "tensor"))
