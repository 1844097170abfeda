"""The product with a packed fp4 weight: its twin, and the operation of its kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from dslearn.formats import e2m1, ue8m0
from dslearn.formats.place_fp4 import BLOCK, unplace_fp4
from dslearn.kernels import fp4_linear as kernels
from dslearn.ops.registry import Op


def reference(
    x: Tensor, words: Tensor, power: Tensor, outputs: int, fp32_out: bool = False
) -> Tensor:
    """x · Wᵀ in fp32 with one final rounding.

    Args:
        x: [M, K] bf16, K a multiple of 32.
        words: uint8 [128, T, S, 64, 4], of `dslearn.formats.place_fp4.place_fp4`.
        power: uint8 [128, Q, 128 T], of `place_fp4`.
        outputs: N.
        fp32_out: return fp32 instead of the dtype of x.
    Returns:
        [M, N].
    Source: docs/reference/formats.md, "e2m1" and "Device placement".
    """
    packed, scale = unplace_fp4(words, power, outputs, x.shape[1])
    wide = ue8m0.decode(scale).repeat_interleave(BLOCK, 1)
    y = x.float() @ (e2m1.decode(e2m1.unpack(packed)) * wide).T
    return y if fp32_out else y.to(x.dtype)


def fake(x: Tensor, words: Tensor, power: Tensor, outputs: int, fp32_out: bool = False) -> Tensor:
    """Shape and dtype of `reference`."""
    return x.new_empty((x.shape[0], outputs), dtype=torch.float32 if fp32_out else x.dtype)


fp4_linear = Op(
    "fp4_linear(Tensor x, Tensor words, Tensor power, int outputs, bool fp32_out=False) -> Tensor",
    twin=reference,
    fake=fake,
    kernel=kernels.fp4_linear,
    takes={"x": "bf16 [M, K]", "words": "u8 [128, T, S, 64, 4]", "power": "u8 [128, Q, W]"},
)
