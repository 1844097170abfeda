"""Attention of the NumPy twin: window, compressed entries, index selection, by absolute rules.

Legend: T tokens, H heads, D head_dim, R rotated dims (the last R of D), W window, r ratio,
E = T // r compressed entries, Hi index heads, Di index dim, d hidden.
Entry j stands for tokens j*r .. j*r+r-1; a query at p sees it iff (j+1)*r <= p+1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy_formats as formats
from numpy_checkpoint import Weights, matmul, rms_norm, top_k

F32 = np.float32


@dataclass
class Shared:
    """What a layer leaves for the layers above it; `None` until the first source has run."""

    entries: np.ndarray | None = None  # [E, D]
    index_keys: np.ndarray | None = None  # [E, Di]
    selected: list[np.ndarray] | None = None  # per token, visible entry indices ascending
    candidates: list[np.ndarray] | None = None  # per token, candidate block indices


@dataclass
class Attention:
    """Everything a layer's attention needs besides its input."""

    cfg: dict
    weights: Weights
    caches: bool = True
    fp8_max: int = 448
    shared: Shared = field(default_factory=Shared)


def frequencies(theta: float, dims: int, scaling: dict | None) -> np.ndarray:
    """The dims/2 angles per position, float32 at every step; `scaling` is a YaRN dict or None.

    Pairs that turn often within the original context keep their frequency, pairs that turn
    rarely are slowed down by `factor`, and a linear ramp joins the two.
    """
    exponent = np.arange(0, dims, 2).astype(F32) / F32(dims)
    f = F32(1) / np.power(float(theta), exponent.astype(np.float64)).astype(F32)
    if scaling is None:
        return f
    kind = scaling.get("type") or scaling.get("rope_type")
    if kind != "yarn":
        raise ValueError(f"rope_scaling type {kind!r}: only yarn exists in this model")

    def turning_dim(turns: float) -> float:
        context = scaling["original_max_position_embeddings"]
        return dims * math.log(context / (2 * math.pi * turns)) / (2 * math.log(theta))

    low = max(math.floor(turning_dim(scaling["beta_fast"])), 0)
    high = min(math.ceil(turning_dim(scaling["beta_slow"])), dims - 1)
    steps = (np.arange(dims // 2) - low).astype(F32) / F32(max(high - low, 0.001))
    ramp = np.clip(steps, F32(0), F32(1))
    return f / F32(scaling["factor"]) * ramp + f * (F32(1) - ramp)


def layer_frequencies(cfg: dict, ratio: int) -> np.ndarray:
    """Ratio 0: rope_theta as it is. Ratio > 0: compress_rope_theta with YaRN, for everything."""
    dims = cfg["qk_rope_head_dim"]
    if ratio == 0:
        return frequencies(cfg["rope_theta"], dims, None)
    return frequencies(cfg["compress_rope_theta"], dims, cfg.get("rope_scaling"))


def rotate(
    x: np.ndarray, positions: np.ndarray, f: np.ndarray, inverse: bool = False
) -> np.ndarray:
    """Rotate neighbours (a, b) among the last 2*len(f) dims of x [T, ..., D] by position * f."""
    angle = (positions.astype(F32)[:, None] * f[None, :]).astype(np.float64)
    cos, sin = np.cos(angle).astype(F32), np.sin(angle).astype(F32)
    if inverse:
        sin = -sin
    while cos.ndim < x.ndim:
        cos, sin = cos[:, None], sin[:, None]
    out = x.copy()
    a, b = x[..., -2 * len(f) :: 2], x[..., x.shape[-1] - 2 * len(f) + 1 :: 2]
    out[..., -2 * len(f) :: 2] = a * cos - b * sin
    out[..., x.shape[-1] - 2 * len(f) + 1 :: 2] = b * cos + a * sin
    return out


def visible_entries(p: int, ratio: int) -> int:
    """How many entries a query at p sees: entry j iff (j+1)*ratio <= p+1."""
    n = 0
    while (n + 1) * ratio <= p + 1:
        n += 1
    return n


def window_start(p: int, window: int) -> int:
    """First position a query at p sees; it sees `window` positions, its own the last of them."""
    return max(0, p - window + 1)


def compress(att: Attention, name: str, x: np.ndarray, ratio: int) -> np.ndarray:
    """Latents [E, D] of x [T, d]: each group's channelwise softmax average, then the norm."""
    u = att.weights.linear(f"{name}.wkv", x)
    pooled = u
    if ratio > 1:
        g = att.weights.linear(f"{name}.wgate", x)
        pooled = np.zeros((len(x) // ratio, u.shape[1]), F32)
        for j in range(len(pooled)):
            group = slice(j * ratio, (j + 1) * ratio)
            share = np.exp(g[group] - g[group].max(0))
            pooled[j] = (share / share.sum(0) * u[group]).sum(0)
    return rms_norm(pooled, att.weights.plain(f"{name}.norm.weight"), att.cfg["rms_norm_eps"])


def publish_entries(att: Attention, name: str, x: np.ndarray, ratio: int, f: np.ndarray) -> None:
    """Leave this KV source's compressed entries and index keys for itself and the layers above."""
    w, eps = att.weights, att.cfg["rms_norm_eps"]
    latent = compress(att, f"{name}.compressor", x, ratio)
    first = np.arange(len(latent)) * ratio
    key = w.linear(f"{name}.indexer.wk", latent)
    key = rms_norm(key, w.plain(f"{name}.indexer.k_norm.weight"), eps)
    entries, keys = rotate(latent, first, f), rotate(key, first, f)
    if att.caches:
        entries = formats.fake_fp4_e4m3(entries, 16, att.fp8_max)
        keys = formats.fake_fp4_ue8m0(keys, 32)
    att.shared.entries, att.shared.index_keys = entries, keys


def index_scores(
    att: Attention, name: str, x: np.ndarray, latent: np.ndarray, f: np.ndarray
) -> np.ndarray:
    """Scores [T, E] of every entry for every query, visible or not: sum_h w_h relu(q_h . key)."""
    heads, dim = att.cfg["index_n_heads"], att.cfg["index_head_dim"]
    q = att.weights.linear(f"{name}.indexer.wq_b", latent).reshape(len(x), heads, dim)
    q = rotate(q, np.arange(len(x)), f)
    if att.caches:
        q = formats.fake_fp4_ue8m0(q, 32)
    w = att.weights.linear(f"{name}.indexer.weights_proj", x) * F32(dim**-0.5 * heads**-0.5)
    scores = np.zeros((len(x), len(att.shared.index_keys)), np.float64)
    for h in range(heads):
        dots = matmul(q[:, h], att.shared.index_keys.T)
        scores += w[:, h, None].astype(np.float64) * np.maximum(dots, 0)
    return scores.astype(F32)


def candidate_blocks(scores: np.ndarray, size: int, keep: int) -> np.ndarray:
    """The blocks of `size` entries kept for one query, from the scores of its visible entries."""
    n = len(scores)
    if n == 0:
        return np.zeros(0, np.int64)
    best = np.array([scores[b : b + size].max() for b in range(0, n, size)])
    best[(n - 1) // size] = np.inf
    kept = top_k(best, keep)
    return np.sort(kept[best[kept] > -np.inf])


def select_entries(scores: np.ndarray, k: int, allowed: np.ndarray | None, size: int) -> np.ndarray:
    """Ascending indices of the k best of one query's visible entries, within allowed blocks."""
    scores = scores.astype(np.float64)
    if allowed is not None:
        outside = ~np.isin(np.arange(len(scores)) // size, allowed)
        scores = np.where(outside, -np.inf, scores)
    best = top_k(scores, k)
    return np.sort(best[scores[best] > -np.inf])


def publish_selection(att: Attention, layer: int, scores: np.ndarray, ratio: int) -> None:
    """Choose each query's entries at an index source; the candidate source also leaves blocks."""
    cfg, source = att.cfg, att.cfg.get("candidate_source_layer_id")
    size, keep = cfg.get("candidate_block_size") or 1, cfg.get("candidate_topk_blocks") or 0
    rows = [scores[p, : visible_entries(p, ratio)] for p in range(len(scores))]
    allowed: list = [None] * len(rows)
    if layer in cfg["kv_source_layer_ids"]:
        att.shared.candidates = None  # they name entries of the previous source
    elif att.shared.candidates is not None:
        allowed = att.shared.candidates
    if layer == source:
        att.shared.candidates = [candidate_blocks(row, size, keep) for row in rows]
    att.shared.selected = [
        select_entries(row, cfg["index_topk"], blocks, size)
        for row, blocks in zip(rows, allowed, strict=True)
    ]


def attend(q: np.ndarray, keys: np.ndarray, sink: np.ndarray) -> np.ndarray:
    """q [H, D] over keys = values [N, D]; the sink [H] joins the denominator only. [H, D]."""
    scores = (q.astype(np.float64) @ keys.astype(np.float64).T) * q.shape[-1] ** -0.5
    top = np.maximum(scores.max(-1), sink)
    weight = np.exp(scores - top[:, None])
    total = weight.sum(-1) + np.exp(sink - top)
    return (weight @ keys.astype(np.float64) / total[:, None]).astype(F32)


def project_out(att: Attention, name: str, o: np.ndarray) -> np.ndarray:
    """Heads [T, H, D] to [T, d]: one low-rank projection per group of heads, then wo_b."""
    groups, rank = att.cfg["o_groups"], att.cfg["o_lora_rank"]
    grouped = o.reshape(len(o), groups, -1)
    wo_a = att.weights.matrix(f"{name}.wo_a").reshape(groups, rank, -1)
    z = np.stack([matmul(grouped[:, g], wo_a[g].T) for g in range(groups)], 1)
    return att.weights.linear(f"{name}.wo_b", z.reshape(len(o), -1))


def attention(att: Attention, layer: int, x: np.ndarray) -> np.ndarray:
    """One layer's attention on its normalised input x [T, d], [T, d]."""
    cfg, w, name = att.cfg, att.weights, f"layers.{layer}.attn"
    ratio, positions = cfg["compress_ratios"][layer], np.arange(len(x))
    f, eps = layer_frequencies(cfg, ratio), cfg["rms_norm_eps"]
    latent = rms_norm(w.linear(f"{name}.wq_a", x), w.plain(f"{name}.q_norm.weight"), eps)
    q = w.linear(f"{name}.wq_b", latent).reshape(len(x), -1, cfg["head_dim"])
    q = rotate(q, positions, f)
    k = rms_norm(w.linear(f"{name}.wkv", x), w.plain(f"{name}.kv_norm.weight"), eps)
    k = rotate(k, positions, f)
    if att.caches:
        k = formats.fake_fp8(k, 32, att.fp8_max)
    if ratio and layer in cfg["kv_source_layer_ids"]:
        publish_entries(att, name, x, ratio, f)
    if ratio and layer in cfg["index_source_layer_ids"]:
        publish_selection(att, layer, index_scores(att, name, x, latent, f), ratio)
    sink = w.plain(f"{name}.attn_sink").astype(np.float64)
    o = np.zeros_like(q)
    for p in positions:
        keys = k[window_start(p, cfg["sliding_window"]) : p + 1]
        if ratio:
            keys = np.concatenate([keys, att.shared.entries[att.shared.selected[p]]])
        o[p] = attend(q[p], keys, sink)
    return project_out(att, name, rotate(o, positions, f, inverse=True))
