"""Engram's key/value projection: its twin, and the operation that the kernel serves."""

from __future__ import annotations

import torch
from torch import Tensor

from dslearn.formats import e4m3, rows, ue8m0
from dslearn.kernels import engram_kv as kernels
from dslearn.ops.registry import Op


def inputs_first(parts: Tensor) -> Tensor:
    """A weight [P, 128, J, W] as [128 J, P W]."""
    return parts.permute(2, 1, 0, 3).flatten(2).flatten(0, 1)


def by_tile(codes: Tensor, scale: Tensor) -> Tensor:
    """Codes [P, 128, J, W] and exponents [P, 4, W/32, J] as fp32 [128 J, P W]."""
    grid = ue8m0.decode(inputs_first(scale.transpose(2, 3)))
    return e4m3.decode(inputs_first(codes)) * grid.repeat_interleave(32, 0).repeat_interleave(32, 1)


def reference(codes: Tensor, x_scale: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """(codes · 2^x_scale) · W, summed in fp32, rounded once.

    Args:
        codes: [M, K] uint8, e4m3.
        x_scale: [M, K/32] uint8.
        weight: [2, 128, J, N/2] uint8, e4m3, 128 J at least K.
        scale: [2, 4, N/64, J] uint8.
    Returns:
        [M, N] bf16.
    Source: docs/reference/model.md, "Engram"; dslearn/formats/inputs_first.py.
    """
    x = rows.dequantize_fp8(codes, x_scale).float()
    return (x @ by_tile(weight, scale)[: x.shape[1]]).to(torch.bfloat16)


engram_kv = Op(
    "engram_kv(Tensor codes, Tensor x_scale, Tensor weight, Tensor scale) -> Tensor",
    twin=reference,
    fake=lambda codes, x_scale, weight, scale: codes.new_empty(
        (codes.shape[0], 2 * weight.shape[3]), dtype=torch.bfloat16
    ),
    kernel=kernels.engram_kv,
    takes={
        "codes": "u8 [M, K]",
        "x_scale": "u8 [M, K/32]",
        "weight": "u8 [2, 128, J, W]",
        "scale": "u8 [2, 4, W/32, J]",
    },
)
