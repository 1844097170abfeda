"""Routed experts on the chip: the fp4 weights of all in one tensor, those in use by their number.

Shapes: A slots, R rows, K inputs, N outputs, E experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dslearn.model import chip, chip_linear
from dslearn.model.listed import Product, Slots

if TYPE_CHECKING:
    from dslearn.model.moe import MoE


ROWS = 128  # that the kernel takes at once


@dataclass(frozen=True)
class Stack:
    """One weight of every expert as `widened_active` reads it."""

    codes: Tensor
    power: Tensor
    outputs: int

    def __call__(self, x: Tensor, slots: Slots) -> Tensor:
        """x [1 or A, R, K], numbers that bf16 holds -> [A, R, N] fp32."""
        from dslearn.ops.widened_active import widened_active

        rest = self.codes, self.power, slots.order, slots.used, self.outputs
        return torch.cat([widened_active(part, *rest) for part in x.bfloat16().split(ROWS, 1)], 1)


def product(layer: MoE) -> Product | None:
    """The product with the experts in use; None where they are not fp4 weights that widen."""
    found = stacks(layer)
    if found is None:
        return None
    return lambda name, x, slots: found[name](x, slots)


def stacks(layer: MoE) -> dict[str, Stack] | None:
    """w1, w2 and w3 of all experts on the chip, made at the first call and after a change.

    Raises:
        KernelError, FormatError: as `chip_linear.placed`.
    """
    if torch.compiler.is_compiling():
        made: dict[str, Stack] | None = chip.kept(layer)
        return made
    linears = [w for expert in layer.every() for w in (expert.w1, expert.w2, expert.w3)]
    fp4 = all(chip_linear.coded(w) and w.stored_per_row for w in linears)
    return chip.placed(layer, _stacks if fp4 else _none, *(w.weight for w in linears))


def _none(*_: Tensor) -> None:
    return None


def _stacks(*weights: Tensor) -> dict[str, Stack] | None:
    stacked = {}
    for i, name in enumerate(("w1", "w2", "w3")):
        each = [chip_linear.widened(weight) for weight in weights[i::3]]
        if any(one is None for one in each):
            return None
        codes, power = (torch.stack(part) for part in zip(*(e for e in each if e), strict=True))
        stacked[name] = Stack(codes, power, len(weights[i]))
    return stacked
