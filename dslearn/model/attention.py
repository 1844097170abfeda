"""Attention over the last W positions and the selected compressed entries.

Keys and values are one vector per position, shared by all heads. Shapes: B batch, T tokens,
H heads, D head_dim, W window, N keys per query, d hidden.
Source: docs/reference/model.md, "Attention".
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dslearn.config import Config
from dslearn.model.arith import Arith
from dslearn.model.attention_dense import attend_dense
from dslearn.model.call import Call, DenseEntries, through
from dslearn.model.compressor import Compressor
from dslearn.model.indexer import Indexer, candidate_blocks, index_scores, select
from dslearn.model.linear import Fused, Input, Linear, Norm
from dslearn.model.rope import RopeTable, rotate
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
        rank = cfg.o_groups * cfg.o_lora_rank
        self.wo_a = Linear(h * dim // cfg.o_groups, rank, arith, quantised=False)
        self.wo_b = Linear(rank, d, arith, quantised=True)
        self.compressor: Compressor | None = None
        self.indexer: Indexer | None = None
        self.filters = cfg.uses_candidates(layer)
        if layer in cfg.kv_source_layer_ids:
            self.compressor = Compressor(cfg, self.ratio, arith)
        if layer in cfg.index_source_layer_ids:
            owner = layer in cfg.kv_source_layer_ids
            self.indexer = Indexer(cfg, arith, owns_keys=owner)

    def forward(self, x: Tensor, call: Call) -> Tensor:
        """Normalised x [B, T, d] -> [B, T, d]; extends caches and shared selections in `call`."""
        arith = self.arith
        cos, sin = call.compress if self.ratio else call.local
        per_head = cos.unsqueeze(-2), sin.unsqueeze(-2)
        qr, k = self.down(Input(x, arith))
        qr = self.q_norm(qr)
        both = torch.cat((self.wq_b(qr), self.kv_norm(k)), -1)
        both = both.unflatten(-1, (self.cfg.num_attention_heads + 1, -1))
        q, k = arith.round(rotate(both, *per_head)).split((self.cfg.num_attention_heads, 1), -2)
        if self.ratio:
            self._compress(x, call)
            self._select(qr, x, call)
        out = self._attend(q, k.squeeze(-2), call)
        out = arith.round(rotate(out, *per_head, inverse=True))
        return self.wo_b(self._grouped(out))

    def _compress(self, x: Tensor, call: Call) -> None:
        """A kv source closes groups and stores their entries and index keys."""
        if self.compressor is None or self.indexer is None:
            return
        cache = call.state.layers[self.layer] if call.state else None
        groups = self.compressor(x, call.start, call.lengths, cache.group if cache else None)
        position = groups.index * self.ratio
        table = self.tables["compress"]
        table.reserve(int(position.max()) + 1)
        cos, sin = table.at(position)
        entry = self.arith.round(rotate(groups.latent, cos, sin))
        key = self.indexer.keys(groups.latent.detach(), cos, sin)
        if cache is None:
            entry_codec, index_codec = entry_codecs(self.cfg, self.arith.numerics)
            call.entries[self.layer] = DenseEntries(through(entry_codec, entry))
            call.index_keys[self.layer] = DenseEntries(through(index_codec, key))
            return
        assert cache.entries is not None and cache.index_keys is not None, "kv source has caches"
        for part, new in ((cache.entries, entry), (cache.index_keys, key)):
            part.append(part.codec.pack(new), groups.index, groups.valid)
        call.entries[self.layer], call.index_keys[self.layer] = cache.entries, cache.index_keys

    def _select(self, qr: Tensor, x: Tensor, call: Call) -> None:
        """An index source chooses the entries that it and the layers after it attend to."""
        if self.indexer is None:
            return
        cfg, source = self.cfg, self.sources[0]
        assert source is not None, "config check gives every index source a kv source"
        count, visible = call.count(self.ratio), call.visible(self.ratio)
        publishes = self.layer == cfg.candidate_source_layer_id
        filters = self.filters
        capacity = cfg.candidate_topk_blocks * cfg.candidate_block_size
        index = torch.arange(count)
        hidden = index >= visible.unsqueeze(-1)  # [B, T, N]
        few = count <= self.indexer.topk and not ((publishes or filters) and count > capacity)
        if few and call.index_losses is None:  # everything visible is selected
            scores = torch.zeros(hidden.shape)
        else:
            # Its only lesson is the attention mass: no gradient reaches what it reads.
            q, w = self.indexer.queries(qr.detach(), x.detach(), *call.compress)
            keys = call.index_keys[source].first(count)
            scores = index_scores(self.arith.index_queries(q), keys, w, self.arith)
        scores = scores.masked_fill(hidden, -torch.inf)
        if publishes:
            blocks, size = cfg.candidate_topk_blocks, cfg.candidate_block_size
            call.candidates = candidate_blocks(scores.detach(), visible, size, blocks)
        if filters and call.candidates is not None:
            scores = scores.masked_fill(~call.candidates, -torch.inf)
        call.index_scores[self.layer] = scores
        call.selection[self.layer] = select(scores.detach(), self._width(count, self.indexer.topk))

    def _width(self, count: int, topk: int) -> int:
        """Selected slots per query: fixed in row-invariant mode, else no more than exist."""
        return topk if self.arith.numerics.row_invariant else min(topk, count)

    def _attend(self, q: Tensor, k: Tensor, call: Call) -> Tensor:
        """q [B, T, H, D], k [B, T, D] -> [B, T, H, D]."""
        cfg, window = self.cfg, self.cfg.sliding_window
        if call.state is None:
            k = through(window_codec(cfg, self.arith.numerics), k)
            if q.requires_grad:
                return attend_dense(self, q, k, call)
            keys = F.pad(k, (0, 0, window - 1, 0))
        else:
            ring = call.state.layers[self.layer].ring
            records = ring.codec.pack(k)
            keys = ring.codec.unpack(torch.cat((ring.previous(call.span), records), 1))
            ring.append(records, call.span)
        keys = keys.unfold(1, window, 1).transpose(-1, -2)  # [B, T, W, D]
        source, chooser = self.sources
        hidden, rows = call.hidden(chooser, source)
        if source is not None and rows is not None:
            taken = call.entries[source].rows(rows).view(*k.shape[:2], -1, k.shape[-1])
            keys = torch.cat((keys, taken), 2)
        if call.shares is not None:
            call.shares.append(shares(q, keys, hidden, self.attn_sink))
        return attend(q, keys, hidden, self.attn_sink, self.arith)

    def _grouped(self, out: Tensor) -> Tensor:
        """Heads [B, T, H, D] -> o_groups independent products -> [B, T, o_groups * o_lora]."""
        groups, rank = self.cfg.o_groups, self.cfg.o_lora_rank
        x = out.flatten(-2).unflatten(-1, (groups, -1))
        w = self.wo_a.weight.view(groups, rank, -1)
        return self.arith.round(self.arith.grouped(x, w))
