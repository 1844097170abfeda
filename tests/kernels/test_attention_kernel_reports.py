"""Bug reports of other engines about records, paging, attention and index, run against kernels.

tests/model/test_attention_reports.py and test_cache_reports.py have them for the model.
"""

from __future__ import annotations

import math

import pytest
import torch

from dslearn.formats.records import Record
from dslearn.kernels.compress_pool import compress_pool
from dslearn.kernels.index_score import index_score
from dslearn.kernels.index_topk import index_topk
from dslearn.kernels.kv_store import kv_store
from dslearn.kernels.sparse_attn import sparse_attn
from tests.support.attention import by_hand, case
from tests.support.kernels import bits, matrix


def attended(c, cores=2):
    return sparse_attn[cores](*c.columns())


def chosen(scores, counts, k, allowed=None):
    column = torch.tensor(counts).int()[:, None]
    return index_topk[2](*[scores, column, k] + ([] if allowed is None else [allowed])).tolist()


@pytest.mark.parametrize("slot", [-1, 4, 2_000_000])
@pytest.mark.parametrize("valid", [0.0, 1.0])
def test_a_slot_outside_the_pool_reaches_no_block(slot, valid):
    """vllm#43810, #43869: slot -1 of a padding row wrapped to the last block."""
    pool = torch.full((4, 33), 7, dtype=torch.uint8)
    slots, alive = torch.tensor([[0], [slot]]).int(), torch.tensor([[1.0], [valid]])
    x = matrix(1, 2, 32)
    kv_store[2](x=x, slots=slots, valid=alive, pool=pool, kind="window")
    assert torch.equal(pool[:1], Record("window", 32).pack(x[:1])) and (pool[1:] == 7).all()


@pytest.mark.parametrize("byte", [0, 255])
@pytest.mark.parametrize("blocks", [1, 4])
def test_the_sink_counts_once_over_any_number_of_blocks_of_keys(blocks, byte):
    """rocm-libraries#12227, #12229, cudnn-frontend#421: counted per split, or not at all.

    The same visible keys, spread over blocks of 128 by slots that hold nothing, or NaN.
    """
    c = case(2, 3, 64, 8, 5)
    c = c.but(sink=torch.tensor([-2.0, 0.0, 4.0]))
    rows = torch.arange(len(c.window)) * (128 * blocks - 1) // (len(c.window) - 1)
    window = torch.full((128 * blocks, c.window.shape[1]), byte, dtype=torch.uint8)
    held = torch.full((128 * blocks,), -1)
    window[rows], held[rows] = c.window, c.held
    y = attended(c.but(window=window, held=held))
    torch.testing.assert_close(y.double(), torch.from_numpy(by_hand(c)), rtol=0, atol=3e-6)


@pytest.mark.parametrize("length", [7, 8, 9, 16, 17])
def test_the_window_is_8_keys_with_the_querys_own_wherever_the_ring_wraps(length):
    """mistral-inference#60, transformers#39408, vllm-gaudi#1395, executorch#21857: t-8 and t-7."""
    c, last = case(1, 2, 32, start=length - 1), length - 1
    records = Record("window", 32).pack(matrix(8, length, 32))
    ring = torch.zeros(8, records.shape[1], dtype=torch.uint8)
    held = torch.full((8,), -1)
    for p in range(length):
        ring[p % 8], held[p % 8] = records[p], p
    y = attended(c.but(window=ring, held=held))
    whole = c.but(window=records, held=torch.arange(length))
    torch.testing.assert_close(y.double(), torch.from_numpy(by_hand(whole)), rtol=0, atol=3e-6)
    for marked in range(max(0, last - 9), length):
        other = records.clone()
        other[marked] = Record("window", 32).pack(matrix(9, 1, 32) + 2)[0]
        seen = not torch.equal(attended(whole.but(window=other)), attended(whole))
        assert seen == (marked > last - 8), f"position {marked} from {last}"


def test_nan_in_unused_slots_does_not_poison_live_rows():
    """sglang#32477, vllm#13922: 0 * NaN; masks select, they do not multiply."""
    c = case(3, 2, 64, 8, 5)
    held = c.held.where(c.held % 2 == 0, -1)
    clean, poisoned = c.window.clone(), c.window.clone()
    clean[held < 0], poisoned[held < 0] = 0, 255
    one, two = (attended(c.but(window=w, held=held)) for w in (clean, poisoned))
    assert torch.equal(bits(one), bits(two)) and two.isfinite().all() and two.any()


def test_fewer_visible_entries_than_k_leave_minus_1_and_ties_go_low():
    """native-sparse-attention-pytorch#18: k 8 of 3; vllm#56749, aiter#4376, ATOM#1832: ties."""
    assert chosen(torch.tensor([[5.0, -1, 7]]), [3], 8) == [[0, 1, 2] + [-1] * 5]
    assert chosen(torch.zeros(2, 9), [9, 2], 3) == [[0, 1, 2], [0, 1, -1]]
    # What is not visible scores high: it must not compete.
    assert chosen(torch.tensor([[0.0, -2, 9, 9, 9]]), [2], 3) == [[0, 1, -1]]


def test_candidates_hold_however_large_k_is():
    """mlx-lm: k 20 and 3 candidate blocks of 4 leaked entries of other blocks."""
    allowed = torch.tensor([[0, 1, 0, 0, 1, 0, 0, 1]], dtype=torch.uint8)
    (row,) = chosen(torch.arange(30.0)[None], [30], 20, allowed)
    assert row == [4, 5, 6, 7, 16, 17, 18, 19, 28, 29] + [-1] * 10


def test_a_head_that_scores_below_zero_counts_as_zero():
    """mlx-lm#531, 1Cat-vLLM#250: ReLU per head, then its weight, then the sum over heads."""
    key = torch.ones(1, 32) * 2
    keys = Record("index", 32).pack(key)
    q = torch.stack((torch.ones(32), -torch.ones(32)))[None]
    for sign, expected in ((1, 3 * 64.0), (-1, 5 * 64.0)):
        weights = torch.tensor([[3.0, 5.0]])
        y = index_score(q=sign * q, weights=weights, keys=keys, quantise=True, round_terms=False)
        assert y.item() == expected
        y = index_score(q=sign * q, weights=-weights, keys=keys, quantise=True, round_terms=False)
        assert y.item() == -expected


@pytest.mark.parametrize("before", range(6))
def test_one_token_after_any_prefill_pools_as_in_one_call(before):
    """vllm-ascend#76, #77, #132, mlx-lm#1189: a count or an open group was lost."""
    u, g = matrix(3, before + 2, 8)[None], matrix(4, before + 2, 8)[None]
    weight = matrix(5, 1, 8) + 2

    def pooled(cuts):
        waiting = torch.zeros(1, 8), torch.full((1, 8), -math.inf)
        found, start = [], 0
        for count in cuts:
            part = (x[:, start : start + count].contiguous() for x in (u, g))
            at, lengths = torch.tensor([[start]]).int(), torch.tensor([[count]]).int()
            u_part, g_part = part
            latent = compress_pool[2](u_part, weight, 1e-20, False, g_part, at, lengths, *waiting)
            found.append(latent[0, : (start + count) // 2 - start // 2])
            start += count
        return torch.cat(found), waiting

    cuts = [before, 1, 1] if before else [1, 1]
    (one, left), (steps, kept) = pooled([before + 2]), pooled(cuts)
    assert len(one) == (before + 2) // 2
    torch.testing.assert_close(steps, one, rtol=0, atol=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(left, kept, strict=True))
