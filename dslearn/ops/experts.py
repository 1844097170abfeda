"""The routed experts: their twin, and the operation that their kernel serves."""

from __future__ import annotations

import torch
from torch import Tensor

from dslearn.formats import e4m3
from dslearn.kernels import experts as kernels
from dslearn.ops.engram_kv import inputs_first
from dslearn.ops.registry import Op
from dslearn.ops.shared_expert import hidden_of


def reference(  # noqa: PLR0913 - the parameters of the kernel
    x: Tensor,
    gate_up: Tensor,
    gate_up_factor: Tensor,
    down: Tensor,
    down_factor: Tensor,
    order: Tensor,
    count: Tensor,
    weights: Tensor,
    limit: float,
) -> Tensor:
    """The active experts one after another in fp32, summed in fp32, rounded once.

    Args:
        x: [M, K] bf16.
        gate_up: [E, 2, 128, D/128, I] uint8 e4m3 codes, gate and up in turns of 32; D at least K.
        gate_up_factor: [E, 2, I/2, 2] fp32.
        down: [E, 2, I/2, D] uint8 e4m3 codes.
        down_factor: [E, 128, D/128] fp32, output 128 j + p at [p, j].
        order: [E, 1] int32, active experts first.
        count: [1, 1] int32.
        weights: [E, M] fp32.
        limit: `swiglu_limit`.
    Returns:
        [M, D], dtype of x.
    Source: docs/reference/model.md, "Experts"; `dslearn.formats.inputs_first`.
    """
    y = x.new_zeros((x.shape[0], down.shape[3]), dtype=torch.float32)
    for e in order[: int(count), 0].tolist():
        factor = gate_up_factor[e].flatten(0, 1).unflatten(0, (-1, 32)).transpose(1, 2).reshape(-1)
        products = x.float() @ e4m3.decode(inputs_first(gate_up[e]))[: x.shape[1]] * factor
        hidden = hidden_of(products, limit, weights[e].unsqueeze(-1))
        y += hidden @ e4m3.decode(down[e].flatten(0, 1)) * down_factor[e].T.reshape(-1)
    return y.to(x.dtype)


def _fake(  # noqa: PLR0913
    x: Tensor,
    gate_up: Tensor,
    gate_up_factor: Tensor,
    down: Tensor,
    down_factor: Tensor,
    order: Tensor,
    count: Tensor,
    weights: Tensor,
    limit: float,
) -> Tensor:
    return x.new_empty((x.shape[0], down.shape[3]))


experts = Op(
    "experts(Tensor x, Tensor gate_up, Tensor gate_up_factor, Tensor down, Tensor down_factor, "
    "Tensor order, Tensor count, Tensor weights, float limit) -> Tensor",
    twin=reference,
    fake=_fake,
    kernel=kernels.experts,
    takes={
        "x": "bf16 [M, K]",
        "gate_up": "u8 [E, 2, 128, J, I]",
        "gate_up_factor": "fp32 [E, 2, I/2, 2]",
        "down": "u8 [E, 2, I/2, D]",
        "down_factor": "fp32 [E, 128, D/128]",
        "order": "i32 [E, 1]",
        "count": "i32 [1, 1]",
        "weights": "fp32 [E, M]",
    },
)
