"""The compressor: normalised inputs become one latent per token (ratio 1) or per pair (ratio 2).

Shapes: B batch, T tokens, G groups closed by this call, d hidden, D head_dim.
Source: docs/reference/model.md, "Compressor".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dslearn.config import Config
from dslearn.model.arith import Arith
from dslearn.model.caches import OpenGroup
from dslearn.model.linear import Linear, Norm


@dataclass
class Groups:
    """What a call closed: latent [B, G, D], entry index [B, G], and which of them are real."""

    latent: Tensor
    index: Tensor
    valid: Tensor


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

    def forward(self, x: Tensor, start: Tensor, lengths: Tensor, group: OpenGroup | None) -> Groups:
        """x [B, T, d] at positions start[b].. -> the groups that this call closes.

        `group` carries the unpaired token between calls; None means a call from position 0.
        """
        if self.ratio == 1:
            token = torch.arange(x.shape[1])
            return Groups(self.norm(self.wkv(x)), start[:, None] + token, token < lengths[:, None])
        # fp32 on the chip too: these two products are not rounded to bf16.
        u = self.arith.linear_fp32(x, self.wkv.weight)
        g = self.arith.linear_fp32(x, self.wgate.weight)
        if group is None:
            group = OpenGroup(len(x), u.shape[-1])
        odd = start % 2 == 1
        pair_u, pair_g = align_pairs(group.u, u, odd), align_pairs(group.g, g, odd)
        index = start[:, None] // 2 + torch.arange(pair_u.shape[1])
        valid = 2 * index + 2 <= (start + lengths)[:, None]
        group.update(u.detach(), g.detach(), start, lengths)
        latent = self.arith.round((pair_g.softmax(2) * pair_u).sum(2))
        return Groups(self.norm(latent), index, valid)
