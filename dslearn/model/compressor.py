"""The compressor: normalised inputs become one latent per token (ratio 1) or per pair (ratio 2).

Shapes: B batch, T tokens, G groups closed by this call, d hidden, D head_dim.
Source: docs/reference/model.md, "Compressor".
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dslearn.config import Config
from dslearn.model import chip_attention
from dslearn.model.arith import Arith
from dslearn.model.caches import of_lanes, wait
from dslearn.model.linear import Linear, Norm
from dslearn.model.plan import Groups


def align_pairs(open_row: Tensor, x: Tensor, odd: Tensor) -> Tensor:
    """Lay tokens out as pairs whatever the parity of the first position.

    open_row [B, D] (the waiting token), x [B, T, D], odd [B] bool (a token waits)
    -> [B, G, 2, D] with G = T // 2 + 1, rows past the end zero.
    """
    length = x.shape[1]
    tokens = torch.cat((open_row.unsqueeze(1), F.pad(x, (0, 0, 0, 2))), dim=1)  # [B, T + 3, D]
    first = 1 - odd.to(torch.int64)  # an even start skips the open row
    index = first[:, None] + torch.arange(2 * (length // 2 + 1))
    return tokens[torch.arange(len(x))[:, None], index].unflatten(1, (-1, 2))


def pooled(arith: Arith, norm: Norm, u: Tensor, groups: Groups, *pairs: Tensor) -> Tensor:
    """Values u [B, T, D] -> normalised latents [B, G, D], arbitrary where not closed.

    pairs: for ratio 2, scores g [B, T, D] and the open group's two tensors [L, D], written.
    """
    if not pairs:
        return norm(u)
    (g, open_u, open_g), (start, _, lanes) = pairs, groups.stretch
    odd = start & 1 == 1
    pair_u = align_pairs(of_lanes(open_u, lanes), u, odd)
    pair_g = align_pairs(of_lanes(open_g, lanes), g, odd)
    wait(open_u, open_g, u.detach(), g.detach(), groups.stretch)
    return norm(arith.round((pair_g.softmax(2) * pair_u).sum(2)))


class Compressor(nn.Module):
    """wkv [D, d], norm [D], and for ratio 2 wgate [D, d]."""

    def __init__(self, cfg: Config, ratio: int, arith: Arith) -> None:
        super().__init__()
        d, dim = cfg.hidden_size, cfg.head_dim
        self.wkv = Linear(d, dim, arith, quantised=False)
        self.norm = Norm(dim, cfg.rms_norm_eps, arith)
        if ratio == 2:
            self.wgate = Linear(d, dim, arith, quantised=False)
        self.ratio, self.arith = ratio, arith

    def forward(
        self, x: Tensor, groups: Groups, open_u: Tensor | None, open_g: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """x [B, T, d] -> latents [B, G, D], arbitrary where not closed; values and scores u, g.

        open_u and open_g [L, D] carry the unpaired token between calls of ratio 2, and are written.
        """
        if self.ratio == 1:
            return self._pooled(self.wkv(x), groups), None, None
        # fp32 on the chip too: these two products are not rounded to bf16.
        u = self.arith.linear_fp32(x, self.wkv.weight)
        g = self.arith.linear_fp32(x, self.wgate.weight)
        assert open_u is not None and open_g is not None, "ratio 2 has an open group"
        return self._pooled(u, groups, g, open_u, open_g), u, g

    def _pooled(self, u: Tensor, groups: Groups, *pairs: Tensor) -> Tensor:
        served = chip_attention.serves(self.arith, u, self.norm.weight)
        return (chip_attention.pooled if served else pooled)(
            self.arith, self.norm, u, groups, *pairs
        )
