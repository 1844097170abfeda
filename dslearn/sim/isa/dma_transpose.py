"""dma_transpose: exchange the first and the last dimension while data moves to SBUF.

Source: docs/reference/nki.md, section "Data movement".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dslearn.sim.access import Place, load, store
from dslearn.sim.isa import checks, descriptors
from dslearn.sim.isa.enums import dge_mode as modes
from dslearn.sim.isa.enums import oob_mode as oob
from dslearn.sim.program import NkiInstruction, current
from dslearn.sim.rules import RuleError
from dslearn.sim.tensor import NkiTensor

AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}
ROWS, COLUMNS, BYTES = 16, 128, 2  # what the hardware transposes at a time


def dma_transpose(  # noqa: PLR0913 - the vendor's signature
    dst: NkiTensor,
    src: NkiTensor,
    axes: Any = None,
    priority: Any = None,
    dge_mode: Any = modes.unknown,
    oob_mode: Any = oob.error,
    name: str | None = None,
) -> NkiInstruction:
    """dst = src.transpose(axes), bits: (1, 0), (2, 1, 0) or (3, 1, 2, 0) by rank.

    src [R, ..., C] in HBM or SBUF, dst [C, ..., R] in SBUF, same dtype and rank. With a vector
    offset the rows of src are gathered first: row r is index r of the index tile read column by
    column.

    Raises:
        RuleError: rules region, shape, dtype, dma-transpose, dma-descriptor, operand, ...
        BoundsError: a runtime offset that leaves its tensor.
        NotSupportedError: `priority`.
    """
    dst = descriptors.sbuf("dma_transpose", "dst", dst)
    src = descriptors.operand("dma_transpose", "src", src)
    descriptors.no_priority("dma_transpose", priority)
    checks.same_dtype("dma_transpose", dst, src=src)
    order = _axes(dst, src, axes)
    mode = descriptors.mode("dma_transpose", dge_mode, src)
    skip = descriptors.skips("dma_transpose", oob_mode, src)
    _check_blocks(src, mode)
    place = Place(src, skip)
    _check_mixed(src, place)
    values = load(src, "dma_transpose src", place).transpose(order)
    if place.valid is None or place.valid.all():
        store(dst, values)
    return current().emit("dma_transpose", "dma", (dst,), (src,), name, dge=mode.name, axes=order)


def _axes(dst: NkiTensor, src: NkiTensor, asked: Any) -> tuple[int, ...]:
    order = AXES.get(src.ndim)
    if order is None or (asked is not None and tuple(asked) != order):
        raise RuleError(
            f"dma_transpose axes={asked} of {src!r}: (1, 0), (2, 1, 0) and (3, 1, 2, 0) by rank",
            rule="dma-transpose",
        )
    wanted = tuple(src.shape[a] for a in order)
    if dst.shape != wanted:
        raise RuleError(
            f"dma_transpose of {src.shape} by {order} gives {wanted}, dst has shape {dst.shape}",
            rule="shape",
        )
    return order


def _check_blocks(src: NkiTensor, mode: modes) -> None:
    """Check what the block transposer takes; the compiler's own choice may do without it."""
    if src.vector is not None:
        complaint = _gathered(src, src.vector[0])
    elif mode is modes.hwdge:
        complaint = _direct(src)
    elif mode is modes.unknown:
        return
    else:
        complaint = f"dge_mode.{mode.name} transposes gathered rows only: use hwdge or unknown"
    if complaint:
        raise RuleError(f"dma_transpose {src!r}: {complaint}", rule="dma-transpose")


def _common(src: NkiTensor) -> str:
    if src.itemsize != BYTES:
        return f"elements have {src.itemsize} bytes, must have {BYTES}"
    if src.shape[-1] > COLUMNS:
        return f"the last dimension is {src.shape[-1]}, at most {COLUMNS}"
    return ""


def _direct(src: NkiTensor) -> str:
    rows = src.shape[0]
    if src.ndim == 2 and rows != ROWS:
        return f"hwdge takes {ROWS} rows, got {rows}"
    if src.ndim > 2 and (rows not in (1, 2, 4, 8, 16) or rows * src.shape[-2] % ROWS):
        return (
            f"hwdge takes 1, 2, 4, 8 or {ROWS} rows, and rows x dimension -2 a multiple of {ROWS}"
        )
    return _common(src)


def _gathered(src: NkiTensor, index: NkiTensor) -> str:
    rows, height = src.shape[0], index.shape[0]
    if rows % ROWS:
        return f"gathers a multiple of {ROWS} rows, got {rows}"
    if src.ndim == 4 and 1 not in src.shape[1:3]:
        return "a gathered 4-D source has dimension 1 or 2 of size 1"
    if index.ndim != 2 or index.dtype != "uint32":
        return f"the index tile is 2-D uint32, got {index!r}"
    if height % ROWS or not ROWS <= height <= COLUMNS or (index.shape[1] > 1 and height != COLUMNS):
        return f"the index tile has 16 to 128 partitions in 16s, 128 for several columns: {index!r}"
    return _common(src)


def _check_mixed(src: NkiTensor, place: Place) -> None:
    valid = place.valid
    if valid is not None and np.any(valid) and not np.all(valid):
        raise RuleError(
            f"dma_transpose {src!r} skips {int((~valid).sum())} of {len(valid)} rows: skipping "
            "some rows and not others aborts the device (aws-neuron-sdk issue 1390); keep indices "
            "in range and mask afterwards",
            rule="dma-transpose",
        )
