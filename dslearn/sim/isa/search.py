"""Searching rows on the Vector engine: max8, nc_find_index8, nc_match_replace8.

P partitions, N elements per partition; values are compared in fp32.
Source: docs/reference/nki.md, section "Search and gather".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dslearn.sim.access import store, store32
from dslearn.sim.dtypes import NUMPY
from dslearn.sim.isa import checks, operands
from dslearn.sim.numerics import search
from dslearn.sim.program import NkiInstruction, current
from dslearn.sim.rules import RuleError
from dslearn.sim.tensor import NkiTensor

FEWEST, MOST, RANK = 8, 16384, 3


def _source(at: str, name: str, value: Any) -> NkiTensor:
    """A tile of up to three dimensions and 8 to 16384 elements per partition.

    Raises:
        RuleError: another shape (rule shape), dtype or memory.
    """
    t = checks.tile(at, name, value)
    checks.computable(at, **{name: t})
    if not FEWEST <= checks.free(t) <= MOST or t.ndim > RANK:
        raise RuleError(
            f"{at} {name} {t.shape}: {FEWEST} to {MOST} elements per partition in at most {RANK} "
            "dimensions",
            rule="shape",
        )
    return t


def _eight(at: str, name: str, value: Any, p: int, rank: int = 2) -> NkiTensor:
    """A tile of P partitions and eight elements each.

    Raises:
        RuleError: another shape (rule shape), dtype or memory.
    """
    t = checks.tile(at, name, value)
    checks.computable(at, **{name: t})
    if t.shape[0] != p or checks.free(t) != 8 or t.ndim > rank:
        raise RuleError(f"{at} {name} {t.shape}: must be ({p}, 8)", rule="shape")
    return t


def _store_places(at: str, name: str, t: NkiTensor, places: np.ndarray) -> None:
    """Write uint32 positions to a uint16 or uint32 tile; all ones stay all ones.

    Raises:
        RuleError: another dtype (rule dtype).
    """
    if t.dtype not in ("uint16", "uint32"):
        raise RuleError(f"{at} {name} is {t.dtype}: must be uint16 or uint32", rule="dtype")
    store(t, places.astype(NUMPY[t.dtype]))


def max8(dst: NkiTensor, src: NkiTensor, name: str | None = None) -> NkiInstruction:
    """dst (P, 8) = the eight largest of each row, descending; equal values appear repeatedly.

    Raises:
        RuleError: rules region, shape, dtype, uninitialised.
    """
    at = "max8"
    src = _source(at, "src", src)
    dst = _eight(at, "dst", dst, src.shape[0])
    store32(dst, search.max8(operands.rows(src, f"{at} src")))
    return current().emit(at, "vector", (dst,), (src,), name)


def nc_find_index8(
    dst: NkiTensor, data: NkiTensor, vals: NkiTensor, name: str | None = None
) -> NkiInstruction:
    """dst (P, 8) = where each of `vals` (P, 8) occurs in its row of `data` [P, N].

    Equal values take successive occurrences, the first slot the first. A value that does not occur
    gives all ones. dst is uint16 or uint32.

    Raises:
        RuleError: rules region, shape, dtype, uninitialised.
    """
    at = "nc_find_index8"
    data = _source(at, "data", data)
    vals = _eight(at, "vals", vals, data.shape[0], RANK)
    dst = _eight(at, "dst", dst, data.shape[0])
    found = search.find_index8(operands.rows(data, f"{at} data"), operands.rows(vals, f"{at} vals"))
    _store_places(at, "dst", dst, found)
    return current().emit(at, "vector", (dst,), (data, vals), name)


def nc_match_replace8(  # noqa: PLR0913 - the vendor's signature
    dst: NkiTensor,
    data: NkiTensor,
    vals: NkiTensor,
    imm: float,
    dst_idx: NkiTensor | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """dst = data [P, N] with the first occurrence of each of `vals` (P, 8) replaced by `imm`.

    Slots are served from 7 down to 0: of equal values the highest slot takes the first occurrence,
    the other way round than nc_find_index8. `dst_idx` (P, 8) receives the places.

    Raises:
        RuleError: rules region, shape, dtype, uninitialised.
    """
    at = "nc_match_replace8"
    data = _source(at, "data", data)
    dst = checks.tile(at, "dst", dst)
    checks.same_shape(at, dst, data=data)
    checks.computable(at, dst=dst)
    vals = _eight(at, "vals", vals, data.shape[0], RANK)
    places = None if dst_idx is None else _eight(at, "dst_idx", dst_idx, data.shape[0])
    number = operands.number(at, "imm", imm)
    rows, wanted = operands.rows(data, f"{at} data"), operands.rows(vals, f"{at} vals")
    replaced, found = search.match_replace8(rows, wanted, number)
    if places is not None:
        _store_places(at, "dst_idx", places, found)
    store32(dst, replaced)
    outputs = (dst, *operands.tiles(places))
    return current().emit(at, "vector", outputs, (data, vals), name)
