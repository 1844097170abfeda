"""The trained model's own keys, queries and selections, computed again by the kernels."""

from __future__ import annotations

import torch

import dslearn
from dslearn import backend
from dslearn.formats.records import Record
from dslearn.model.attention import Attention
from dslearn.model.state import window_codec
from dslearn.ops.kv_store import kv_store
from dslearn.ops.sparse_attn import sparse_attn


class Watch:
    """Stands in for Attention._attend: what the model computes, and the kernels' answers."""

    def __init__(self, original):
        self.original, self.differences, self.roles, self.records = original, [], set(), 0

    def __call__(self, layer, heads, plan, pools, chosen):
        (q, k), width = (part[0] for part in heads), layer.cfg.sliding_window
        before = pools.ring[0].index_select(0, plan.window.before)
        out = self.original(layer, heads, plan, pools, chosen)
        codec, start = window_codec(layer.cfg, layer.arith.numerics), int(plan.positions[0, 0])
        self.store(codec, pools.ring[0], k, start)
        window = torch.cat((before, codec.pack(k)))
        held = torch.arange(start - width + 1, start + len(q))
        far = () if chosen is None else (pools.entries[0], chosen[0])
        arguments = q, plan.positions[0], window, held.where(held >= 0, -1), layer.attn_sink
        with backend.use("sim"):
            y = sparse_attn(*(a.contiguous() for a in arguments), width, False, *far)
        self.differences.append(float((y - out[0][0]).abs().max() / out[0].abs().max()))
        self.roles.add((layer.ratio, len(q)))
        return out

    def store(self, codec, ring, k, start):
        """The rows that the model has just written, written once more by the kernel."""
        count, width = len(k), len(ring) - 1
        pool = torch.zeros_like(ring)
        stored = torch.arange(count) >= count - width
        slots = torch.where(stored, (start + torch.arange(count)) % width, width)
        with backend.use("sim"):
            kv_store(k.contiguous(), slots, stored, pool, "window", codec.fp8_max)
        assert torch.equal(pool[slots], ring[slots])
        assert pool.shape[1] == Record("window", k.shape[1]).stride
        self.records += int(stored.sum())


@torch.no_grad()
def test_tiny_attends_in_the_same_way(monkeypatch):
    watch = Watch(Attention._attend)
    monkeypatch.setattr(Attention, "_attend", lambda *arguments: watch(*arguments))
    model = dslearn.load("tiny")
    state = model.new_state(batch=1, max_len=64)
    ids = torch.arange(41) * 37 % 500
    for part in ids.split([35, 6]):  # a prompt longer than the window, a block of drafts
        model.forward(part[None], state)
    assert {tokens for _, tokens in watch.roles} == {35, 6}
    assert {ratio for ratio, _ in watch.roles} == {0, 1, 2}
    assert watch.records == 6 * (32 + 6)
    assert max(watch.differences) < 5e-6, watch.differences
