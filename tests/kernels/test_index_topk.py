"""index_topk and candidate_blocks against sorting by hand and the model's functions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn import backend
from dslearn.kernels import index_topk as kernels
from dslearn.kernels.index_topk import candidate_blocks, index_topk
from dslearn.model import indexer
from dslearn.ops import index_topk as ops
from tests.support.kernels import recorded


def chosen(scores, counts, k, allowed=None, cores=1):
    column = torch.as_tensor(counts).int()[:, None]
    return index_topk[cores](*[scores, column, k] + ([] if allowed is None else [allowed]))


def blocks(scores, counts, size, keep, cores=1):
    column = torch.as_tensor(counts).int()[:, None]
    return candidate_blocks[cores](scores=scores, counts=column, size=size, keep=keep)


def by_hand(scores, counts, k, allowed=None):
    """Python's sort by (-score, index), row by row."""
    size = 1 if allowed is None else -(-scores.shape[1] // allowed.shape[1])
    rows = []
    for t, row in enumerate(scores.tolist()):
        seen = [j for j in range(counts[t]) if allowed is None or allowed[t, j // size]]
        best = sorted(sorted(seen, key=lambda j: (-row[j], j))[:k])
        rows.append(best + [-1] * (k - len(best)))
    return torch.tensor(rows, dtype=torch.int32)


def draw(seed, tokens, entries, ties=True):
    rng = np.random.default_rng(seed)
    scores = rng.integers(-3, 4, (tokens, entries)) if ties else rng.normal(size=(tokens, entries))
    counts = rng.integers(0, entries + 1, tokens)
    counts[0] = entries
    return torch.from_numpy(scores).float(), counts.tolist()


@pytest.mark.parametrize("entries", [1, 7, 8, 9, 100])
@pytest.mark.parametrize("k", [1, 7, 8, 9, 16, 17])
@pytest.mark.parametrize("ties", [False, True])
def test_pythons_sort_says_the_same(entries, k, ties):
    scores, counts = draw(1, 4, entries, ties)
    assert torch.equal(chosen(scores, counts, k), by_hand(scores, counts, k))


@settings(max_examples=25, deadline=None)
@given(
    tokens=st.integers(1, 19), entries=st.integers(1, 60), k=st.integers(1, 70),
    size=st.integers(1, 9), keep=st.integers(1, 9), seed=st.integers(0, 99),
)  # fmt: skip
def test_any_size_with_ties_and_candidates(tokens, entries, k, size, keep, seed):
    scores, counts = draw(seed, tokens, entries)
    size = -(-entries // -(-entries // size))  # what index_topk makes of n blocks
    allowed = blocks(scores, counts, size, keep, cores=2)
    assert torch.equal(allowed, ops.blocks_reference(scores, torch.tensor(counts), size, keep))
    y = chosen(scores, counts, k, allowed, cores=2)
    assert torch.equal(y, by_hand(scores, counts, k, allowed))
    assert torch.equal(y, ops.reference(scores, torch.tensor(counts), k, allowed))


def test_the_model_chooses_the_same():
    scores, counts = draw(2, 6, 50)
    visible = torch.tensor(counts)[None]
    hidden = scores.masked_fill(torch.arange(50) >= visible[0][:, None], -torch.inf)[None]
    mask = indexer.candidate_blocks(hidden, visible, 5, 3)[0]
    allowed = blocks(scores, counts, 5, 3)
    assert torch.equal(allowed.repeat_interleave(5, 1).bool(), mask)
    filtered = hidden.masked_fill(~mask, -torch.inf)
    for k in (4, 16, 64):
        assert torch.equal(chosen(scores, counts, k).long(), indexer.select(hidden, k)[0])
        assert torch.equal(
            chosen(scores, counts, k, allowed).long(), indexer.select(filtered, k)[0]
        )


@pytest.fixture(params=[0, 2**62], ids=["searched", "in rounds"])
def way(request, monkeypatch):
    """Both ways to the k best, whatever the size."""
    monkeypatch.setattr(kernels, "SEARCH", request.param)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("size", [(1, 17, 16), (3, 100, 9), (9, 130, 77), (2, 600, 5)])
@pytest.mark.parametrize("kind", ["ties", "normal", "zeros of both signs", "all exponents"])
def test_both_ways_give_the_lowest_of_the_best(size, kind):
    tokens, entries, k = size
    scores, counts = draw(7, tokens, entries, ties=kind == "ties")
    if kind == "zeros of both signs":
        scores[:, ::3], scores[:, 1::3] = -0.0, 0.0
    if kind == "all exponents":
        scores *= 2.0 ** torch.from_numpy(np.random.default_rng(8).integers(-120, 120, entries))
    for cores in (1, 2):
        assert torch.equal(chosen(scores, counts, k, cores=cores), by_hand(scores, counts, k))


def test_a_search_counts_33_times_and_no_round_is_made():
    scores, counts = draw(9, 2, 700)
    (core,) = recorded(lambda: chosen(scores, counts, 300))
    names = [one.name for one in core]
    assert names.count("tensor_scalar_reduce") == 33 + 2 and "max8" not in names
    assert torch.equal(chosen(scores, counts, 300), by_hand(scores, counts, 300))


def test_neighbours_in_fp32_are_told_apart():
    for base in (1.0, -1.0, 3.0e38, -2e-38):
        bits = torch.tensor(base).view(torch.int32) + torch.arange(600).flip(0).int()
        scores = bits.view(torch.float32)[None]
        assert scores.isfinite().all() and scores.unique().numel() == 600
        assert torch.equal(chosen(scores, [600], 300), by_hand(scores, [600], 300))


def test_equal_scores_go_to_the_lowest_entries():
    y = chosen(torch.zeros(2, 40), [40, 13], 20)
    assert y[0].tolist() == list(range(20)) and y[1].tolist() == [*range(13), *[-1] * 7]


def test_a_tie_at_the_border_takes_the_lowest():
    scores = torch.tensor([[1.0, 5, 1, 5, 1, 5, 1, 5, 1, 5, 1, 5]])
    assert chosen(scores, [12], 9).tolist() == [[0, 1, 2, 3, 4, 5, 7, 9, 11]]


def test_nothing_is_visible():
    scores, _ = draw(3, 3, 20)
    assert (chosen(scores, [0, 0, 0], 5) == -1).all()
    assert not blocks(scores, [0, 0, 0], 4, 3).any()
    assert (chosen(scores, [20, 20, 20], 5, torch.zeros(3, 5, dtype=torch.uint8)) == -1).all()


def test_negative_scores_and_extremes_are_scores():
    scores = torch.tensor([[-3.0e38, -1.0, 3.0e38, -0.0, 0.0, 1e-45, -1e-45, -2.0, -5.0]])
    assert chosen(scores, [9], 8).tolist() == [[1, 2, 3, 4, 5, 6, 7, 8]]
    assert chosen(scores, [9], 9).tolist() == [[*range(9)]]


def test_the_newest_block_always_stays():
    scores = torch.arange(32.0).flip(0)[None].repeat(4, 1)
    kept = blocks(scores, [32, 17, 16, 1], 8, 2)
    assert kept.tolist() == [[1, 0, 0, 1], [1, 0, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]]


def test_a_block_counts_as_its_best_visible_entry():
    scores = torch.zeros(1, 16)
    scores[0, 5], scores[0, 10] = 1.0, 2.0
    assert blocks(scores, [16], 4, 2).tolist() == [[0, 0, 1, 1]]
    assert blocks(scores, [10], 4, 2).tolist() == [[0, 1, 1, 0]]


@pytest.mark.parametrize("tokens", [1, 2, 3, 8, 9, 17])
def test_two_cores_give_the_bytes_of_one(tokens):
    scores, counts = draw(4, tokens, 30)
    assert torch.equal(chosen(scores, counts, 11, cores=1), chosen(scores, counts, 11, cores=2))
    one, two = (blocks(scores, counts, 4, 3, cores) for cores in (1, 2))
    assert torch.equal(one, two) and one.any()


def test_a_round_for_every_eight():
    scores, counts = draw(5, 2, 200)
    (core,) = recorded(lambda: chosen(scores, counts, 20))
    names = [one.name for one in core]
    assert names.count("max8") == names.count("nc_match_replace8") == 3


@pytest.mark.parametrize("name", ["cpu", "sim"])
def test_of_no_entries_none_is_chosen_and_of_no_queries_nothing(name):
    with backend.use(name):
        none = ops.index_topk(torch.zeros(2, 0), torch.zeros(2).int(), 3)
        no_query = ops.index_topk(torch.zeros(0, 9), torch.zeros(0).int(), 3)
        kept = ops.candidate_blocks(torch.zeros(2, 0), torch.zeros(2).int(), 4, 2)
    assert none.tolist() == [[-1] * 3] * 2 and none.dtype == torch.int32
    assert no_query.shape == (0, 3) and kept.shape == (2, 0)


def test_the_operations_take_the_kernels_on_sim():
    scores, counts = draw(6, 3, 20)
    count = torch.tensor(counts)
    with backend.use("sim"):
        kept = ops.candidate_blocks(scores, count, 4, 2)
        y = ops.index_topk(scores, count, 5, kept.bool())
    assert torch.equal(kept, ops.blocks_reference(scores, count, 4, 2))
    assert torch.equal(y, ops.reference(scores, count, 5, kept)) and (y >= 0).any()
