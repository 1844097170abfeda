"""The shared expert: its twin, and the operation that its kernel serves."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from dslearn.formats import e4m3, ue8m0
from dslearn.kernels import shared_expert as kernels
from dslearn.ops.engram_kv import by_tile
from dslearn.ops.registry import Op


def both(products: Tensor) -> tuple[Tensor, Tensor]:
    """Products [M, 2 I] with gate and up in turns of 32 as two of [M, I]."""
    gate, up = products.unflatten(-1, (-1, 2, 32)).unbind(-2)
    return gate.flatten(-2), up.flatten(-2)


def hidden_of(products: Tensor, limit: float, weight: Tensor | None = None) -> Tensor:
    """silu(min(gate, limit)) · clamp(up, ±limit) · weight, rounded to bf16: fp32 [M, I]."""
    gate, up = both(products)
    hidden = F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
    if weight is not None:
        hidden = hidden * weight
    return hidden.bfloat16().float()


def reference(
    x: Tensor,
    gate_up: Tensor,
    gate_up_scale: Tensor,
    down: Tensor,
    down_scale: Tensor,
    limit: float,
) -> Tensor:
    """The expert in fp32, its hidden values rounded to bf16, its result rounded once.

    Args:
        x: [M, K] bf16.
        gate_up: [2, 128, D/128, I] uint8 e4m3 codes, gate and up in turns of 32; D at least K.
        gate_up_scale: [2, 4, I/32, D/128] uint8.
        down: [2, I/2, D] uint8 e4m3 codes.
        down_scale: [2, I/64, D/32] uint8.
        limit: `swiglu_limit`.
    Returns:
        [M, D], dtype of x.
    Source: docs/reference/model.md, "Experts"; `dslearn.formats.inputs_first`.
    """
    hidden = hidden_of(x.float() @ by_tile(gate_up, gate_up_scale)[: x.shape[1]], limit)
    grid = ue8m0.decode(down_scale.flatten(0, 1)).repeat_interleave(32, 0).repeat_interleave(32, 1)
    return (hidden @ (e4m3.decode(down.flatten(0, 1)) * grid)).to(x.dtype)


shared_expert = Op(
    "shared_expert(Tensor x, Tensor gate_up, Tensor gate_up_scale, Tensor down, "
    "Tensor down_scale, float limit) -> Tensor",
    twin=reference,
    fake=lambda x, gate_up, gate_up_scale, down, down_scale, limit: x.new_empty(
        (x.shape[0], down.shape[2])
    ),
    kernel=kernels.shared_expert,
    takes={
        "x": "bf16 [M, K]",
        "gate_up": "u8 [2, 128, J, I]",
        "gate_up_scale": "u8 [2, 4, I/32, J]",
        "down": "u8 [2, I/2, D]",
        "down_scale": "u8 [2, I/64, D/32]",
    },
)
