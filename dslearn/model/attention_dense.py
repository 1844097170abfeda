"""Attention with gradients: every key of a short sequence at once, masked to the same set.

A trainer differentiates through this form (gathering keys per query would make the backward pass
a scatter); it computes the same function as `attention.attend`, as a test shows. It also gives
the indexer its lesson: how much each query really attends to each entry.
Shapes: B batch, T tokens from position 0, H heads, D head_dim, W window, N entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from dslearn.model.arith import Arith, straight_through
from dslearn.model.caches import Codec, PlainRows
from dslearn.model.call import Call
from dslearn.model.plan import Plan
from dslearn.model.selection import choose, everything
from dslearn.model.state import entry_codecs, window_codec

if TYPE_CHECKING:
    from dslearn.model.attention import Attention


def learn(layer: Attention, x: Tensor, call: Call) -> Tensor:
    """`Attention.forward` of a call with gradients: normalised x [B, T, d] -> [B, T, d].

    Positions begin at 0; what later layers need is left in `call`.
    """
    plan, found, numerics = call.plan(layer.ratio), call.learning, layer.arith.numerics
    qr, q, k = layer.project(x, plan)
    if layer.compressor is not None and plan.groups is not None:
        waiting = x.new_zeros(2, len(x), layer.cfg.head_dim)  # nothing waits at position 0
        latent, _, _ = layer.compressor(x, plan.groups, *waiting)
        codecs = entry_codecs(layer.cfg, numerics)
        new = zip(codecs, layer.entries(latent, plan.groups), strict=True)
        found.entries, found.index_keys = (through(codec, rows) for codec, rows in new)
    if layer.indexer is not None:
        _select(layer, (qr, x), plan, call)
    out = attend_dense(layer, q, through(window_codec(layer.cfg, numerics), k), call)
    return layer.project_back(out, plan)


def through(codec: Codec, x: Tensor) -> Tensor:
    """x [..., D] as a reader of its records will see it (gradients pass through)."""
    if isinstance(codec, PlainRows):
        return x
    return straight_through(x, codec.unpack(codec.pack(x.detach())))


def _select(layer: Attention, given: tuple[Tensor, Tensor], plan: Plan, call: Call) -> None:
    """An index source chooses entries, and keeps its scores for the lesson."""
    found, bounds, k = call.learning, layer.bounds(), layer.width(plan.entries)
    assert layer.indexer is not None and plan.visible is not None, "an index source"
    if not bounds.bind(plan.entries) and found.losses is None:
        call.chosen = everything(plan.visible, k)
        return
    assert found.index_keys is not None, "an index source has a kv source"
    # Its only lesson is the attention mass: no gradient reaches what it reads.
    qr, x = (part.detach() for part in given)
    q, w = layer.indexer.queries(qr, x, plan.cos, plan.sin)
    scores = layer.indexer.scores(q, w, found.index_keys[:, : plan.entries])
    call.chosen, published, found.scores = choose(scores, plan.visible, k, bounds, call.candidates)
    if published is not None:
        call.candidates = published


def attend_dense(layer: Attention, q: Tensor, k: Tensor, call: Call) -> Tensor:
    """q [B, T, H, D], k [B, T, D] (positions 0..T-1, no state) -> [B, T, H, D]."""
    cfg, arith, found = layer.cfg, layer.arith, call.learning
    b, t, h, dim = q.shape
    window = cfg.sliding_window
    q = q * dim**-0.5
    near, blocks = _window_scores(q, k, window, arith)  # [B, T, H, 2W]
    scores = [near]
    entries = None
    if layer.ratio:
        count = call.plan(layer.ratio).entries
        assert found.entries is not None and call.chosen is not None, "layers share what is below"
        entries = found.entries[:, :count]
        mask = _selected(call.chosen.long(), count)
        far = arith.pairs(q.flatten(1, 2), entries).unflatten(1, (t, h))
        scores.append(far.masked_fill(~mask.unsqueeze(2), -torch.inf))
    sink = layer.attn_sink[:, None].expand(b, t, h, 1)
    p = torch.cat((*scores, sink), -1).softmax(-1)
    near_p = F.pad(p[..., : 2 * window], (0, 0, 0, 0, 0, -t % window))
    near_p = near_p.unflatten(1, (-1, window)).flatten(2, 3).flatten(0, 1)  # [B nb, W H, 2W]
    out = arith.pairs(near_p, blocks.transpose(-1, -2)).unflatten(0, (b, -1))
    out = out.unflatten(2, (window, h)).flatten(1, 2)[:, :t]
    if entries is not None:
        far_p = p[..., 2 * window : -1]
        far_out = arith.pairs(far_p.flatten(1, 2), entries.transpose(-1, -2))
        out = out + far_out.unflatten(1, (t, h))
        if found.losses is not None:
            assert found.scores is not None, "entries have an index source"
            found.losses.append(index_loss(found.scores, far_p.detach().sum(2)))
    return out


def _window_scores(q: Tensor, k: Tensor, window: int, arith: Arith) -> tuple[Tensor, Tensor]:
    """Scores against the block before and the own block, masked to the window.

    -> scores [B, T, H, 2W], the key blocks [B * blocks, 2W, D].
    """
    b, t, h, dim = q.shape
    pad = -t % window
    keys = F.pad(k, (0, 0, window, pad)).unfold(1, 2 * window, window)  # [B, nb, D, 2W]
    blocks = keys.transpose(-1, -2).flatten(0, 1)
    queries = F.pad(q, (0, 0, 0, 0, 0, pad)).unflatten(1, (-1, window)).flatten(2, 3).flatten(0, 1)
    scores = arith.pairs(queries, blocks)
    scores = scores.unflatten(0, (b, -1)).unflatten(2, (window, h)).flatten(1, 2)[:, :t]
    position = torch.arange(t)
    key = (position // window - 1)[:, None] * window + torch.arange(2 * window)
    back = position[:, None] - key
    valid = (back >= 0) & (back < window) & (key >= 0)
    return scores.masked_fill(~valid[:, None], -torch.inf), blocks


def _selected(chosen: Tensor, count: int) -> Tensor:
    """Indices [B, T, K] with -1 -> mask [B, T, count] bool."""
    mask = torch.zeros(*chosen.shape[:2], count + 1, dtype=torch.bool)
    index = torch.where(chosen < 0, count, chosen)
    return mask.scatter_(-1, index, True)[..., :count]


def index_loss(scores: Tensor, mass: Tensor) -> Tensor:
    """KL(attention mass || softmax of index scores) over the selected entries, mean per query.

    scores [B, T, N] (-inf where not visible), mass [B, T, N] >= 0, zero where not selected.
    Queries that see no entry do not count.
    """
    seen = mass > 0
    target = mass / mass.sum(-1, keepdim=True).clamp(min=1e-20)
    logits = scores.masked_fill(~seen, -1e30).log_softmax(-1)
    kl = torch.where(seen, target * (target.clamp(min=1e-20).log() - logits), 0.0).sum(-1)
    return kl.sum() / seen.any(-1).sum().clamp(min=1)
