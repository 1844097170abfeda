"""Engram: hashed n-grams of recent tokens look up rows that are gated into the streams.

Shapes: R rows (tokens), C columns = (n-gram sizes) x (hash heads), E row width, S streams,
d hidden. Source: docs/reference/model.md, "Engram"; arXiv 2601.07372.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dslearn.config import Config
from dslearn.formats import rows as row_formats
from dslearn.model import chip
from dslearn.model.arith import Arith
from dslearn.model.linear import Linear


class Table(nn.Module):
    """The embedding rows [N, E], kept as stored: fp8 codes with scales, or plain floats."""

    def __init__(self, num_rows: int, width: int) -> None:
        super().__init__()
        self.weight: Tensor | nn.Parameter = nn.Parameter(torch.empty(num_rows, width))
        self.scale: Tensor | None = None

    def store_fp8(self, codes: Tensor, scale: Tensor) -> None:
        """Keep uint8 codes [N, E] and scale bytes [N, E / 32]; rows are decoded when read."""
        del self._parameters["weight"]
        self.register_buffer("weight", codes)
        self.scale = scale

    def forward(self, ids: Tensor) -> Tensor:
        """Row ids [...] int64 -> rows [..., E] fp32."""
        if self.scale is None:
            return nn.functional.embedding(ids, self.weight)
        return row_formats.dequantize_fp8(self.weight[ids], self.scale[ids])


def gate_logits(h: Tensor, key: Tensor, weight: Tensor, eps: float) -> Tensor:
    """How much of the value each stream takes, before the sigmoid.

    h and key [..., S, d], weight [S, d] -> [..., S]. The square root keeps its sign by copysign,
    so that even a zero of either sign opens the gate a little more or less than half.
    """
    a = (h * weight * key).sum(-1)
    a = a * torch.rsqrt(h.square().mean(-1) + eps) * torch.rsqrt(key.square().mean(-1) + eps)
    a = a * h.shape[-1] ** -0.5
    return torch.copysign(a.abs().clamp(min=1e-6).sqrt(), a)


class Engram(nn.Module):
    """One Engram layer: table, fused key/value projection, gate."""

    def __init__(self, cfg: Config, index: int, arith: Arith) -> None:
        super().__init__()
        s, d = cfg.hc_mult, cfg.hidden_size
        self.embed = Table(cfg.engram_num_embeddings[index], cfg.engram_head_dim)
        width = cfg.engram_columns * cfg.engram_head_dim
        self.wkv = Linear(width, (s + 1) * d, arith, quantised=True)
        self.q_weight = nn.Parameter(torch.empty(s, d))
        self.k_weight = nn.Parameter(torch.empty(s, d))
        self.index, self.eps, self.arith = index, cfg.rms_norm_eps, arith

    def look_up(self, ids: Tensor) -> Tensor:
        """Row ids [R, C] -> the table's rows [R, C * E], side by side, as `wkv` sees them.

        A released table is host memory, so this is no part of a graph.
        """
        return self.wkv.prepare(self.arith.round(self.embed(ids)).flatten(-2))

    def forward(self, h: Tensor, rows: Tensor, dead: Tensor | None) -> tuple[Tensor, Tensor]:
        """h [R, S, d], rows of `look_up`, dead [R] bool or None -> new h, gates [R, S]."""
        arith, (s, d) = self.arith, h.shape[-2:]
        kv = self.wkv.product(rows)
        weight = self.q_weight * self.k_weight
        if chip.serves(h, kv, weight):
            out, gate = chip.engram_gate(h, kv, weight, self.eps, dead)
            return arith.round(out), gate
        key, value = kv[..., : s * d].unflatten(-1, (s, d)), kv[..., s * d :]
        logits = gate_logits(h, key, weight, self.eps)
        gate = arith.pointwise(torch.sigmoid, logits)
        if dead is not None:
            gate = gate.masked_fill(dead.unsqueeze(-1), 0.0)
        return arith.round(h + gate.unsqueeze(-1) * value.unsqueeze(-2)), gate
