"""Gathers within SBUF on GpSimd: local_gather, nc_n_gather.

P partitions, F elements per partition of the data, in groups of 16 partitions for local_gather.
Source: docs/reference/nki.md, section "Search and gather".
"""

from __future__ import annotations

import numpy as np

from dslearn.sim.access import load, store
from dslearn.sim.isa import checks
from dslearn.sim.numerics import gather
from dslearn.sim.numerics.search import GROUP
from dslearn.sim.program import NkiInstruction, current
from dslearn.sim.rules import BoundsError, RuleError
from dslearn.sim.tensor import NkiTensor

RUNS = (1, 2, 4, 8, 16, 32)  # elements per index
INDICES = 4096  # of one group


def local_gather(  # noqa: PLR0913 - the vendor's signature
    dst: NkiTensor,
    src_buffer: NkiTensor,
    index: NkiTensor,
    num_elem_per_idx: int = 1,
    num_valid_indices: int | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """Every partition of a group of 16 gathers the element offsets that the group's index names.

    src_buffer [P, F], index uint16 [P, I], dst [P, n * e] of the dtype of src_buffer; all in SBUF,
    P a multiple of 16. The indices of a group are its 16 x I slab of `index` column by column, the
    first n = num_valid_indices (all, by default) of them; e = num_elem_per_idx consecutive elements
    are read from each. Offsets count elements, not runs of e.

    Raises:
        RuleError: rules region, dtype, shape, operand (e, n, P), ...
        BoundsError: an offset outside the partition, which the hardware leaves undefined.
    """
    at, e = "local_gather", num_elem_per_idx
    dst, src = checks.tile(at, "dst", dst, checks.SBUF), _sbuf(at, "src_buffer", src_buffer)
    index = _sbuf(at, "index", index)
    checks.same_dtype(at, dst, src_buffer=src)
    if index.dtype != "uint16":
        raise RuleError(f"{at} index is {index.dtype}: must be uint16", rule="dtype")
    p, available = src.shape[0], GROUP * checks.free(index)
    if p % GROUP or index.shape[0] != p or dst.shape[0] != p:
        raise RuleError(
            f"{at}: dst {dst.shape}, src_buffer {src.shape} and index {index.shape} must have the "
            f"same number of partitions, a multiple of {GROUP}",
            rule="shape",
        )
    n = available if num_valid_indices is None else num_valid_indices
    if e not in RUNS or not 1 <= n <= min(available, INDICES):
        raise RuleError(
            f"{at} num_elem_per_idx={e}, num_valid_indices={n}: elements per index are one of "
            f"{RUNS}, indices 1 to {min(available, INDICES)} per group",
            rule="operand",
        )
    if checks.free(dst) != n * e:
        raise RuleError(
            f"{at} dst {dst.shape} must have {n} x {e} elements per partition", rule="shape"
        )
    offsets = gather.local_offsets(load(index, f"{at} index").reshape(p, -1), e, n)
    _check_offsets(at, offsets, checks.free(src))
    values = gather.local_gather(load(src, f"{at} src_buffer").reshape(p, -1), offsets)
    store(dst, values)
    return current().emit(at, "gpsimd", (dst,), (src, index), name, n=n, e=e)


def nc_n_gather(
    dst: NkiTensor, data: NkiTensor, indices: NkiTensor, name: str | None = None
) -> NkiInstruction:
    """dst[p, i] = data[p, indices[p, i]], free dimensions flattened; bits.

    data [P, F], indices uint32 and dst [P, N], all in SBUF.

    Raises:
        RuleError: rules region, dtype, shape, ...
        BoundsError: an index outside [0, F).
    """
    at = "nc_n_gather"
    dst, data = checks.tile(at, "dst", dst, checks.SBUF), _sbuf(at, "data", data)
    indices = _sbuf(at, "indices", indices)
    checks.same_dtype(at, dst, data=data)
    if indices.dtype != "uint32":
        raise RuleError(f"{at} indices is {indices.dtype}: must be uint32", rule="dtype")
    checks.same_shape(at, dst, indices=indices)
    if data.shape[0] != dst.shape[0]:
        raise RuleError(
            f"{at} data {data.shape} and dst {dst.shape} must have the same number of partitions",
            rule="shape",
        )
    offsets = load(indices, f"{at} indices")
    _check_offsets(at, offsets, checks.free(data))
    store(dst, gather.n_gather(load(data, f"{at} data"), offsets))
    return current().emit(at, "gpsimd", (dst,), (data, indices), name, n=checks.free(dst))


def _sbuf(op: str, operand: str, value: NkiTensor) -> NkiTensor:
    return checks.tile(op, operand, value, checks.SBUF)


def _check_offsets(op: str, offsets: np.ndarray, size: int) -> None:
    if offsets.max() >= size:
        raise BoundsError(
            f"{op}: offset {offsets.max()} of {size} elements per partition; indices out of range "
            "read something undefined",
            rule="bounds",
        )
