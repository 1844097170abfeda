"""Hyper-connections: how S residual streams are read, mixed and written (arXiv 2409.19606, mHC).

Shapes: B batch, T tokens, S streams, d hidden. Source: docs/reference/model.md, "Streams".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dslearn.config import Config
from dslearn.model.arith import Arith


def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """Make logits [..., S, S] nearly doubly stochastic.

    Row softmax plus eps, column division, then `iterations` - 1 times rows and columns; the last
    step is a column division, so columns sum to 1 and rows almost.
    """
    c = logits.softmax(-1) + eps
    c = c / (c.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        c = c / (c.sum(-1, keepdim=True) + eps)
        c = c / (c.sum(-2, keepdim=True) + eps)
    return c


class HyperConnection(nn.Module):
    """The mixing coefficients of one sublayer: parameters fn [2S + S*S, S*d], base, scale [3]."""

    def __init__(self, cfg: Config, arith: Arith) -> None:
        super().__init__()
        s = cfg.hc_mult
        self.fn = nn.Parameter(torch.empty(2 * s + s * s, s * cfg.hidden_size))
        self.base = nn.Parameter(torch.empty(2 * s + s * s))
        self.scale = nn.Parameter(torch.empty(3))
        self.streams, self.iterations = s, cfg.hc_sinkhorn_iters
        self.hc_eps, self.norm_eps = cfg.hc_eps, cfg.rms_norm_eps
        self.arith = arith

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """h [B, T, S, d] -> pre [B, T, S], post [B, T, S], comb [B, T, S, S], all fp32."""
        s = self.streams
        flat = h.flatten(-2)
        # One statistic over all S*d values, applied after the projection.
        m = self.arith.linear_fp32(flat, self.fn)
        m = m * torch.rsqrt(flat.square().mean(-1, keepdim=True) + self.norm_eps)
        pre_m, post_m, comb_m = m.split((s, s, s * s), dim=-1)
        pre_b, post_b, comb_b = self.base.split((s, s, s * s))
        pre = torch.sigmoid(pre_m * self.scale[0] + pre_b) + self.hc_eps
        post = 2 * torch.sigmoid(post_m * self.scale[1] + post_b)
        logits = (comb_m * self.scale[2] + comb_b).unflatten(-1, (s, s))
        return pre, post, sinkhorn(logits, self.iterations, self.hc_eps)


def collapse(h: Tensor, weights: Tensor, arith: Arith) -> Tensor:
    """Read the streams: sum_c weights_c h_c; h [B, T, S, d], weights [B, T, S] -> [B, T, d]."""
    return arith.round((h * weights.unsqueeze(-1)).sum(-2))


def expand(y: Tensor, h: Tensor, post: Tensor, comb: Tensor, arith: Arith) -> Tensor:
    """Write back: out_k = post_k y + sum_j comb[j, k] h_j, contracted over comb's first index.

    y [B, T, d], h [B, T, S, d], post [B, T, S], comb [B, T, S, S] -> [B, T, S, d].
    """
    out = post.unsqueeze(-1) * y.unsqueeze(-2)
    for j in range(h.shape[-2]):  # S products of known order: the same bits for any B and T
        out = out + comb[..., j, :].unsqueeze(-1) * h[..., j : j + 1, :]
    return arith.round(out)
