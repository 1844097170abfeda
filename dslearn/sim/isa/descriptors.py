"""Checks that DMA instructions share: memories, descriptor modes, runtime addresses.

A DMA walks descriptors. The host makes them beforehand (`dge_mode.none`), hardware makes them when
the instruction runs (`hwdge`), or GpSimd does (`swdge`), the only one that computes an address per
row. DMA reaches any partition, so start partitions do not matter here.
Source: docs/reference/nki.md, section "Data movement".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dslearn.sim.access import Place
from dslearn.sim.access_pattern import check_column
from dslearn.sim.isa import checks
from dslearn.sim.isa.enums import dge_mode, member, oob_mode
from dslearn.sim.memory import MemoryRegion
from dslearn.sim.rules import RuleError
from dslearn.sim.tensor import NkiTensor


def operand(op: str, name: str, value: Any) -> NkiTensor:
    """`value` as an operand of a DMA: a tensor in HBM or SBUF.

    Raises:
        RuleError: it lies in PSUM.
        ArgumentError: not a tensor.
    """
    t = checks.tensor(op, name, value)
    if t.buffer is MemoryRegion.psum:
        raise RuleError(
            f"{op} requires HBM or SBUF tensors, got {name}={t.buffer}: tensor_copy it to SBUF "
            "first",
            rule="region",
        )
    return t


def sbuf(op: str, name: str, value: Any) -> NkiTensor:
    """`value` as an operand of a DMA that must be in SBUF.

    Raises:
        RuleError, ArgumentError: as `operand`, or it lies in HBM.
    """
    t = operand(op, name, value)
    if t.buffer is not MemoryRegion.sbuf:
        raise RuleError(
            f"{op} {name} must be in ['sbuf'], got {t.buffer.value}: dma_copy it", rule="region"
        )
    return t


def same_count(op: str, dst: NkiTensor, src: NkiTensor, name: str = "src") -> None:
    """Check that a DMA writes as many elements as it reads.

    Raises:
        RuleError: it does not.
    """
    if src.size != dst.size:
        raise RuleError(
            f"{op} requires {name} and dst to have the same number of elements, got "
            f"{name}={src.size}, dst={dst.size} ({src.shape} and {dst.shape})",
            rule="shape",
        )


def mode(op: str, asked: Any, *tensors: NkiTensor) -> dge_mode:
    """Who makes the descriptors: the mode asked for, swdge for rows chosen at run time.

    Raises:
        RuleError: that mode cannot compute the addresses.
    """
    wanted = member(dge_mode, asked, f"{op} dge_mode")
    vector = any(t.vector is not None for t in tensors)
    if vector and wanted not in (dge_mode.unknown, dge_mode.swdge):
        raise RuleError(
            f"{op} with a vector offset and dge_mode.{wanted.name}: use dge_mode.swdge, or leave "
            "the choice to the compiler",
            rule="dma-descriptor",
        )
    if wanted is dge_mode.none and any(t.scalars for t in tensors):
        raise RuleError(
            f"{op} with a runtime offset and dge_mode.none: use hwdge or swdge", "dma-descriptor"
        )
    return dge_mode.swdge if vector else wanted


def skips(op: str, asked: Any, *tensors: NkiTensor) -> bool:
    """Whether rows, or a runtime offset, that leave the tensor are skipped.

    Raises:
        RuleError: `oob_mode.skip` where no address is computed at run time.
    """
    skip = member(oob_mode, asked, f"{op} oob_mode") is oob_mode.skip
    if skip and not any(t.is_indirect() for t in tensors):
        raise RuleError(
            f"{op} oob_mode.skip without an indirect operand: it skips runtime offsets that leave "
            "the tensor; static ones are checked when the view is made",
            rule="operand",
        )
    return skip


def no_priority(op: str, priority: Any) -> None:
    """Check that no priority is given.

    Raises:
        NotSupportedError: one is; trn2 has none.
    """
    if priority is not None:
        raise checks.trn3(f"{op} priority={priority!r}", "leave it out")


def columns(*tensors: NkiTensor) -> None:
    """Check that gathers and scatters have one index per row, in a column.

    Raises:
        RuleError: they do not.
    """
    for t in tensors:
        if t.vector is not None:
            check_column(t.vector[0], t.shape[0])


def kept(source: Place, like: NkiTensor) -> np.ndarray | None:
    """Elements of `like` that get something when rows of a source were skipped; None for all.

    Rows count in the order of elements, whatever the shape of `like`.
    """
    if source.valid is None or source.valid.all():
        return None
    return np.repeat(source.valid, like.size // source.valid.size).reshape(like.shape)
