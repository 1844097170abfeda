"""Bug reports of other engines about attention, compressor and index, run against this one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dslearn.model.indexer import candidate_blocks, select
from tests.support.models import EXACT, INVARIANT, build, prompt, small_config

WINDOW_ONLY = small_config(
    num_hidden_layers=1,
    compress_ratios=[0],
    kv_source_layer_ids=[],
    index_source_layer_ids=[],
    candidate_source_layer_id=None,
    engram_layer_ids=[],
    dspark_target_layer_ids=[],
)
RAW = small_config()
INF = float("inf")


def rows(*values: float) -> torch.Tensor:
    return torch.tensor([[list(values)]])


@pytest.mark.parametrize("length", [7, 8, 9, 16, 17])
@pytest.mark.parametrize("steps", [0, 1])
def test_the_window_is_8_tokens_with_the_query(length, steps):
    """mistral-inference#60, transformers#39408, mlxcel#405: off by one in one of the phases."""
    model, last = build(WINDOW_ONLY), length - 1
    ids = prompt(WINDOW_ONLY, length, 3)

    def final(tokens: torch.Tensor) -> torch.Tensor:
        state = model.new_state(1, length)
        if length > steps:
            logits = model.forward(tokens[:, : length - steps], state)
        for p in range(length - steps, length):
            logits = model.forward(tokens[:, p : p + 1], state)
        return logits[0, -1]

    want = final(ids)
    for marked in range(max(0, last - 9), last):
        other = ids.clone()
        other[0, marked] = (other[0, marked] + 1) % WINDOW_ONLY["vocab_size"]
        seen = (final(other) - want).abs().max() > 1e-6
        assert seen == (marked > last - 8), f"position {marked} from {last}"


@pytest.mark.parametrize("n", range(6))
def test_the_first_steps_after_any_prefill(n):
    """mlx-lm#1189, vllm-ascend#76: wrong at the first group boundary, or for a single token."""
    model, ids = build(RAW, INVARIANT), prompt(RAW, 8, 6)
    state = model.new_state(1, 8)
    if n:
        model.forward(ids[:, :n], state)
    for p in range(n, n + 2):
        want = model.forward(ids[:, : p + 1])[:, -1]
        assert torch.equal(model.forward(ids[:, p : p + 1], state)[:, 0], want), f"position {p}"


def test_one_token_of_ratio_2_has_no_entry_and_an_empty_selection():
    for raw in (RAW, small_config(candidate_source_layer_id=1)):
        for numerics in (EXACT, INVARIANT):
            model, trace = build(raw, numerics), {}
            ids = prompt(raw, 1)
            logits = model.forward(ids, model.new_state(1, 4), trace=trace)
            assert logits.isfinite().all()
            assert (trace["layers"][1]["topk"] == -1).all()
            assert torch.allclose(model.forward(ids), logits, atol=1e-5)


