"""Hyper-connections: how S residual streams are read, mixed and written (arXiv 2409.19606, mHC).

Shapes: S streams, d hidden; leading dims are tokens. Source: docs/reference/model.md, "Streams".
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dslearn.config import Config
from dslearn.model import chip
from dslearn.model.arith import Arith
from dslearn.ops.host import host_op


def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """Make logits [..., S, S] nearly doubly stochastic.

    Row softmax plus eps, column division, then `iterations` - 1 times rows and columns; the last
    step is a column division, so columns sum to 1 and rows almost.
    """
    if not logits.requires_grad:
        balanced: Tensor = (_operation if torch.compiler.is_compiling() else _balanced)(
            logits, iterations, eps
        )
        return balanced
    c = logits.softmax(-1) + eps
    c = c / (c.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        c = c / (c.sum(-1, keepdim=True) + eps)
        c = c / (c.sum(-2, keepdim=True) + eps)
    return c


def _balanced(logits: Tensor, iterations: int, eps: float) -> Tensor:
    return torch.from_numpy(_sinkhorn_scales(logits.numpy(), iterations, np.float32(eps)))


def _sinkhorn_scales(
    logits: NDArray[np.float32], iterations: int, eps: np.float32
) -> NDArray[np.float32]:
    """The same without gradients, through the two scale vectors: C = diag(rows) A diag(columns).

    A row division replaces rows by rows / (rows * (A columns) + eps), a column division likewise.
    40 rounds on 4 numbers are all call overhead: this needs a third of the plain form's time.
    """
    a = np.exp(logits - logits.max(-1, keepdims=True))
    a /= a.sum(-1, keepdims=True)
    a += eps
    transposed = np.ascontiguousarray(a.swapaxes(-1, -2))
    rows = np.ones((*a.shape[:-1], 1), np.float32)
    columns, total = np.ones_like(rows), np.empty_like(rows)
    for half in range(1, 2 * iterations):
        ours, other, matrix = (columns, rows, transposed) if half % 2 else (rows, columns, a)
        np.matmul(matrix, other, out=total)
        np.multiply(total, ours, out=total)
        np.add(total, eps, out=total)
        np.divide(ours, total, out=ours)
    return a * rows * columns.swapaxes(-1, -2)


# What graphs of the cpu call; on the chip `hc_mixes` has it inside.
_operation = host_op(
    "sinkhorn(Tensor logits, int iterations, float eps) -> Tensor",
    _balanced,
    lambda logits, iterations, eps: logits.new_empty(logits.shape),
)


class HyperConnection(nn.Module):
    """The mixing coefficients of one sublayer: parameters fn [2S + S*S, S*d], base, scale [3]."""

    def __init__(self, cfg: Config, arith: Arith) -> None:
        super().__init__()
        s = cfg.hc_mult
        self.fn = nn.Parameter(torch.empty(2 * s + s * s, s * cfg.hidden_size))
        self.base = nn.Parameter(torch.empty(2 * s + s * s))
        self.scale = nn.Parameter(torch.empty(3))
        # which of the three scales each value is under
        self.group = torch.tensor([0] * s + [1] * s + [2] * s * s, device="cpu")
        self.streams, self.iterations = s, cfg.hc_sinkhorn_iters
        self.hc_eps, self.norm_eps = cfg.hc_eps, cfg.rms_norm_eps
        self.arith = arith

    def place(self) -> None:
        """See `chip.prepare`."""
        if chip.serves(self.fn):
            chip.projection(self)

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """h [..., S, d] -> pre [..., S], post [..., S], comb [..., S, S], all fp32."""
        if chip.serves(h, self.fn):
            return chip.mixes(self, h)
        s = self.streams
        flat = h.flatten(-2)
        # One statistic over all S*d values, applied after the projection.
        m = self.arith.linear_fp32(flat, self.fn)
        m = m * torch.rsqrt(flat.square().mean(-1, keepdim=True) + self.norm_eps)
        m = m * self.scale.index_select(0, self.group) + self.base
        gates = self.arith.pointwise(torch.sigmoid, m[..., : 2 * s])
        comb = sinkhorn(m[..., 2 * s :].unflatten(-1, (s, s)), self.iterations, self.hc_eps)
        return gates[..., :s] + self.hc_eps, 2 * gates[..., s:], comb


def collapse(h: Tensor, weights: Tensor, arith: Arith) -> Tensor:
    """Read the streams: sum_c weights_c h_c; h [..., S, d], weights [..., S] -> [..., d]."""
    if chip.serves(h, weights):
        return arith.round(chip.collapse(h, weights))
    return arith.round(_collapsed(h, weights, arith))


def _collapsed(h: Tensor, weights: Tensor, arith: Arith) -> Tensor:
    if arith.numerics.row_invariant or h.requires_grad:
        return (h * weights.unsqueeze(-1)).sum(-2)
    s, d = h.shape[-2:]
    return torch.bmm(weights.reshape(-1, 1, s), h.reshape(-1, s, d)).view(*h.shape[:-2], d)


def expand(y: Tensor, h: Tensor, post: Tensor, comb: Tensor, arith: Arith) -> Tensor:
    """Write back: out_k = post_k y + sum_j comb[j, k] h_j, contracted over comb's first index.

    y [..., d], h [..., S, d], post [..., S], comb [..., S, S] -> [..., S, d].
    """
    if chip.serves(y, h, post, comb):
        return arith.round(chip.expand(y, h, post, comb))
    return arith.round(_expanded(y, h, post, comb, arith))


def _expanded(y: Tensor, h: Tensor, post: Tensor, comb: Tensor, arith: Arith) -> Tensor:
    out = post.unsqueeze(-1) * y.unsqueeze(-2)
    if not (arith.numerics.row_invariant or h.requires_grad):
        s, d = h.shape[-2:]
        mixed = comb.reshape(-1, s, s).transpose(1, 2), h.reshape(-1, s, d)
        return torch.baddbmm(out.view(-1, s, d), *mixed).view(h.shape)
    for j in range(h.shape[-2]):  # S products of known order: the same bits for any B and T
        out = out + comb[..., j, :].unsqueeze(-1) * h[..., j : j + 1, :]
    return out
