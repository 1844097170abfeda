"""Products on the chip: a weight is placed once, then operations of `dslearn.ops` serve.

The parameters of a model are fp32 numbers that fp8 tiles or fp4 blocks hold exactly, so the codes
that a kernel reads are found again from them, and a weight that is replaced is placed again.
Everything that is not quantised is `plain`. Shapes: R rows, N outputs, K inputs, G groups.
Source: docs/reference/formats.md, "Device convention" and "Device placement".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from dslearn.errors import KernelError
from dslearn.formats import device, place, place_fp4, rows, tiles
from dslearn.model import chip
from dslearn.numerics import Numerics

if TYPE_CHECKING:
    from dslearn.model.linear import Linear

Product = Callable[[Tensor, Tensor, Tensor, int, bool], Tensor]
LEAST_TILE = 448 * 2.0**-126  # largest value under the smallest normal scale: no floor on tiles
FEW = 16  # rows up to which scaling activations takes less time than decoding the weight


@dataclass(frozen=True)
class Placed:
    """A quantised weight as its kernels read it: `few` serves up to `FEW` rows, `many` more."""

    few: Product
    many: Product
    codes: Tensor
    power: Tensor
    outputs: int

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., K], numbers that bf16 holds -> x times the weight transposed, fp32 [..., N]."""
        flat = x.reshape(-1, x.shape[-1]).to(torch.bfloat16)
        op = self.few if len(flat) <= FEW else self.many
        y = op(flat, self.codes, self.power, self.outputs, True)
        return y.view(*x.shape[:-1], self.outputs)


@dataclass(frozen=True)
class Plain:
    """A weight that is not quantised, in bf16 if that holds it; `narrow`: the rows too."""

    weight: Tensor
    narrow: bool
    outputs: int

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., K] -> x times the weight transposed, fp32 [..., N]."""
        from dslearn.ops.plain_linear import plain_linear

        flat = x.reshape(-1, x.shape[-1])
        y = plain_linear(flat.bfloat16() if self.narrow else flat, self.weight, self.outputs)
        return y.view(*x.shape[:-1], self.outputs)


Form: TypeAlias = Placed | Plain


def coded(layer: Linear) -> bool:
    """Whether kernels that read codes can serve `layer`: a quantised weight, and an input that bf16
    holds, which is a quantised one, or any in bf16 arithmetic."""
    numerics = layer.arith.numerics
    held = numerics.activations is not False or numerics.arithmetic == "bf16"
    return layer.quantised and layer.stored_quantised and held


def placed(layer: Linear) -> Form:
    """The weight of `layer` on the chip, made at the first call and after a change.

    Raises:
        KernelError: weights that are not what their format holds; they were changed after loading.
        FormatError: scales that no kernel reads.
    """
    if not coded(layer):
        return plain(layer.weight, layer.arith.numerics)
    if torch.compiler.is_compiling():
        found: Form = chip.kept(layer.weight)
        return found
    make: Callable[[Tensor], Form] = _fp4 if layer.stored_per_row else _fp8_in(layer.arith.block)
    return chip.placed(layer.weight, make, layer.weight)


def plain(weight: Tensor, numerics: Numerics) -> Plain:
    """A weight [N, K] that is not quantised, or meets inputs that bf16 does not hold."""
    make = _plain_bf16 if numerics.arithmetic == "bf16" else plain_fp32
    return chip.placed(weight, make, weight)


def plain_fp32(weight: Tensor) -> Plain:
    """A weight [N, K] for inputs of any value."""
    half = weight.bfloat16()
    exact = torch.equal(half.float(), weight)
    return Plain(place.place_codes(half if exact else weight), False, len(weight))


def _plain_bf16(weight: Tensor) -> Plain:
    """For inputs that bf16 holds, as in bf16 arithmetic: then products are exact in either form."""
    found = plain_fp32(weight)
    return Plain(found.weight, found.weight.dtype is torch.bfloat16, found.outputs)


@cache
def _fp8_in(tile: int) -> Callable[[Tensor], Placed]:
    return partial(_fp8, tile=tile)


def _fp8(weight: Tensor, tile: int) -> Placed:
    from dslearn.ops.fp8_folded import fp8_folded
    from dslearn.ops.fp8_linear import fp8_linear

    codes, scale = tiles.quantize(weight, tile, floor=LEAST_TILE)
    _check(weight, tiles.dequantize(codes, scale, tile), f"fp8 in {tile} x {tile} tiles")
    # Tiles that hold no code above 240 mean the same on the chip: they stay exact.
    codes, scale, _ = device.to_device(codes, scale, tile, "needed", in_place=True)
    return Placed(fp8_folded, fp8_linear, *place.place_fp8(codes, scale, tile), len(weight))


def _fp4(weight: Tensor) -> Placed:
    from dslearn.ops.fp4_linear import fp4_linear
    from dslearn.ops.fp4_widened import fp4_widened

    wide = widened(weight)
    if wide is not None:
        return Placed(fp4_widened, fp4_widened, *wide, len(weight))
    return Placed(fp4_linear, fp4_linear, *place_fp4.place_fp4(*_packed(weight)), len(weight))


def widened(weight: Tensor) -> tuple[Tensor, Tensor] | None:
    """An fp4 weight as `place_widened` puts it; None where its scales are too far apart.

    Raises:
        KernelError: a weight that is not what fp4 holds.
    """
    packed, scale = _packed(weight)
    if place_fp4.spread(packed, scale) > place_fp4.SPREAD:
        return None
    return place_fp4.place_widened(packed, scale)


def _packed(weight: Tensor) -> tuple[Tensor, Tensor]:
    packed, scale = rows.quantize_fp4(weight, block=place_fp4.BLOCK, scale="ue8m0")
    _check(weight, rows.dequantize_fp4(packed, scale), "fp4 with a scale per 32 inputs")
    return packed, scale


def _check(weight: Tensor, stored: Tensor, kind: str) -> None:
    if not torch.equal(weight, stored):
        count = int((weight != stored).sum())
        raise KernelError(
            f"{count} of {weight.numel()} weights [{len(weight)}, {weight.shape[1]}] are not what "
            f"{kind} holds: a kernel reads codes; quantise what you changed, or run this on the "
            'cpu: `with dslearn.backend.use("cpu")`'
        )
