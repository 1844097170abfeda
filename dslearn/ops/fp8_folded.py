"""The product of few rows with an fp8 weight: its twin, and the operation of its kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from dslearn.formats.place import unplace_fp8
from dslearn.formats.tiles import dequantize
from dslearn.kernels import fp8_folded as kernels
from dslearn.ops.registry import Op


def reference(
    x: Tensor, weight: Tensor, power: Tensor, outputs: int, fp32_out: bool = False
) -> Tensor:
    """x · Wᵀ in fp32 with one final rounding.

    Args:
        x: [M, K] bf16.
        weight: uint8 [128, T, J, 128], of `dslearn.formats.place.place_fp8`.
        power: uint8 [128, T, J, B], of `place_fp8`.
        outputs: N.
        fp32_out: return fp32 instead of the dtype of x.
    Returns:
        [M, N].
    Source: docs/reference/formats.md, "Weight tiles" and "Device placement".
    """
    codes, scale = unplace_fp8(weight, power, outputs, x.shape[1])
    y = x.float() @ dequantize(codes, scale, 128 // power.shape[3]).T
    return y if fp32_out else y.to(x.dtype)


def fake(x: Tensor, weight: Tensor, power: Tensor, outputs: int, fp32_out: bool = False) -> Tensor:
    """Shape and dtype of `reference`."""
    return x.new_empty((x.shape[0], outputs), dtype=torch.float32 if fp32_out else x.dtype)


fp8_folded = Op(
    "fp8_folded(Tensor x, Tensor weight, Tensor power, int outputs, bool fp32_out=False) -> Tensor",
    twin=reference,
    fake=fake,
    kernel=kernels.fp8_folded,
    takes={"x": "bf16 [M, K]", "weight": "u8 [128, T, J, 128]", "power": "u8 [128, T, J, B]"},
)
