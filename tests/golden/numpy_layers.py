"""Hyper-connections and the mixture of experts of the NumPy twin.

Legend: T tokens, S streams (hc_mult), d hidden, E experts, k experts per token.
"""

from __future__ import annotations

import numpy as np
from numpy_checkpoint import Weights, inverse_rms, matmul, sigmoid, softplus, top_k

F32 = np.float32


def sinkhorn(logits: np.ndarray, rounds: int, eps: float) -> np.ndarray:
    """[..., S, S] to nearly doubly stochastic; a round is rows then columns, columns come last.

    The first round's row step is a softmax, to which eps is added after the division.
    """
    c = np.exp(logits - logits.max(-1, keepdims=True))
    c = (c / c.sum(-1, keepdims=True) + F32(eps)).astype(F32)
    c = c / (c.sum(-2, keepdims=True) + F32(eps))
    for _ in range(rounds - 1):
        c = c / (c.sum(-1, keepdims=True) + F32(eps))
        c = c / (c.sum(-2, keepdims=True) + F32(eps))
    return c


def hyper_coefficients(
    cfg: dict, weights: Weights, name: str, streams: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """pre [T, S], post [T, S], comb [T, S, S] of one sublayer from the streams [T, S, d]."""
    count, eps = cfg["hc_mult"], F32(cfg["hc_eps"])
    scale, base = weights.plain(f"{name}_scale"), weights.plain(f"{name}_base")
    flat = streams.reshape(len(streams), -1)
    mixed = matmul(flat, weights.plain(f"{name}_fn").T)
    mixed = mixed * inverse_rms(flat, cfg["rms_norm_eps"])[:, None]
    pre = sigmoid(mixed[:, :count] * scale[0] + base[:count]) + eps
    post = 2 * sigmoid(mixed[:, count : 2 * count] * scale[1] + base[count : 2 * count])
    logits = mixed[:, 2 * count :] * scale[2] + base[2 * count :]
    comb = sinkhorn(logits.reshape(-1, count, count), cfg["hc_sinkhorn_iters"], cfg["hc_eps"])
    return pre, post, comb


def collapse(streams: np.ndarray, pre: np.ndarray) -> np.ndarray:
    """sum_c pre_c h_c: [T, S, d] with [T, S] to [T, d]."""
    return (streams * pre[..., None]).sum(1)


def expand(y: np.ndarray, streams: np.ndarray, post: np.ndarray, comb: np.ndarray) -> np.ndarray:
    """New stream k = post_k y + sum_j comb[j, k] h_j, [T, S, d]."""
    out = post[..., None] * y[:, None, :]
    for j in range(streams.shape[1]):
        out = out + comb[:, j, :, None] * streams[:, j, None, :]
    return out


def expert(
    weights: Weights, name: str, x: np.ndarray, limit: float | None, weight: np.ndarray | None
) -> np.ndarray:
    """w2(weight * silu(min(w1 x, limit)) * clamp(w3 x, +-limit)) for x [n, d], weight [n]."""
    gate, up = weights.linear(f"{name}.w1", x), weights.linear(f"{name}.w3", x)
    if limit:
        gate, up = np.minimum(gate, F32(limit)), np.clip(up, F32(-limit), F32(limit))
    inner = gate * sigmoid(gate) * up
    if weight is not None:
        inner = weight[:, None] * inner
    return weights.linear(f"{name}.w2", inner)


def route(
    cfg: dict, weights: Weights, name: str, x: np.ndarray, image: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Expert ids and weights [T, k], best first; the bias decides who, never how much."""
    scoring = cfg.get("scoring_func", "sqrtsoftplus")
    if scoring != "sqrtsoftplus":
        raise ValueError(f"scoring_func {scoring!r}: only sqrtsoftplus exists in this model")
    k = cfg["num_experts_per_tok"]
    logits = weights.linear(name, x) / F32(cfg.get("gate_temp") or 1)
    scores = np.sqrt(softplus(logits))
    bias = np.broadcast_to(weights.plain(f"{name}.bias"), scores.shape)
    if image.any():
        bias = np.where(image[:, None], weights.plain(f"{name}.bias_vl"), bias)
    ids = np.stack([top_k(row, k) for row in scores + bias])
    chosen = np.take_along_axis(scores, ids, 1)
    if k > 1 and cfg.get("norm_topk_prob", True):
        chosen = chosen / (chosen.sum(1, keepdims=True) + F32(1e-20))
    return ids, chosen * F32(cfg["routed_scaling_factor"])


def moe(
    cfg: dict, weights: Weights, name: str, x: np.ndarray, image: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x [T, d] through its k routed experts, ascending, then the shared one; ids and weights."""
    ids, chosen = route(cfg, weights, f"{name}.gate", x, image)
    limit = cfg.get("swiglu_limit")
    y = np.zeros_like(x)
    for e in range(cfg["n_routed_experts"]):
        tokens, slot = np.nonzero(ids == e)
        if len(tokens):
            y[tokens] += expert(
                weights, f"{name}.experts.{e}", x[tokens], limit, chosen[tokens, slot]
            )
    if cfg.get("n_shared_experts", 1):
        y = y + expert(weights, f"{name}.shared_experts", x, limit, None)
    return y, ids, chosen
