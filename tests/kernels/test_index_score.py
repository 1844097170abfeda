"""index_score against loops over decoded bytes, the model's index_scores and its twin."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn import backend
from dslearn.formats.records import Record
from dslearn.formats.rows import fake_fp4
from dslearn.kernels.index_score import index_score
from dslearn.model.arith import Arith
from dslearn.model.indexer import index_scores
from dslearn.numerics import Numerics
from dslearn.ops.index_score import index_score as op
from dslearn.ops.index_score import reference
from tests.support import records
from tests.support.kernels import bits, matrix, recorded

SIZES = [(1, 1, 32, 1), (2, 3, 64, 5), (6, 32, 128, 130), (5, 16, 32, 515), (1, 32, 64, 1025)]


def arguments(tokens, heads, dim, entries, dtype=torch.float32):
    q = matrix(1, tokens * heads, dim, dtype).view(tokens, heads, dim)
    weights = matrix(2, tokens, heads).bfloat16().float()
    return q, weights, records.packed(3, entries, dim, "index")


def scored(q, weights, keys, quantise=True, round_terms=False, cores=1):
    return index_score[cores](
        q=q, weights=weights, keys=keys, quantise=quantise, round_terms=round_terms
    )


def check_near(y, expected):
    """fp32 sums of up to 128 x 128 products, in any order."""
    expected = torch.as_tensor(expected).double()
    assert (y.double() - expected).abs().max() <= 1e-6 * max(1.0, float(expected.abs().max()))


def by_hand(q, weights, keys):
    """[T, N] in float64, head by head."""
    key = records.values(keys.numpy(), "index", q.shape[2])
    wide = q.double().numpy()
    out = np.zeros((len(q), len(key)))
    for h in range(q.shape[1]):
        out += weights[:, h, None].double().numpy() * np.maximum(wide[:, h] @ key.T, 0)
    return out


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_loops_in_double_precision_say_the_same(size, dtype):
    q, weights, keys = arguments(*size, dtype)
    y = scored(q, weights, keys, quantise=False)
    check_near(y, by_hand(q, weights, keys))
    assert size == SIZES[0] or y.abs().max() > 0.1


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("round_terms", [False, True])
@pytest.mark.parametrize("quantise", [False, True])
def test_equals_its_twin(size, quantise, round_terms):
    q, weights, keys = arguments(*size)
    y = scored(q, weights, keys, quantise, round_terms)
    expected = reference(q, weights, keys, quantise, round_terms)
    if round_terms:
        assert (y == expected).float().mean() > 0.99
        assert torch.equal(y, y.bfloat16().float())
    else:
        check_near(y, expected)


@pytest.mark.parametrize("arithmetic", ["fp32", "bf16"])
def test_the_model_scores_in_the_same_way(arithmetic):
    q, weights, keys = arguments(4, 8, 64, 40, torch.bfloat16)
    arith = Arith(Numerics(arithmetic=arithmetic))
    known = Record("index", 64).unpack(keys)[None]
    expected = index_scores(arith.index_queries(q.float()[None]), known, weights[None], arith)[0]
    y = scored(q, weights, keys, True, arithmetic == "bf16")
    if arithmetic == "bf16":
        assert (y == expected).float().mean() > 0.99
    else:
        check_near(y, expected)


def test_relu_comes_before_a_negative_weight():
    key = torch.ones(2, 32)
    key[1] = -1
    keys = Record("index", 32).pack(key)
    q = torch.ones(1, 2, 32)
    q[0, 1] = -1
    y = scored(q, torch.tensor([[-2.0, 3.0]]), keys)
    assert y.tolist() == [[-64.0, 96.0]]


def test_quantised_queries_are_what_their_record_holds():
    q, weights, keys = arguments(3, 4, 64, 20)
    y = scored(q, weights, keys, quantise=True)
    same = scored(fake_fp4(q, 32), weights, keys, quantise=False)
    check_near(y, same)
    assert (y - scored(q, weights, keys, quantise=False)).abs().max() > 0.1


def test_whole_numbers_are_summed_exactly():
    """Codes and weights of few bits: every order of the sum gives the same."""
    q = torch.from_numpy(np.random.default_rng(4).integers(-2, 3, (5, 32, 32))).float()
    weights = torch.from_numpy(np.random.default_rng(5).integers(-3, 4, (5, 32))).float()
    keys = Record("index", 32).pack(q[0] * 2)
    for quantise in (False, True):
        y = scored(q, weights, keys, quantise)
        exact = by_hand(fake_fp4(q, 32) if quantise else q, weights, keys)
        assert np.array_equal(y.numpy(), exact) and np.abs(exact).max() > 10


@pytest.mark.parametrize("entries", [1, 2, 3, 1023, 1024, 1025])
def test_two_cores_give_the_bytes_of_one(entries):
    q, weights, keys = arguments(2, 4, 32, entries)
    one, two = (scored(q, weights, keys, cores=cores) for cores in (1, 2))
    assert torch.equal(bits(one), bits(two))


def test_an_entry_does_not_depend_on_its_neighbours():
    q, weights, keys = arguments(6, 32, 64, 600)
    whole = scored(q, weights, keys)
    for j in (0, 299, 300, 599):
        alone = scored(q, weights, keys[j : j + 1].contiguous())
        check_near(alone[:, 0], whole[:, j])


def test_a_query_does_not_depend_on_the_other_rows():
    q, weights, keys = arguments(7, 32, 32, 100)
    whole = scored(q, weights, keys)
    for t in (0, 3, 4, 6):
        alone = scored(q[t : t + 1].contiguous(), weights[t : t + 1].contiguous(), keys)
        check_near(alone[0], whole[t])


def test_records_are_read_once():
    q, weights, keys = arguments(6, 32, 128, 700)
    (core,) = recorded(lambda: scored(q, weights, keys))
    read = [i for one in core if one.name == "dma_copy" for i in one.inputs if i.dtype == "uint8"]
    assert sum(i.nbytes for i in read) == keys.numel()


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 7), st.integers(1, 40), st.integers(1, 4), st.integers(1, 200))
def test_any_size(tokens, heads, blocks, entries):
    q, weights, keys = arguments(tokens, heads, 32 * blocks, entries)
    y = scored(q, weights, keys, quantise=False, cores=2)
    check_near(y, by_hand(q, weights, keys))


def test_the_operation_and_what_it_refuses():
    q, weights, keys = arguments(2, 3, 64, 20)
    with backend.use("sim"):
        y = op(q, weights, keys, True, False)
        assert op(q, weights, keys[:0], True, False).shape == (2, 0)
    check_near(y, reference(q, weights, keys, True, False))
    with pytest.raises(AssertionError, match="H and I up to 128"):
        scored(*arguments(1, 129, 32, 2))
