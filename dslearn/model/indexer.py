"""The indexer: cheap scores decide which compressed entries a query attends to.

Shapes: B batch, T tokens, N entries, H index heads, I index_head_dim, K selected.
Source: docs/reference/model.md, "Indexer".
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dslearn.config import Config
from dslearn.model.arith import ROW_BLOCK, Arith, stable_topk
from dslearn.model.linear import Linear, Norm
from dslearn.model.rope import turned


def index_scores(q: Tensor, keys: Tensor, weights: Tensor, arith: Arith) -> Tensor:
    """sum_h w_h relu(q_h . key_j): q [B, T, H, I], keys [B, N, I], weights [B, T, H] -> [B, T, N].

    ReLU comes before the weights, which may be negative. The bf16 path rounds the dot product,
    the weighted term and the sum, in that order.
    """
    b, t, h, _ = q.shape
    if arith.numerics.row_invariant:
        # One fixed shape for any number of tokens and entries: [H, I] x [I, ROW_BLOCK].
        n = keys.shape[1]
        keys = F.pad(keys, (0, 0, 0, -n % ROW_BLOCK))
        wide = keys.repeat_interleave(t, 0) if t else keys[:0]
        parts = [arith.pairs(q.flatten(0, 1), part) for part in wide.split(ROW_BLOCK, dim=1)]
        dots = torch.cat(parts, -1)[..., :n] if n else q.new_zeros(b * t, h, 0)
        dots = dots.unflatten(0, (b, t))
        terms = arith.round(arith.round(dots).relu() * weights.unsqueeze(-1))
        total = torch.zeros_like(terms[:, :, 0])
        for head in range(h):
            total = total + terms[:, :, head]
        return arith.round(total)
    dots = arith.pairs(q.flatten(1, 2), keys).unflatten(1, (t, h))  # [B, T, H, N]
    terms = arith.round(arith.round(dots).relu() * weights.unsqueeze(-1))
    return arith.round(terms.sum(2))


def select(scores: Tensor, k: int) -> Tensor:
    """The k best entries per query, ascending, -1 where fewer than k scores are above -inf.

    scores [B, T, N] with -inf on entries that must not be chosen -> [B, T, k] int64.
    """
    n = scores.shape[-1]
    chosen = stable_topk(scores, k)
    real = scores.gather(-1, chosen) > -torch.inf
    chosen = chosen.masked_fill(~real, n).sort(-1).values
    chosen = F.pad(chosen, (0, k - chosen.shape[-1]), value=n)
    return chosen.masked_fill(chosen == n, -1)


def candidate_blocks(scores: Tensor, visible: Tensor, block: int, keep: int) -> Tensor:
    """Which entries later layers may select: the best blocks of `block` consecutive entries.

    scores [B, T, N] (-inf where not visible), visible [B, T] entry counts -> mask [B, T, N] bool.
    A block scores its best entry; the block of the newest visible entry always stays.
    """
    n = scores.shape[-1]
    padded = F.pad(scores, (0, -n % block), value=-torch.inf)
    best = padded.unflatten(-1, (-1, block)).amax(-1)  # [B, T, blocks]
    first, seen = torch.arange(best.shape[-1]) * block, visible.unsqueeze(-1)
    best = best.masked_fill((first < seen) & (seen <= first + block), torch.inf)
    chosen = stable_topk(best, keep)
    kept = torch.zeros_like(best, dtype=torch.bool).scatter(-1, chosen, True)
    kept = kept & (best > -torch.inf)
    return kept.repeat_interleave(block, -1)[..., :n]


class Indexer(nn.Module):
    """Queries and weights of an index source; the owner of the keys has wk and k_norm too."""

    def __init__(self, cfg: Config, arith: Arith, *, owns_keys: bool) -> None:
        super().__init__()
        heads, dim = cfg.index_n_heads, cfg.index_head_dim
        self.wq_b = Linear(cfg.q_lora_rank, heads * dim, arith, quantised=True)
        self.weights_proj = Linear(cfg.hidden_size, heads, arith, quantised=False)
        if owns_keys:
            self.wk = Linear(cfg.head_dim, dim, arith, quantised=False)
            self.k_norm = Norm(dim, cfg.rms_norm_eps, arith)
        self.heads, self.topk = heads, cfg.index_topk
        self.scale = dim**-0.5 * heads**-0.5
        self.arith = arith

    def keys(self, latent: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Index keys [B, G, I] of un-rotated latents [B, G, D]; cos, sin [B, G, J] per group."""
        key = self.k_norm(self.wk(latent)).unsqueeze(-2)
        return turned(key, cos, sin, self.arith).squeeze(-2)

    def queries(self, qr: Tensor, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """qr [B, T, q_lora], x [B, T, d] -> rotated q [B, T, H, I], weights [B, T, H]."""
        q = self.wq_b(qr).unflatten(-1, (self.heads, -1))
        q = turned(q, cos, sin, self.arith)
        return q, self.arith.round(self.weights_proj(x) * self.scale)

    def scores(self, q: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
        """Of queries and weights as `queries` gives them, and decoded keys [B, N, I]: [B, T, N]."""
        return index_scores(self.arith.index_queries(q), keys, weights, self.arith)
