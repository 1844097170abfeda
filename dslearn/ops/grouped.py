"""The grouped product of the output projection: its twin, and the operation of its kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from dslearn.kernels import grouped as kernels
from dslearn.ops.engram_kv import by_tile, inputs_first
from dslearn.ops.registry import Op


def reference(x: Tensor, weight: Tensor, scale: Tensor | None = None) -> Tensor:
    """x[r, g] · W[g] for every group, summed in fp32, rounded once.

    Args:
        x: [R, G, K] bf16.
        weight: [G, P, 128, J, N/P] bf16, or uint8 e4m3 codes; 128 J at least K.
        scale: [G, P, 4, N/32/P, J] uint8 for codes, else None.
    Returns:
        [R, G, N], dtype of x.
    Source: docs/reference/model.md, "Attention"; `dslearn.formats.inputs_first`.
    """
    if scale is None:
        wide = torch.stack([inputs_first(w) for w in weight]).float()
    else:
        wide = torch.stack([by_tile(w, s) for w, s in zip(weight, scale, strict=True)])
    return torch.einsum("rgk,gkn->rgn", x.float(), wide[:, : x.shape[2]]).to(x.dtype)


grouped = Op(
    "grouped(Tensor x, Tensor weight, Tensor? scale=None) -> Tensor",
    twin=reference,
    fake=lambda x, weight, scale=None: x.new_empty(
        (*x.shape[:2], weight.shape[1] * weight.shape[4])
    ),
    kernel=kernels.grouped,
    takes={
        "x": "bf16 [R, G, K]",
        "weight": "bf16|u8 [G, P, 128, J, W]",
        "scale": "u8 [G, P, 4, W/32, J]",
    },
)
