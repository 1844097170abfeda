"""Engram's gate: its twin, and the operation that the kernel serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dslearn.kernels import engram_gate as kernels
from dslearn.ops.adapting import as_bytes
from dslearn.ops.registry import Op


def reference(
    h: Tensor, kv: Tensor, weight: Tensor, eps: float, dead: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(h + gate · value, gate), in fp32, the first rounded once.

    Args:
        h: [R, S, d] bf16 or fp32.
        kv: [R, (S + 1) d], dtype of h: S keys, then one value.
        weight: [S, d] fp32, q_weight · k_weight.
        eps: number added to the means of squares.
        dead: [R] bool or uint8: rows whose gate is 0; None for none.
    Returns:
        [R, S, d], dtype of h, and the gates [R, S] fp32.
    Source: docs/reference/model.md, "Gate".
    """
    _, s, d = h.shape
    wide, key, value = h.float(), kv[:, : s * d].float().unflatten(1, (s, d)), kv[:, s * d :]
    a = (wide * weight * key).sum(-1)
    a = a * torch.rsqrt(wide.square().mean(-1) + eps) * torch.rsqrt(key.square().mean(-1) + eps)
    a = a * d**-0.5
    gate = torch.copysign(a.abs().clamp(min=1e-6).sqrt(), a).sigmoid()
    if dead is not None:
        gate = gate.masked_fill(dead.bool().unsqueeze(-1), 0.0)
    return (wide + gate.unsqueeze(-1) * value.float().unsqueeze(1)).to(h.dtype), gate


def _fake(
    h: Tensor, kv: Tensor, weight: Tensor, eps: float, dead: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    return h.new_empty(h.shape), h.new_empty(h.shape[:2], dtype=torch.float32)


def _adapt(
    kernel: Callable[..., Any],
    h: Tensor,
    kv: Tensor,
    weight: Tensor,
    eps: float,
    dead: Tensor | None = None,
) -> Any:
    return kernel(h, kv, weight, eps, None if dead is None else as_bytes(dead))


engram_gate = Op(
    "engram_gate(Tensor h, Tensor kv, Tensor weight, float eps, Tensor? dead=None) "
    "-> (Tensor, Tensor)",
    twin=reference,
    fake=_fake,
    kernel=kernels.engram_gate,
    takes={
        "h": "bf16|fp32 [R, S, d]",
        "kv": "bf16|fp32 [R, K]",
        "weight": "fp32 [S, d]",
        "dead": "bool|u8 [R]",
    },
    adapt=_adapt,
)
