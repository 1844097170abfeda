"""Attention on the chip: keys go to their caches as records, are scored, selected and read there.

One decision for a whole layer, `serves`. Operations take fp32 and give fp32 here, so that all
roundings stay where the model has them; what happens between two operations inside one kernel
(probabilities, terms of a score, a pooled latent) is rounded in it under bf16 arithmetic.
Shapes: B batch, T tokens, H heads, D head_dim, I index_head_dim, W window, N entries, K selected,
G groups, R rotated dims.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dslearn.model import chip
from dslearn.model.arith import Arith
from dslearn.model.caches import Pools, of_lanes, put, store
from dslearn.model.linear import Norm
from dslearn.model.plan import Groups, Plan
from dslearn.model.selection import Bounds

PAIRED = 126  # tokens of a pooling kernel's call: even, so that the parity stays
QUERIES = 64  # of an attention kernel's call: with its window it stays below 2048 keys


def serves(arith: Arith, *tensors: Tensor) -> bool:
    """Whether operations serve the attention of a layer: `chip.serves`, and there are records.

    Not with plain rows (`Numerics(caches=False)`): every kernel here writes or reads records, so
    torch serves all of it then. Nor in row-invariant mode: their sums depend on the chunk. A graph
    has operations on the cpu too, where their twins serve: what packs records looks into bits.
    """
    numerics = arith.numerics
    if not numerics.caches or numerics.row_invariant:
        return False
    if torch.compiler.is_compiling():
        return not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))
    return chip.serves(*tensors)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, inverse: bool = False) -> Tensor:
    """`rope.rotate` of heads x [B, T, H, D] by cos and sin [B, T, R]."""
    from dslearn.ops.rope import rope

    return rope(x.flatten(0, 1), cos.flatten(0, 1), sin.flatten(0, 1), inverse).view(x.shape)


def keep(arith: Arith, pool: Tensor, x: Tensor, groups: Groups, kind: str) -> None:
    """`caches.store` of x [B, G, D] as records of `kind` in an entry pool [B, N + 1, stride]."""
    _write(arith, pool.flatten(0, 1), x, groups.rows, groups.closed, kind)


def _write(  # noqa: PLR0913 - the operation's own
    arith: Arith, pool: Tensor, x: Tensor, rows: Tensor, valid: Tensor, kind: str
) -> None:
    from dslearn.ops.kv_store import kv_store

    kv_store(x.flatten(0, 1), rows, valid.flatten(), pool, kind, arith.numerics.fp8_max)


def pooled(arith: Arith, norm: Norm, u: Tensor, groups: Groups, *pairs: Tensor) -> Tensor:
    """`Compressor`'s pooling and norm: u [B, T, D] -> latents [B, G, D], zeros where not closed.

    pairs: scores g [B, T, D], and the open group's two tensors [L, D], which are written; none for
    ratio 1.
    """
    from dslearn.ops.compress_pool import compress_pool

    common = norm.weight, norm.eps, arith.numerics.arithmetic == "bf16"
    if not pairs:
        return compress_pool(u, *common).float()
    g, *pools = pairs
    start, counts, lanes = groups.stretch
    waiting = [of_lanes(pool, lanes) for pool in pools]
    parts, tokens = [], u.shape[1]
    for first in range(0, tokens, PAIRED):
        part = slice(first, min(first + PAIRED, tokens))
        lengths = (counts - first).clamp(0, PAIRED)
        latent = compress_pool(
            u[:, part].contiguous(), *common, g[:, part].contiguous(), start, lengths,
            *waiting,
        )  # fmt: skip
        # A part's last group is the first of the next one, and only there can it close.
        parts.append(latent if part.stop == tokens else latent[:, : PAIRED // 2])
    if lanes is not None:
        for pool, row in zip(pools, waiting, strict=True):
            put(pool, row, lanes)
    return torch.cat(parts, 1).float()


def scores(arith: Arith, q: Tensor, weights: Tensor, keys: Tensor, count: int) -> Tensor:
    """Scores [B, T, N] of the first N = `count` records of an index pool [B, .., stride].

    q [B, T, H, I] rotated, weights [B, T, H]. Entries that a query does not see have one too.
    """
    from dslearn.ops.index_score import index_score

    rounded = arith.numerics.arithmetic == "bf16"
    rows = [index_score(q[b], weights[b], keys[b, :count], True, rounded) for b in range(len(q))]
    return torch.stack(rows)


def choose(
    scores: Tensor, visible: Tensor, k: int, bounds: Bounds, candidates: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """`selection.choose`: scores [B, T, N], visible [B, T] -> chosen int32 [B, T, k], published.

    Candidates are a byte per block here, [B, T, N / size].
    """
    from dslearn.ops.index_topk import candidate_blocks, index_topk

    shape, size = scores.shape[:2], bounds.size
    flat, seen, allowed = scores.flatten(0, 1), visible.flatten(), None
    published = candidate_blocks(flat, seen, size, bounds.keep) if bounds.publishes else None
    if bounds.filters and candidates is not None:
        allowed = candidates.flatten(0, 1)
        # The kernel divides the entries by the number of blocks: that must give `size`.
        flat = F.pad(flat, (0, -flat.shape[1] % size))
    chosen = index_topk(flat, seen, k, allowed).unflatten(0, shape)
    return chosen, None if published is None else published.unflatten(0, shape)


def attend(  # noqa: PLR0913 - what attention reads
    arith: Arith, q: Tensor, k: Tensor, sink: Tensor, plan: Plan, pools: Pools,
    chosen: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """q [B, T, H, D], keys k [B, T, D] -> [B, T, H, D], and the keys' records [B, T, stride].

    The keys join the ring.
    """
    from dslearn.ops.sparse_attn import sparse_attn

    near, records = _window(arith, k, plan, pools.ring)
    width, rounded = pools.ring.shape[1] - 1, arith.numerics.arithmetic == "bf16"
    rows, lanes, selected, everywhere = [], plan.lanes, chosen, pools.ring
    if lanes is not None and chosen is not None and pools.entries is not None:
        # Rows of the whole pool, so that none of it is copied to be read.
        everywhere = pools.entries.flatten(0, 1)
        offset = lanes.int().view(-1, 1, 1) * pools.entries.shape[1]
        selected = torch.where(chosen < 0, -1, chosen + offset)
    for b in range(len(q)):
        for first in range(0, q.shape[1], QUERIES):
            part = slice(first, min(first + QUERIES, q.shape[1]))
            seen = slice(first, part.stop + width - 1)
            far: tuple[Tensor, ...] = ()
            if selected is not None and pools.entries is not None:
                far = pools.entries[b] if lanes is None else everywhere, selected[b, part]
            rows.append(
                sparse_attn(
                    q[b, part], plan.positions[b, part], near[b, seen],
                    plan.window.held[b, seen], sink, width, rounded, *far,
                )
            )  # fmt: skip
    return arith.round(torch.cat(rows).view(q.shape)), records


def _window(arith: Arith, k: Tensor, plan: Plan, ring: Tensor) -> tuple[Tensor, Tensor]:
    """Records that queries read, positions as in `Window.held`; and those of the keys k [B, T, D].

    One token is stored first and read in the ring, whose oldest key it no longer sees. The first of
    several still see what the last ones overwrite, so these are stored afterwards.
    """
    (batch, tokens, _), flat, window = k.shape, ring.flatten(0, 1), plan.window
    if tokens == 1:
        _write(arith, flat, k, window.slots, window.stored, "window")
        return of_lanes(ring, plan.lanes), flat.index_select(0, window.slots).unsqueeze(1)
    records = flat.new_empty(batch * tokens, flat.shape[1])
    every = torch.ones(batch * tokens, dtype=torch.bool)
    _write(arith, records, k, torch.arange(batch * tokens), every, "window")
    records = records.unflatten(0, (batch, tokens))
    before = flat.index_select(0, window.before).view(batch, ring.shape[1] - 2, flat.shape[1])
    store(ring, window.slots, window.stored, records)
    return torch.cat((before, records), 1), records