def test_entries_are_visible_once_their_group_is_complete():
    """A query at p sees floor((p + 1) / ratio) entries, its own group included when complete."""
    model, trace = build(small_config(index_topk=32, candidate_topk_blocks=32)), {}
    model.forward(prompt(RAW, 9), trace=trace)
    for layer, ratio in ((1, 2), (3, 1)):
        for p in range(9):
            chosen = trace["layers"][layer]["topk"][0, p]
            assert chosen[chosen >= 0].tolist() == list(range((p + 1) // ratio)), f"{layer} {p}"


def test_quality_does_not_change_until_there_are_more_entries_than_top_k():
    """mlx-lm#1443: just above top-k the selection must begin to matter, and not before."""
    ids = prompt(RAW, 12, 8)
    few, all_ = (
        build(small_config(index_topk=k, candidate_topk_blocks=99)).forward(ids) for k in (4, 99)
    )
    gap = (few - all_).abs().amax(-1)[0]
    # ratio 1 layers see 5 entries first at position 4; top-k 4 of 4 is everything
    assert (gap[:4] < 1e-5).all() and (gap[4:] > 1e-4).all(), gap


def test_candidates_bind_only_once_they_are_fewer_than_the_entries():
    ids = prompt(RAW, 14, 8)
    bound, free = (
        build(small_config(candidate_topk_blocks=n)).forward(ids) for n in (3, 99)
    )  # 3 blocks of 2 entries hold everything up to position 5
    gap = (bound - free).abs().amax(-1)[0]
    assert (gap[:6] < 1e-5).all() and (gap[6:] > 1e-4).any(), gap


def test_ties_go_to_the_lowest_index_and_minus_inf_is_nobody():
    """vllm#56749, aiter#4376, ATOM#1832, sglang#39648; torch.topk alone is not ordered by index."""
    same = torch.zeros(1, 1, 9)
    assert select(same, 3)[0, 0].tolist() == [0, 1, 2]
    assert select(rows(1, 0, 0, 0, 0, 0, 0, 0, 2), 4)[0, 0].tolist() == [0, 1, 2, 8]
    assert select(rows(0.0, -0.0, 0.0), 2)[0, 0].tolist() == [0, 1]
    assert select(rows(-INF, -3, -INF, -2), 3)[0, 0].tolist() == [1, 3, -1]
    assert select(rows(-INF, -INF), 2)[0, 0].tolist() == [-1, -1]
    assert select(torch.zeros(1, 1, 0), 2)[0, 0].tolist() == [-1, -1]


def test_k_above_the_number_of_entries():
    """native-sparse-attention-pytorch#18: k 8 of 3."""
    assert select(rows(5, -1, 7), 8)[0, 0].tolist() == [0, 1, 2, -1, -1, -1, -1, -1]


def test_candidate_blocks_keep_the_newest_and_break_ties_low():
    scores = torch.tensor([[[5.0, 0, 1, 1, 1, 0, -9]]])  # blocks of 2 score 5, 1, 1 and the newest
    seven = torch.tensor([[7]])

    def kept(keep: int) -> list[int]:
        mask = candidate_blocks(scores, seven, 2, keep)[0, 0]
        return mask.nonzero().flatten().tolist()

    assert kept(1) == [6] and kept(2) == [0, 1, 6] and kept(3) == [0, 1, 2, 3, 6]
    assert kept(99) == list(range(7))
    hidden = scores.masked_fill(torch.arange(7) >= 3, -INF)
    mask = candidate_blocks(hidden, torch.tensor([[3]]), 2, 99)[0, 0]
    assert mask.nonzero().flatten().tolist() == [0, 1, 2, 3], "no block that nothing is seen of"
    nothing = torch.full((1, 1, 4), -INF)
    assert not candidate_blocks(nothing, torch.tensor([[0]]), 2, 3).any()
    assert candidate_blocks(torch.zeros(1, 1, 0), torch.tensor([[0]]), 2, 3).shape == (1, 1, 0)


def test_a_reindex_layer_does_not_leave_its_candidates():
    """mlx-lm: with k 20 and 3 blocks of 4 the filter leaked."""
    raw = small_config(candidate_block_size=4, index_topk=20)
    trace: dict = {}
    build(raw).forward(prompt(raw, 30), trace=trace)
    owner, reader = (trace["layers"][layer]["topk"][0] for layer in (3, 4))
    for p in range(30):
        chosen = reader[p][reader[p] >= 0]
        blocks = set((chosen // 4).tolist())
        assert len(blocks) <= 3 and p // 4 in blocks, f"query {p} left its blocks: {chosen}"
        visible = min(p + 1, 20)
        assert (owner[p] >= 0).sum() == visible, "the source itself uses all scores"
    assert (reader[-1] >= 0).sum() == 10, "two full blocks and the newest with two entries"


def test_a_head_that_scores_below_zero_counts_as_zero():
    """mlx-lm#531: ReLU per head, then the weight (negative here), then the sum."""
    from dslearn.model.indexer import index_scores

    q = torch.tensor([[[[1.0, 0], [-1.0, 0]]]])  # heads that agree and disagree with the key
    keys, weights = torch.tensor([[[2.0, 0]]]), torch.tensor([[[3.0, 5.0]]])
    for numerics in (EXACT, INVARIANT):
        arith = build(RAW, numerics).arith
        assert index_scores(q, keys, weights, arith).item() == 6.0
        assert index_scores(q, keys, -weights, arith).item() == -6.0
        assert index_scores(-q, keys, weights, arith).item() == 10.0


@pytest.mark.parametrize("sink", [-80.0, 0.0, 3.0, 80.0])
def test_the_sink_joins_the_denominator_once(sink):
    """rocm-libraries#12227, cudnn-frontend#421: counted twice, or not at all.

    At position 0 a window-only head has one key, so its output is that key times a number that
    the sink alone decides: exp(s) / (exp(s) + exp(sink)).
    """
    model = build(WINDOW_ONLY)
    layer, seen = model.layers[0].attn, {}
    layer.attn_sink.fill_(sink)
    for name, module in (("k", layer.kv_norm), ("q", layer.wq_b)):
        module.register_forward_hook(lambda _, args, out, name=name: seen.update({name: out}))
    layer.wo_b.register_forward_pre_hook(lambda _, args: seen.update(z=args[0]))
    model.forward(torch.tensor([[5]]))
    k, q = seen["k"][0, 0].double(), seen["q"][0, 0].double().view(2, 32)
    score = q @ k * 32**-0.5
    share = 1 / (1 + torch.exp(sink - score))
    wo_a = layer.wo_a.weight.double().view(2, 16, 32)
    want = torch.cat([wo_a[g] @ (share[g] * k) for g in range(2)])
    assert torch.allclose(seen["z"][0, 0].double(), want, atol=1e-5)
    assert np.isfinite(want.numpy()).all()
