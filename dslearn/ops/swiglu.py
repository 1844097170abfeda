"""Clamped SwiGLU: its twin, and the operation that `dslearn.kernels.swiglu` serves."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from dslearn.kernels import swiglu as kernels
from dslearn.ops.registry import Op


def reference(gate: Tensor, up: Tensor, limit: float, weight: Tensor | None = None) -> Tensor:
    """silu(min(gate, limit)) · clamp(up, -limit, limit) · weight, in fp32, one final rounding.

    Args:
        gate: [R, I] bf16 or fp32; cut from above only.
        up: [R, I]; cut on both sides.
        limit: `swiglu_limit`.
        weight: [R, 1] fp32, the router's weight of each row, or None.
    Returns:
        [R, I], dtype of gate.
    Source: docs/reference/model.md, "Experts".
    """
    hidden = F.silu(gate.float().clamp(max=limit)) * up.float().clamp(-limit, limit)
    return (hidden if weight is None else hidden * weight).to(gate.dtype)


swiglu = Op(
    "swiglu(Tensor gate, Tensor up, float limit, Tensor? weight=None) -> Tensor",
    twin=reference,
    fake=lambda gate, up, limit, weight=None: gate.new_empty(gate.shape),
    kernel=kernels.swiglu,
    takes={"gate": "bf16|fp32 [R, I]", "up": "bf16|fp32 [R, I]", "weight": "fp32 [R, 1]"},
)
