"""Rotary embedding: its twin, and the operation that `dslearn.kernels.rope` serves."""

from __future__ import annotations

import torch
from torch import Tensor

from dslearn.kernels import rope as kernels
from dslearn.ops.registry import Op


def reference(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool = False) -> Tensor:
    """The last R dims of x turned pair by pair, in fp32 with one rounding.

    Args:
        x: [T, H, D] bf16 or fp32.
        cos: [T, R] fp32, each pair's cosine twice.
        sin: [T, R] fp32, -sin and sin of each pair.
        inverse: turn back.
    Returns:
        [T, H, D], dtype of x.
    Source: docs/reference/model.md, "RoPE and YaRN".
    """
    rest = x.shape[-1] - cos.shape[-1]
    part = x[..., rest:].float()
    swapped = part.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    a, b = part * cos[:, None], swapped * sin[:, None]
    turned = a - b if inverse else a + b
    return torch.cat((x[..., :rest], turned.to(x.dtype)), -1)


rope = Op(
    "rope(Tensor x, Tensor cos, Tensor sin, bool inverse=False) -> Tensor",
    twin=reference,
    fake=lambda x, cos, sin, inverse=False: x.new_empty(x.shape),
    kernel=kernels.rope,
    takes={"x": "bf16|fp32 [T, H, D]", "cos": "fp32 [T, R]", "sin": "fp32 [T, R]"},
)
