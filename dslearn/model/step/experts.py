"""Experts of one token: `dslearn.model.moe` in NumPy.

Shapes: d hidden, E routed experts, I intermediate, k experts per token.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from dslearn.model.moe import Expert, MoE, Router
from dslearn.model.step.parts import Row, best, fused, linear, matrix, weighted


def route(router: Router, x: Row) -> tuple[NDArray[np.int64], Row]:
    """x [d] -> expert ids [k], best first, and their weights [k]: `Router.forward`."""
    cfg = router.cfg
    z = weighted(router.weight, x)
    if cfg.gate_temp != 1.0:
        z /= np.float32(cfg.gate_temp)
    scores = np.sqrt(np.logaddexp(np.float32(0), z))
    ids = best(scores + matrix(router.bias), cfg.num_experts_per_tok)
    weights = scores[ids]
    if len(ids) > 1 and cfg.norm_topk_prob:
        weights /= weights.sum() + np.float32(1e-20)
    return ids, weights * np.float32(cfg.routed_scaling_factor)


def experts(layer: MoE, x: Row) -> tuple[Row, NDArray[np.int64], Row]:
    """x [d] -> output [d], ids [k], weights [k]; routed experts add up in ascending id."""
    ids, weights = route(layer.gate, x)
    order = np.argsort(ids)
    chosen = [cast(Expert, layer.experts[e]) for e in ids[order]]
    shared, limit = layer.shared_experts, layer.shared_experts.limit
    both = np.array([fused(e.gate_up, x) for e in (*chosen, shared)])  # [k + 1, 2 I]
    half = both.shape[1] // 2
    gate, up = np.minimum(both[:, :half], np.float32(limit)), both[:, half:]
    hidden = gate / (1 + np.exp(-gate)) * np.clip(up, -limit, limit)
    hidden[:-1] *= weights[order, None]
    out = [linear(e.w2, row) for e, row in zip((*chosen, shared), hidden, strict=True)]
    return sum(out[1:], out[0]), ids, weights
