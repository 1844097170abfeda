"""The grouped product of the output projection on the chip.

In bf16 arithmetic the kernel `grouped` does all groups at once. It takes bf16 rows, which in fp32
arithmetic these are not (no quantisation made them so): there each group is a `plain` product.
Shapes: R rows, G groups, K inputs and N outputs of a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from dslearn.formats import inputs_first
from dslearn.model import chip, chip_linear

if TYPE_CHECKING:
    from dslearn.model.linear import GroupedLinear

ROWS = 128  # that the kernel takes at once


@dataclass(frozen=True)
class Together:
    """Weights [G, P, 128, J, W] bf16 of `inputs_first.by_part`, N of the W * P outputs used."""

    weight: Tensor
    outputs: int

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., G * K], numbers that bf16 holds -> [..., G * N], rounded to bf16."""
        from dslearn.ops.grouped import grouped

        rows = x.reshape(-1, len(self.weight), x.shape[-1] // len(self.weight)).bfloat16()
        parts = [grouped(some, self.weight) for some in rows.split(ROWS)]
        return torch.cat(parts)[..., : self.outputs].float().reshape(*x.shape[:-1], -1)


@dataclass(frozen=True)
class Apart:
    """A product for each group."""

    parts: tuple[chip_linear.Plain, ...]

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., G * K] -> [..., G * N]."""
        inputs = x.chunk(len(self.parts), -1)
        return torch.cat([part(some) for part, some in zip(self.parts, inputs, strict=True)], -1)


Form: TypeAlias = Together | Apart


def placed(layer: GroupedLinear) -> Form:
    """The weight of `layer` on the chip, made at the first call and after a change."""
    if torch.compiler.is_compiling():
        found: Form = chip.kept(layer.weight)
        return found
    make = _maker(layer.groups, layer.arith.numerics.arithmetic == "bf16")
    return chip.placed(layer.weight, make, layer.weight)


@cache
def _maker(groups: int, narrow: bool) -> partial[Form]:
    return partial(_make, groups=groups, narrow=narrow)


def _make(weight: Tensor, groups: int, narrow: bool) -> Form:
    each = weight.chunk(groups)
    half = weight.bfloat16()
    if not (narrow and torch.equal(half.float(), weight)):
        return Apart(tuple(chip_linear.plain_fp32(w) for w in each))
    parts = 1 if groups % 2 == 0 else 2
    wide = [inputs_first.padded(w, (64, 128)).T for w in half.chunk(groups)]
    return Together(
        torch.stack([inputs_first.by_part(w, parts) for w in wide]), len(weight) // groups
    )
