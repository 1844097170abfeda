"""`tile[a:b] = value`: the copy instruction that an assignment stands for.

Source: docs/reference/nki.md, section "Tensors and views".
"""

from __future__ import annotations

import numbers
from typing import Any

from dslearn.sim.isa.copies import memset, tensor_copy
from dslearn.sim.isa.dma import dma_copy
from dslearn.sim.rules import ArgumentError, RuleError
from dslearn.sim.tensor import NkiTensor


def assign(view: NkiTensor, value: Any) -> None:
    """Write a number (memset) or a tensor of the same shape (tensor_copy, dma_copy with HBM).

    Raises:
        RuleError: shapes that differ, a number for HBM, or what the instruction refuses.
        ArgumentError: another kind of value.
    """
    if isinstance(value, NkiTensor):
        if value.shape != view.shape:
            raise RuleError(
                f"assignment of {value.shape} to {view.shape}: the shapes must be the same, "
                "nothing broadcasts",
                rule="shape",
            )
        copy = tensor_copy if view.on_chip and value.on_chip else dma_copy
        copy(dst=view, src=value)
    elif isinstance(value, numbers.Real):
        if not view.on_chip:
            raise RuleError(
                f"assignment of {value!r} to {view!r}: only DMA writes HBM; memset a tile in SBUF "
                "and dma_copy it",
                rule="region",
            )
        memset(dst=view, value=value)
    else:
        raise ArgumentError(
            f"assignment of {type(value).__name__} to {view!r}: a tensor or a number",
            rule="arguments",
        )
