"""RMSNorm: its twin, and the operation that `dslearn.kernels.rmsnorm` serves."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from dslearn.kernels import rmsnorm as kernels
from dslearn.ops.registry import Op


def reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) · weight, in fp32 with one final rounding.

    Args:
        x: [R, K] bf16 or fp32.
        weight: [K] bf16 or fp32.
        eps: number added to the mean of squares.
    Returns:
        [R, K], dtype of x.
    Source: docs/reference/model.md, "Notation".
    """
    return F.rms_norm(x.float(), weight.shape, weight.float(), eps).to(x.dtype)


rmsnorm = Op(
    "rmsnorm(Tensor x, Tensor weight, float eps) -> Tensor",
    twin=reference,
    fake=lambda x, weight, eps: x.new_empty(x.shape),
    kernel=kernels.rmsnorm,
    takes={"x": "bf16|fp32 [R, K]", "weight": "bf16|fp32 [K]"},
)
