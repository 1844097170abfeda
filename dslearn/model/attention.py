"""Attention over the last W positions and the selected compressed entries.

Keys and values are one vector per position, shared by all heads. Shapes: B batch, T tokens,
H heads, D head_dim, W window, N keys per query, d hidden.
Source: docs/reference/model.md, "Attention".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dslearn.config import Config
from dslearn.model import chip_attention
from dslearn.model.arith import Arith
from dslearn.model.caches import Pools, of_lanes, store, taken
from dslearn.model.compressor import Compressor
from dslearn.model.indexer import Indexer
from dslearn.model.linear import Fused, GroupedLinear, Input, Linear, Norm
from dslearn.model.plan import Found, Groups, Plan
from dslearn.model.rope import RopeTable, turned
from dslearn.model.selection import Bounds, choose, everything
from dslearn.model.state import entry_codecs, window_codec

EMPTY_MAX = -1e30  # running maximum of a query that has no key: its output is zero


def attend(q: Tensor, keys: Tensor, hidden: Tensor, sink: Tensor, arith: Arith) -> Tensor:
    """Softmax attention with a sink: q [B, T, H, D], keys [B, T, N, D], hidden [B, T, N], sink [H].

    The sink adds exp(sink) to the denominator and nothing to the sum; -> [B, T, H, D]. A hidden
    key may hold anything, NaN included. The bf16 path rounds the probabilities of the sum, not
    those of the denominator.
    """
    b, t, _, dim = q.shape
    masked = hidden.flatten(0, 1)
    flat = keys.flatten(0, 1).masked_fill(masked.unsqueeze(-1), 0.0)
    scores = arith.pairs(q.flatten(0, 1), flat) * dim**-0.5
    scores = scores.masked_fill(masked.unsqueeze(1), -torch.inf)
    top = scores.amax(-1, keepdim=True).clamp(min=EMPTY_MAX)
    p = arith.pointwise(torch.exp, scores - top)
    total = p.sum(-1, keepdim=True) + arith.pointwise(torch.exp, sink[:, None] - top)
    out = arith.pairs(arith.round(p), flat.transpose(-1, -2)) / total
    return arith.round(out.unflatten(0, (b, t)))


def shares(q: Tensor, keys: Tensor, hidden: Tensor, sink: Tensor) -> Tensor:
    """How much of each key `attend` takes, and of the sink, last: [B, T, H, N + 1], sums to 1."""
    keys = keys.masked_fill(hidden.unsqueeze(-1), 0.0)
    scores = torch.einsum("bthd,btnd->bthn", q, keys) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(hidden.unsqueeze(2), -torch.inf)
    return torch.cat((scores, sink.view(-1, 1).expand(*q.shape[:-1], 1)), -1).softmax(-1)


class Attention(nn.Module):
    """One layer's attention; its role decides which parts it owns."""

    def __init__(self, cfg: Config, layer: int, arith: Arith, tables: dict[str, RopeTable]) -> None:
        super().__init__()
        d, h, dim, lora = (
            cfg.hidden_size,
            cfg.num_attention_heads,
            cfg.head_dim,
            cfg.q_lora_rank,
        )
        self.cfg, self.layer, self.arith, self.tables = cfg, layer, arith, tables
        self.ratio = cfg.ratios[layer]
        self.sources = cfg.kv_source(layer), cfg.index_source(layer)
        self.wq_a = Linear(d, lora, arith, quantised=True)
        self.q_norm = Norm(lora, cfg.rms_norm_eps, arith)
        self.wq_b = Linear(lora, h * dim, arith, quantised=True)
        self.wkv = Linear(d, dim, arith, quantised=True)
        self.kv_norm = Norm(dim, cfg.rms_norm_eps, arith)
        self.down = Fused(self.wq_a, self.wkv)
        self.attn_sink = nn.Parameter(torch.empty(h))
        # Stored in fp8, but its input is not quantised: a grouped product on bf16 activations.
        groups, rank = cfg.o_groups, cfg.o_lora_rank
        self.wo_a = GroupedLinear(groups, h * dim // groups, rank, arith)
        self.wo_b = Linear(groups * rank, d, arith, quantised=True)
        self.compressor: Compressor | None = None
        self.indexer: Indexer | None = None
        self.filters = cfg.uses_candidates(layer)
        self.publishes = layer == cfg.candidate_source_layer_id
        if layer in cfg.kv_source_layer_ids:
            self.compressor = Compressor(cfg, self.ratio, arith)
        if layer in cfg.index_source_layer_ids:
            owner = layer in cfg.kv_source_layer_ids
            self.indexer = Indexer(cfg, arith, owns_keys=owner)

    def forward(
        self,
        x: Tensor,
        plan: Plan,
        pools: Pools,
        chosen: Tensor | None = None,
        candidates: Tensor | None = None,
    ) -> tuple[Tensor, Found]:
        """Normalised x [B, T, d] -> [B, T, d], and what the layer found; extends its caches.

        Args:
            x: normalised.
            plan: of the call, for this layer's ratio.
            pools: caches of this layer and of its kv source, written.
            chosen: [B, T, K] the selection of its index source, if that is another layer.
            candidates: of the layer that publishes them, for one that filters by them.
        """
        u = g = None
        qr, q, k = self.project(x, plan)
        if self.compressor is not None:
            u, g = self._compress(self.compressor, x, plan, pools)
        published = None
        if self.indexer is not None:
            chosen, published = self._select(
                self.indexer, (qr, x), plan, pools.index_keys, candidates
            )
        out, records, seen = self._attend((q, k), plan, pools, chosen)
        own = None if self.indexer is None else chosen
        return self.project_back(out, plan), Found(records, u, g, own, published, seen)

    def project(self, x: Tensor, plan: Plan) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, T, d] -> latent queries [B, T, q_lora]; rotated q [B, T, H, D] and k [B, T, D]."""
        heads = self.cfg.num_attention_heads
        qr, k = self.down(Input(x, self.arith))
        qr = self.q_norm(qr)
        both = torch.cat((self.wq_b(qr), self.kv_norm(k)), -1).unflatten(-1, (heads + 1, -1))
        q, k = turned(both, plan.cos, plan.sin, self.arith).split((heads, 1), -2)
        return qr, q, k.squeeze(-2)

    def project_back(self, out: Tensor, plan: Plan) -> Tensor:
        """Heads [B, T, H, D] turned back, then o_groups independent products -> [B, T, d]."""
        out = turned(out, plan.cos, plan.sin, self.arith, inverse=True)
        return self.wo_b(self.wo_a(out.flatten(-2).unflatten(-1, (self.cfg.o_groups, -1))))

    def entries(self, latent: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
        """Latents [B, G, D] of a kv source -> rotated entries [B, G, D], index keys [B, G, I]."""
        assert self.indexer is not None, "a kv source has an indexer that owns keys"
        at = groups.cos, groups.sin
        entry = turned(latent.unsqueeze(-2), *at, self.arith).squeeze(-2)
        return entry, self.indexer.keys(latent.detach(), *at)

    def _compress(
        self, compressor: Compressor, x: Tensor, plan: Plan, pools: Pools
    ) -> tuple[Tensor | None, Tensor | None]:
        """A kv source closes groups and stores their entries and index keys -> `Found.u`, `g`."""
        groups, both = plan.groups, (pools.entries, pools.index_keys)
        assert groups is not None, "layers with a ratio have groups"
        latent, u, g = compressor(x, groups, pools.open_u, pools.open_g)
        for i, rows in enumerate(self.entries(latent, groups)):
            pool = both[i]
            assert pool is not None, "a kv source has both pools"
            if chip_attention.serves(self.arith, rows):
                kind = ("compressed", "index")[i]
                chip_attention.keep(self.arith, pool, rows, groups, kind)
            else:
                codec = entry_codecs(self.cfg, self.arith.numerics)[i]
                store(pool, groups.rows, groups.closed, codec.pack(rows))
        return u, g

    def bounds(self) -> Bounds:
        """What bounds the selection of this layer."""
        cfg = self.cfg
        sizes = cfg.index_topk, cfg.candidate_block_size, cfg.candidate_topk_blocks
        return Bounds(*sizes, self.publishes, self.filters)

    def width(self, count: int) -> int:
        """Selected slots per query: fixed in row-invariant mode, else no more than exist."""
        topk = self.cfg.index_topk
        return topk if self.arith.numerics.row_invariant else min(topk, count)

    def _select(
        self,
        indexer: Indexer,
        given: tuple[Tensor, Tensor],
        plan: Plan,
        keys: Tensor | None,
        candidates: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """An index source chooses among the entries -> `Found.chosen`, `Found.candidates`.

        given: latent queries and x. As long as nothing binds, all that are visible are chosen.
        """
        assert plan.visible is not None and keys is not None, "an index source has a kv source"
        bounds, k = self.bounds(), self.width(plan.entries)
        if not bounds.bind(plan.entries):
            return everything(plan.visible, k), None
        q, w = indexer.queries(*given, plan.cos, plan.sin)
        keys = of_lanes(keys[:, : plan.entries], plan.lanes)
        if chip_attention.serves(self.arith, q):
            scores = chip_attention.scores(self.arith, q, w, keys, plan.entries)
            return chip_attention.choose(scores, plan.visible, k, bounds, candidates)
        codec = entry_codecs(self.cfg, self.arith.numerics)[1]
        scores = indexer.scores(q, w, codec.unpack(keys))
        return choose(scores, plan.visible, k, bounds, candidates)[:2]

    def _attend(
        self,
        heads: tuple[Tensor, Tensor],
        plan: Plan,
        pools: Pools,
        chosen: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Heads q [B, T, H, D] and k [B, T, D] -> [B, T, H, D], `Found.records`, `Found.shares`.

        The keys join the ring. Where shares are asked for, torch computes the attention.
        """
        (q, k), arith, ring, near = heads, self.arith, pools.ring, plan.window
        if chip_attention.serves(arith, q) and not plan.watched:
            return *chip_attention.attend(arith, q, k, self.attn_sink, plan, pools, chosen), None
        codec, width = window_codec(self.cfg, arith.numerics), self.cfg.sliding_window
        records = codec.pack(k)
        before = ring.flatten(0, 1).index_select(0, near.before).unflatten(0, (len(k), width - 1))
        keys = codec.unpack(torch.cat((before, records), 1))
        store(ring, near.slots, near.stored, records)
        keys = keys.unfold(1, width, 1).transpose(-1, -2)  # [B, T, W, D]
        hidden = near.hidden
        if chosen is not None and pools.entries is not None:
            codec = entry_codecs(self.cfg, arith.numerics)[0]
            keys = torch.cat((keys, codec.unpack(taken(pools.entries, chosen, plan.lanes))), 2)
            hidden = torch.cat((hidden, chosen < 0), 2)
        seen = shares(q, keys, hidden, self.attn_sink) if plan.watched else None
        return attend(q, keys, hidden, self.attn_sink, arith), records, seen
