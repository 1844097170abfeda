"""DMA between HBM and SBUF: dma_copy with gather and scatter, dma_compute.

P rows, one per index of a vector offset; N elements per row.
Source: docs/reference/nki.md, section "Data movement".
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from dslearn.sim.access import Place, load, store
from dslearn.sim.dtypes import NUMPY
from dslearn.sim.isa import checks, descriptors
from dslearn.sim.isa.enums import dge_mode as modes
from dslearn.sim.isa.enums import engine as engines
from dslearn.sim.isa.enums import member
from dslearn.sim.isa.enums import oob_mode as oob
from dslearn.sim.isa.ops import name_of
from dslearn.sim.numerics.casts import convert, narrow, widen
from dslearn.sim.program import NkiInstruction, current
from dslearn.sim.rules import RuleError
from dslearn.sim.tensor import NkiTensor

SOURCES = 16  # of one dma_compute


def dma_copy(  # noqa: PLR0913 - the vendor's signature
    dst: NkiTensor,
    src: NkiTensor,
    priority: Any = None,
    oob_mode: Any = oob.error,
    dge_mode: Any = modes.unknown,
    engine: Any = engines.unknown,
    name: str | None = None,
) -> NkiInstruction:
    """dst = src, element by element in row-major order; each in HBM or SBUF, of any shape.

    Bits when the dtypes agree, else through fp32, rounded once. A `src` with a vector offset
    gathers rows, such a `dst` scatters them; with `oob_mode.skip` rows that leave their tensor are
    not moved. Two rows scattered to one place arrive in no defined order: here the last one stays,
    and a RuntimeWarning says so when they differ.

    Raises:
        RuleError: rules region, shape, partition-limit, dma-cast, dma-descriptor, engine, operand.
        BoundsError: a runtime offset that leaves its tensor.
        NotSupportedError: `priority`.
    """
    dst = descriptors.operand("dma_copy", "dst", dst)
    src = descriptors.operand("dma_copy", "src", src)
    descriptors.no_priority("dma_copy", priority)
    descriptors.same_count("dma_copy", dst, src)
    descriptors.columns(dst, src)
    mode = descriptors.mode("dma_copy", dge_mode, dst, src)
    skip = descriptors.skips("dma_copy", oob_mode, dst, src)
    issuer = _issuer(engine, mode)
    cast = _check_cast(dst, src, mode)
    source, target = Place(src, skip), Place(dst, skip)
    values = load(src, "dma_copy src", source)
    if cast:
        values = convert(values, NUMPY[dst.dtype], tf32=dst.dtype == "tfloat32")
    values = values.reshape(dst.shape)
    _warn_duplicates(dst, target, values)
    store(dst, values, where=target, only=descriptors.kept(source, dst))
    return current().emit(
        "dma_copy", "dma", (dst,), (src,), name, dge=mode.name, cast=cast, issuer=issuer
    )


def dma_compute(  # noqa: PLR0913 - the vendor's signature
    dst: NkiTensor,
    srcs: Sequence[NkiTensor],
    reduce_op: Any,
    scales: Sequence[float] | None = None,
    unique_indices: bool = True,
    oob_mode: Any = oob.error,
    name: str | None = None,
) -> NkiInstruction:
    """dst = srcs[0] + srcs[1] + ..., in fp32 from left to right, rounded once to the dtype of dst.

    Up to 16 tensors in HBM or SBUF with the element count of dst. With a vector offset there are
    two, and one is dst itself: `dst[rows] += tile` (scatter, dst in HBM) or `tile += src[rows]`
    (gather, dst in SBUF). No row may be named twice.

    Raises:
        RuleError: rules region, shape, dtype, operand, dma-descriptor, dma-unique, ...
        BoundsError: a row outside its tensor, without `oob_mode.skip`.
    """
    dst = descriptors.operand("dma_compute", "dst", dst)
    sources = [descriptors.operand("dma_compute", "src", s) for s in srcs]
    _check_sum(reduce_op, scales, sources, unique_indices)
    for source in sources:
        descriptors.same_count("dma_compute", dst, source)
        checks.computable("dma_compute", dst=dst, src=source)
    descriptors.columns(dst, *sources)
    mode = descriptors.mode("dma_compute", modes.unknown, dst, *sources)
    skip = descriptors.skips("dma_compute", oob_mode, dst, *sources)
    _check_update(dst, sources)
    places = [Place(s, skip) for s in sources]
    total = np.zeros(dst.shape, np.float32)
    for i, (source, place) in enumerate(zip(sources, places, strict=True)):
        term = widen(load(source, "dma_compute src", place)).reshape(dst.shape)
        total = term if i == 0 else total + term
        _check_unique(source, place)
    gathered = next((p for p in places if p.valid is not None), places[0])
    values = narrow(total, NUMPY[dst.dtype], tf32=dst.dtype == "tfloat32")
    store(dst, values, where=Place(dst, skip), only=descriptors.kept(gathered, dst))
    return current().emit("dma_compute", "dma", (dst,), tuple(sources), name, dge=mode.name)


def _issuer(asked: Any, mode: modes) -> str:
    """Name of the engine whose queue starts the DMA."""
    issuer = member(engines, asked, "dma_copy engine")
    asks = issuer is not engines.unknown
    if asks and (issuer not in (engines.sync, engines.scalar) or mode is not modes.hwdge):
        raise RuleError(
            f"dma_copy engine={issuer.name} with dge_mode.{mode.name}: only engine.sync and "
            "engine.scalar issue DMAs, and only with dge_mode.hwdge",
            rule="engine",
        )
    return issuer.name


def _check_cast(dst: NkiTensor, src: NkiTensor, mode: modes) -> bool:
    """Whether the copy casts; refused where it cannot."""
    if src.dtype == dst.dtype:
        return False
    if mode is modes.hwdge:
        raise RuleError(
            f"dma_copy src is {src.dtype} and dst {dst.dtype} with dge_mode.hwdge: it moves bytes; "
            "cast with dge_mode.swdge, or view the bytes as the same dtype",
            rule="dma-cast",
        )
    checks.computable("dma_copy cast:", dst=dst, src=src)
    return True


def _warn_duplicates(dst: NkiTensor, target: Place, values: np.ndarray) -> None:
    if target.rows is None:
        return
    starts, rows = target.inside(target.rows), target.inside(values)
    if not len(starts):
        return
    order = np.argsort(starts, kind="stable")
    same = np.flatnonzero(np.diff(starts[order]) == 0)
    words = np.ascontiguousarray(rows).reshape(len(starts), -1).view(np.uint8)
    if any((words[order[i]] != words[order[i + 1]]).any() for i in same):
        warnings.warn(
            f"dma_copy scatters different rows to one row of {dst!r}: on hardware any of them may "
            "stay; here the last one does",
            RuntimeWarning,
            stacklevel=3,
        )


def _check_sum(reduce_op: Any, scales: Any, sources: list[NkiTensor], unique: bool) -> None:
    if name_of(reduce_op, "dma_compute reduce_op") != "add":
        raise RuleError("dma_compute reduce_op: only nl.add", rule="operand")
    if not 1 <= len(sources) <= SOURCES:
        raise RuleError(f"dma_compute of {len(sources)} srcs: 1 to {SOURCES}", rule="operand")
    if scales is not None and list(scales) != [1.0] * len(sources):
        raise RuleError(
            f"dma_compute scales={scales!r} of {len(sources)} srcs: one 1.0 each, or None; scale "
            "on an engine first",
            rule="operand",
        )
    if not unique:
        raise RuleError(
            "dma_compute unique_indices=False is not supported: sum duplicates on chip first",
            rule="dma-unique",
        )


def _check_update(dst: NkiTensor, sources: list[NkiTensor]) -> None:
    """Check the two forms that a vector offset may take, and that nothing else is dynamic."""
    if any(t.scalars for t in (dst, *sources)):
        raise RuleError(
            "dma_compute with a scalar offset: addresses are static, or a vector offset's",
            rule="dma-descriptor",
        )
    gathers = [s for s in sources if s.vector is not None]
    if dst.vector is None and not gathers:
        return
    others = [s for s in sources if not _same_elements(s, dst)]
    scatter = dst.vector is not None and len(others) == 1 and others[0].vector is None
    gather = dst.vector is None and dst.on_chip and len(others) == 1 and others[0] in gathers
    if len(sources) != 2 or not (scatter or gather):
        raise RuleError(
            "dma_compute with a vector offset: two srcs, one of them the view dst; either "
            "dst=hbm.ap(vector_offset) and a tile, or dst a tile and hbm.ap(vector_offset)",
            rule="operand",
        )


def _same_elements(a: NkiTensor, b: NkiTensor) -> bool:
    if (a.storage, a.dtype, a.offset, a.shape) != (b.storage, b.dtype, b.offset, b.shape):
        return False
    fixed = 0 if a.vector is None else 1
    if a.strides[fixed:] != b.strides[fixed:] or (a.vector is None) != (b.vector is None):
        return False
    if a.vector is None or b.vector is None:
        return True
    return a.vector[1] == b.vector[1] and _same_elements(a.vector[0], b.vector[0])


def _check_unique(t: NkiTensor, place: Place) -> None:
    if place.rows is None:
        return
    starts = np.sort(place.inside(place.rows))
    again = starts[1:][starts[1:] == starts[:-1]]
    if again.size:
        row = int(again[0])
        times = np.count_nonzero(starts == row)
        raise RuleError(
            f"dma_compute {t!r}: the row at element {row} is named {times} times; rows that "
            "are added to must be unique, send padding out of range with oob_mode.skip",
            rule="dma-unique",
        )
