"""Attention of one query: `dslearn.model.attention` in NumPy.

Shapes: H heads, D head_dim, N keys, d hidden.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dslearn.formats.numpy_rows import window_record
from dslearn.formats.records import Record
from dslearn.model.attention import EMPTY_MAX, Attention
from dslearn.model.step.context import Step
from dslearn.model.step.entries import compress, select
from dslearn.model.step.parts import Row, fused, linear, matrix, norm, product, rotate


def attention(layer: Attention, x: Row, step: Step) -> Row:
    """Normalised x [d] -> [d]: `Attention.forward`."""
    heads, turn = layer.cfg.num_attention_heads, step.compress if layer.ratio else step.local
    low = fused(layer.down, x)
    lora = layer.wq_a.weight.shape[0]
    qr = norm(layer.q_norm, low[:lora])
    both = np.concatenate((linear(layer.wq_b, qr), norm(layer.kv_norm, low[lora:])))
    both = both.reshape(heads + 1, -1)
    rotate(both, turn)
    keys = _window(layer, both[heads], step)
    if layer.ratio:
        compress(layer, x, step)
        select(layer, qr, x, step)
        chooser = layer.sources[1]
        assert chooser is not None, "a layer with a ratio has an index source"
        keys = np.concatenate((keys, step.entries[chooser]))
    out = attend(both[:heads], keys, matrix(layer.attn_sink))
    rotate(out, turn.conj())
    return linear(layer.wo_b, _grouped(layer, out))


def _window(layer: Attention, key: Row, step: Step) -> Row:
    """Store key [D] and give the last W keys [N, D] as readers of their records see them.

    In the order of their slots, not of their positions: a softmax does not ask.
    """
    ring = step.state.layers[layer.layer].ring
    record: NDArray[Any] = key
    if isinstance(ring.codec, Record):
        record, key = window_record(key, ring.codec.fp8_max)
    ring.append_one(torch.from_numpy(record), torch.from_numpy(key), step.span)
    return matrix(ring.keys)[0, : min(step.position + 1, ring.window)]


def attend(q: Row, keys: Row, sink: Row) -> Row:
    """q [H, D], keys [N, D], sink [H] -> [H, D]: `attention.attend` with no key hidden."""
    scores = product(q, keys.T) * np.float32(q.shape[1] ** -0.5)
    top = np.maximum(scores.max(1, keepdims=True), np.float32(EMPTY_MAX))
    p = np.exp(scores - top)
    total = p.sum(1, keepdims=True) + np.exp(sink[:, None] - top)
    return product(p, keys) / total


def _grouped(layer: Attention, out: Row) -> Row:
    """Heads [H, D] -> o_groups independent products -> [o_groups * o_lora]."""
    groups = layer.cfg.o_groups
    w = matrix(layer.wo_a.weight).reshape(groups, layer.cfg.o_lora_rank, -1)
    parts = zip(w, out.reshape(groups, -1), strict=True)
    return np.concatenate([product(weight, x) for weight, x in parts])
