"""Compressed entries of one step: closing a group, scoring, selecting.

`dslearn.model.compressor` and `dslearn.model.indexer` in NumPy. Shapes: N entries, K selected,
H index heads, I index_head_dim, D head_dim, d hidden.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dslearn.formats.numpy_rows import fake_fp4
from dslearn.model.attention import Attention
from dslearn.model.caches import OpenGroup, Stretch
from dslearn.model.compressor import Compressor
from dslearn.model.indexer import Indexer
from dslearn.model.step.context import Step
from dslearn.model.step.parts import Row, Turn, best, linear, norm, product, rotate, weighted


def compress(layer: Attention, x: Row, step: Step) -> None:
    """A kv source stores the entry and the index key of the group that this token closes, if any.

    x [d]; `Attention._compress`.
    """
    if layer.compressor is None or layer.indexer is None:
        return
    cache = step.state.layers[layer.layer]
    assert cache.entries is not None and cache.index_keys is not None, "kv source has caches"
    latent = _latent(layer.compressor, x, cache.group, step)
    if latent is None:
        return
    index = step.position // layer.ratio
    turn = layer.tables["compress"].turn(index * layer.ratio)
    key = norm(layer.indexer.k_norm, linear(layer.indexer.wk, latent))
    rotate(key, turn)
    rotate(latent, turn)
    for part, new in ((cache.entries, latent), (cache.index_keys, key)):
        part.data[0, index] = part.codec.pack(torch.from_numpy(new))


def _latent(layer: Compressor, x: Row, group: OpenGroup | None, step: Step) -> Row | None:
    """x [d] -> the normalised latent [D] of a group that is complete: `Compressor.forward`."""
    u = weighted(layer.wkv.weight, x)
    if group is None:  # ratio 1
        return norm(layer.norm, u)
    g = weighted(layer.wgate.weight, x)
    waiting_u, waiting_g = group.u[0].numpy().copy(), group.g[0].numpy().copy()
    rows = torch.from_numpy(u)[None, None], torch.from_numpy(g)[None, None]
    group.update(*rows, Stretch(step.span.start, step.span.lengths))
    if step.position % 2 == 0:
        return None
    share = 1 / (1 + np.exp(waiting_g - g))  # softmax over the two
    return norm(layer.norm, waiting_u + share * (u - waiting_u))


def select(layer: Attention, qr: Row, x: Row, step: Step) -> None:
    """An index source chooses entries for itself and the layers after it: `Attention._select`."""
    indexer, cfg, source = layer.indexer, layer.cfg, layer.sources[0]
    if indexer is None:
        return
    assert source is not None, "config check gives every index source a kv source"
    count = step.count(layer.ratio)
    publishes = layer.layer == cfg.candidate_source_layer_id
    block, keep = cfg.candidate_block_size, cfg.candidate_topk_blocks
    limited = (publishes or layer.filters) and count > block * keep
    if count <= indexer.topk and not limited:  # everything is selected
        scores = np.zeros(count, np.float32)
    else:
        scores = index_scores(indexer, qr, x, _index_keys(source, count, step), step.compress)
    if publishes:
        step.candidates = candidate_blocks(scores, block, keep)
    if layer.filters and step.candidates is not None:
        scores[~step.candidates] = -np.inf
    chosen = best(scores, indexer.topk)
    chosen = np.sort(chosen[scores[chosen] > -np.inf])
    step.selection[layer.layer] = chosen
    entries = step.state.layers[source].entries
    assert entries is not None, "kv source has caches"
    records = torch.from_numpy(entries.data.numpy()[0, chosen])
    step.entries[layer.layer] = entries.codec.unpack(records).numpy()


def _index_keys(source: int, count: int, step: Step) -> Row:
    """The first `count` index keys [count, I] of a kv source, decoded once per step."""
    if source not in step.index_keys:
        cache = step.state.layers[source].index_keys
        assert cache is not None, "kv source has caches"
        step.index_keys[source] = cache.first(count)[0].numpy()
    return step.index_keys[source]


def index_scores(indexer: Indexer, qr: Row, x: Row, keys: Row, turn: Turn) -> Row:
    """qr [q_lora], x [d], keys [N, I] -> sum_h w_h relu(q_h . key_j) [N]: `index_scores`."""
    q = linear(indexer.wq_b, qr).reshape(indexer.heads, -1)
    rotate(q, turn)
    if indexer.arith.numerics.caches:
        q = fake_fp4(q)
    w = linear(indexer.weights_proj, x) * np.float32(indexer.scale)
    return w.dot(np.maximum(product(q, keys.T), np.float32(0)))


def candidate_blocks(scores: Row, block: int, keep: int) -> NDArray[np.bool_]:
    """Mask [N] of the entries in the best blocks, the newest always: `candidate_blocks`."""
    n = len(scores)
    peak = np.full((-(-n // block), block), -np.inf, np.float32)
    peak.reshape(-1)[:n] = scores
    peak = peak.max(1)
    peak[len(peak) - 1 :] = np.inf
    kept = np.zeros(len(peak), np.bool_)
    kept[best(peak, keep)] = True
    return np.repeat(kept, block)[:n]
