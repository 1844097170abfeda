"""Each part of the decode step beside its torch form, on random numbers.

Sums run in another order: numbers agree to fp32 rounding; selections, masks and hashes are equal.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.formats import rows
from dslearn.model import attention, hyper, indexer, rope
from dslearn.model.arith import Arith, stable_topk
from dslearn.model.linear import Input
from dslearn.model.step import attention as step_attention
from dslearn.model.step import engram, entries, experts, parts, streams
from dslearn.numerics import Numerics
from tests.support.models import build, prompt, small_config

RAW = small_config()
ARITH = Arith(Numerics(activations=False))
SEEDS = st.integers(0, 2**32 - 1)


def normal(seed, *shape, width=1.0):
    return np.random.default_rng(seed).normal(0, width, shape).astype(np.float32)


def close(got, want, bound=1e-6):
    want = np.asarray(want)
    assert got.shape == want.shape
    assert np.abs(got - want).max(initial=0) <= bound * max(1, np.abs(want).max(initial=0))
    return True


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, streams_=st.integers(1, 5), rounds=st.integers(1, 20))
def test_sinkhorn(seed, streams_, rounds):
    logits = normal(seed, streams_, streams_, width=4)
    wide = torch.from_numpy(logits).double().requires_grad_()
    want = hyper.sinkhorn(wide, rounds, 1e-6).detach()
    assert close(streams.sinkhorn(logits, rounds, 1e-6), want)


def test_sinkhorn_keeps_every_eps():
    off = np.full((3, 3), -100, np.float32)
    np.fill_diagonal(off, 0)
    one = streams.sinkhorn(off, 1, 1e-2)
    assert np.allclose(one[0, 1], 0.01 / (1.01 + 0.02 + 0.01))
    assert np.allclose(one[0, 0], 1.01 / (1.01 + 0.02 + 0.01))


def test_coefficients():
    layer = build(RAW).layers[0].hc_attn
    layer.hc_eps = 0.125  # where 1e-6 would not show
    h = normal(8, 3, 32)
    want = layer(torch.from_numpy(h)[None])
    assert all(
        close(got, w[0]) for got, w in zip(streams.coefficients(layer, h), want, strict=True)
    )


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, count=st.integers(1, 7), inverse=st.booleans(), position=st.integers(0, 5000))
def test_rotate(seed, count, inverse, position):
    table = rope.RopeTable(6, 10000.0, None)
    x = normal(seed, count, 9)
    turn = table.turn(position)
    cos, sin = table.at(torch.tensor(position))
    want = rope.rotate(torch.from_numpy(x), cos, sin, inverse=inverse)
    got = x.copy()
    parts.rotate(got, turn.conj() if inverse else turn)
    assert close(got, want) and np.array_equal(got[:, :3], x[:, :3])


@settings(max_examples=60, deadline=None)
@given(
    scores=st.lists(st.sampled_from([-1.5, -0.0, 0.0, 1.0, 2.0]), max_size=20), k=st.integers(1, 9)
)
def test_best_breaks_ties_like_stable_topk(scores, k):
    x = np.array(scores, np.float32)
    assert np.array_equal(parts.best(x, k), stable_topk(torch.from_numpy(x), k))


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, n=st.integers(0, 40), block=st.integers(1, 8), keep=st.integers(1, 5))
def test_candidate_blocks(seed, n, block, keep):
    scores = np.random.default_rng(seed).integers(-3, 4, n).astype(np.float32)
    wanted = indexer.candidate_blocks(
        torch.from_numpy(scores)[None, None], torch.tensor([[n]]), block, keep
    )
    assert np.array_equal(entries.candidate_blocks(scores, block, keep), wanted[0, 0])


@pytest.mark.parametrize("caches", [True, False])
def test_index_scores(caches):
    model = build(RAW, Numerics(activations=False, caches=caches))
    source = model.layers[1].attn.indexer
    qr, x, keys = normal(1, 128), normal(2, 32), normal(3, 9, source.wk.weight.shape[0])
    qr = qr[: source.wq_b.weight.shape[1]]
    turn = model.tables["compress"].turn(11)
    cos, sin = (part[None, None] for part in model.tables["compress"].at(torch.tensor(11)))
    q, w = source.queries(
        torch.from_numpy(qr)[None, None], torch.from_numpy(x)[None, None], cos, sin
    )
    q = source.arith.index_queries(q)
    want = indexer.index_scores(q, torch.from_numpy(keys)[None], w, source.arith)[0, 0]
    assert close(entries.index_scores(source, qr, x, keys, turn), want, 1e-5)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, heads=st.integers(1, 4), n=st.integers(1, 40), width=st.sampled_from([1, 30]))
def test_attend(seed, heads, n, width):
    q, keys = normal(seed, heads, 8, width=width), normal(seed + 1, n, 8)
    sink = normal(seed + 2, heads)
    given_ = [torch.from_numpy(part)[None, None] for part in (q, keys)]
    hidden = torch.zeros(1, 1, n, dtype=torch.bool)
    want = attention.attend(*given_, hidden, torch.from_numpy(sink), ARITH)[0, 0]
    assert close(step_attention.attend(q, keys, sink), want, 1e-5)


@pytest.mark.parametrize("shape", [(700, 200), (3, 5), (1, 1)], ids=str)
def test_products_large_and_small(shape):
    a, b = normal(1, *shape), normal(2, shape[1], 3)
    assert close(parts.product(a, b), a.astype(np.float64) @ b, 1e-5)
    assert close(parts.product(a, b[:, 0]), a.astype(np.float64) @ b[:, 0], 1e-5)


@pytest.mark.parametrize("stored", [(True, True), (False, False), (True, False)], ids=str)
def test_fused_products_follow_each_linears_storage(stored):
    attn = build(RAW, Numerics()).layers[0].attn
    attn.wq_a.stored_quantised, attn.wkv.stored_quantised = stored
    x = normal(4, 32)
    want = torch.cat(attn.down(Input(torch.from_numpy(x), attn.arith)), -1)
    assert close(parts.fused(attn.down, x), want)


@pytest.mark.parametrize("wanted", [None, True, False])
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("fp8_max", [448, 224])
def test_inputs_are_quantised_when_the_switch_or_the_storage_says_so(wanted, stored, fp8_max):
    arith = Arith(Numerics(activations=wanted, fp8_max=fp8_max))
    x = normal(5, 64) * 2.0 ** -np.arange(64, dtype=np.float32)  # down to the subnormals
    got = parts.seen(x, arith, stored)
    assert np.array_equal(got, arith.activations(torch.from_numpy(x), stored))
    rounded = rows.fake_fp8(torch.from_numpy(x), 32, fp8_max).numpy()
    assert np.array_equal(got, rounded if (stored if wanted is None else wanted) else x)


@pytest.mark.parametrize(
    "change", [{}, {"num_experts_per_tok": 1}, {"norm_topk_prob": False}, {"gate_temp": 2.0}]
)
def test_experts(change):
    moe = build(small_config(**change)).layers[2].ffn
    x = normal(6, 32, width=3)
    want, ids, weights = moe(torch.from_numpy(x)[None])
    got, routes, shares = experts.experts(moe, x)
    assert np.array_equal(routes, ids[0]) and close(shares, weights[0])
    assert close(got, want[0], 1e-5)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, position=st.integers(0, 9))
def test_engram_rows_are_the_same_integers(seed, position):
    model = build(RAW)
    hashing, rng = model.engram_hash, np.random.default_rng(seed)
    state = model.new_state(1, 12)
    known = torch.from_numpy(rng.choice([-1, 3, 7, 59], position))  # -1: an image slot
    state.history[0, hashing.reach : hashing.reach + position] = known
    token = int(rng.integers(0, 64))
    got = engram.table_rows(hashing, token, position, state)
    history = state.history[:, position : position + hashing.reach + 1]
    assert history[0, -1] == hashing.token_map[token], "the token joined the history"
    assert np.array_equal(got, hashing.rows(history)[0, 0])


def test_engram_gates_and_streams():
    layer = build(RAW).layers[1].engram
    h, ids = normal(7, 3, 32), prompt(RAW, layer.embed.weight.shape[0] and 3, 1)[0].numpy() % 20
    rows = layer.look_up(torch.from_numpy(ids)[None])
    want, gates = layer(torch.from_numpy(h)[None], rows, None)
    got, mine = engram.engram(layer, h, ids)
    assert close(mine, gates[0]) and close(got, want[0])
