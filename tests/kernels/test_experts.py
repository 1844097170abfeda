"""experts against its twin and the model's: lists, weights, exact sums, cores, time and bytes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn import backend
from dslearn.formats import e2m1, inputs_first
from dslearn.kernels.experts import experts
from dslearn.model.moe import clamped_swiglu
from dslearn.ops import experts as ops
from dslearn.ops.experts import reference
from dslearn.sim import cost
from tests.support.kernels import bits, dma_bytes, matrix, recorded
from tests.support.weights import fp4, of_fp4, whole_rows

LIMIT = 2.0
SIZES = [(1, 128, 64), (3, 160, 96), (6, 320, 224), (64, 64, 32)]


def weights(number, hidden, inner):
    """For each expert w1, w3, w2 as in a checkpoint."""
    return [
        (fp4(3 * e, inner, hidden), fp4(3 * e + 1, inner, hidden), fp4(3 * e + 2, hidden, inner))
        for e in range(number)
    ]


def placed(all_weights):
    """Widened and stacked."""
    each = [inputs_first.routed_expert(*three) for three in all_weights]
    return [torch.stack(part) for part in zip(*each, strict=True)]


def routes(number, rows, active, seed=0):
    """order, count and router's weights, zero where a row does not use an expert."""
    rest = [e for e in range(number) if e not in active]
    order = torch.tensor([*active, *rest], dtype=torch.int32).unsqueeze(-1)
    router = matrix(seed, number, rows).abs() + 0.25
    router[rest] = 0
    router[:, 1::2] *= (torch.arange(number) % 2).unsqueeze(-1)
    return order, torch.tensor([[len(active)]], dtype=torch.int32), router


def by_hand(x, all_weights, active, router, limit=LIMIT):
    """The sum over active experts in double precision; and what adds up to it."""
    y, terms = torch.zeros(2, *x.shape, dtype=torch.float64)
    for e in active:
        w1, w3, w2 = map(of_fp4, all_weights[e])
        hidden = clamped_swiglu(x.double() @ w1.T, x.double() @ w3.T, limit)
        hidden = (hidden * router[e].double().unsqueeze(-1)).to(torch.bfloat16).double()
        y, terms = y + hidden @ w2.T, terms + hidden.abs() @ w2.abs().T
    return y, terms


def near(y, exact, size):
    """One rounding of y, and one of hidden values at a boundary: 2^-8 of half of the terms."""
    return bool(((y.double() - exact).abs() <= 2.0**-8 * exact.abs() + 2.0**-9 * size).all())


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("active", [[], [2], [0, 3], [1, 2, 3], [0, 1, 2, 3]], ids=str)
def test_equals_the_model_s_experts_and_the_twin(size, active):
    rows, hidden, inner = size
    x, all_weights = matrix(1, rows, hidden, torch.bfloat16), weights(4, hidden, inner)
    order, count, router = routes(4, rows, active)
    arguments = (x, *placed(all_weights), order, count, router, LIMIT)
    y, (exact, terms) = experts(*arguments), by_hand(x, all_weights, active, router)
    assert near(y[:, :hidden], exact, terms) and not y[:, hidden:].any()
    assert y[0].any() == bool(active), "no expert gives zeros, written ones"
    assert (y == reference(*arguments)).float().mean() > 0.98


def test_every_sum_is_exact():
    """Gates beyond the limit, where silu is the identity in fp32; whole numbers everywhere else."""
    rows, hidden, inner = 3, 96, 64
    x = torch.ones(rows, hidden).to(torch.bfloat16)
    x[1, ::2] = 2
    all_weights = []
    for e in range(3):
        ones = torch.full((inner, hidden // 2), 0x22, dtype=torch.uint8)  # e2m1 code 2 is 1
        some = e2m1.pack(e2m1.encode(whole_rows(e, inner, hidden)))
        last = e2m1.pack(e2m1.encode(whole_rows(9 + e, hidden, inner)))
        scales = [torch.full((n, k // 32), 127 + e, dtype=torch.uint8)
                  for n, k in ((inner, hidden), (hidden, inner))]  # fmt: skip
        all_weights.append(((ones, scales[0]), (some, scales[0]), (last, scales[1])))
    order, count, router = routes(3, rows, [0, 2])
    router = (router > 0).float() * 0.5
    y = experts(x, *placed(all_weights), order, count, router, 32.0)
    exact = torch.zeros(rows, hidden, dtype=torch.float64)
    for e in (0, 2):
        up = (x.double() @ of_fp4(all_weights[e][1]).T).clamp(-32, 32)
        exact += router[e].double().unsqueeze(-1) * 32 * up @ of_fp4(all_weights[e][2]).T
    assert torch.equal(y[:, :hidden], exact.to(torch.bfloat16)) and y.abs().max() > 100


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 7), st.integers(1, 6), st.integers(1, 5), st.sets(st.integers(0, 2)))
def test_any_size_and_set(rows, blocks, inner_blocks, active):
    hidden, inner, active = 32 * blocks, 32 * inner_blocks, sorted(active)
    x, all_weights = matrix(2, rows, hidden, torch.bfloat16), weights(3, hidden, inner)
    order, count, router = routes(3, rows, active, seed=3)
    y = experts(x, *placed(all_weights), order, count, router, LIMIT)
    assert near(y[:, :hidden], *by_hand(x, all_weights, active, router))


@pytest.mark.parametrize("active", [[], [1], [0, 2]], ids=str)
@pytest.mark.parametrize("inner", [64, 96, 288])
def test_two_cores_give_the_bytes_of_one(active, inner):
    x, stacked = matrix(4, 3, 160, torch.bfloat16), placed(weights(3, 160, inner))
    last = (*routes(3, 3, active), LIMIT)
    one, two = (experts[cores](x, *stacked, *last) for cores in (1, 2))
    assert torch.equal(bits(one), bits(two)) and one.any() == bool(active)


def test_experts_that_are_not_active_are_not_read():
    """Their weights and factors may be anything, and their bytes do not move."""
    x, all_weights = matrix(5, 2, 256, torch.bfloat16), weights(3, 256, 128)
    stacked = placed(all_weights)
    order, count, router = routes(3, 2, [1])
    y = experts(x, *stacked, order, count, router, LIMIT)
    for part in stacked:
        part[[0, 2]] = 0x7F if part.dtype == torch.uint8 else float("nan")  # NaN codes
    assert torch.equal(bits(y), bits(experts(x, *stacked, order, count, router, LIMIT))) and y.any()
    read = {}
    for n in (0, 1, 2):
        order, count, router = routes(3, 2, list(range(n)))
        cores = recorded(lambda o=order, c=count, r=router: experts[2](x, *stacked, o, c, r, LIMIT))
        read[n] = sum(dma_bytes(core)[0] for core in cores)
    each = sum(part[0].numel() * part.element_size() for part in stacked)
    twice = stacked[3][0].numel() * 4 + 2 * 128 * 2 * 4  # each core: factors, router's weights
    assert read[1] - read[0] == read[2] - read[1] == each + twice


def test_a_router_s_weight_of_zero_leaves_a_row_alone():
    x, stacked = matrix(6, 3, 64, torch.bfloat16), placed(weights(2, 64, 64))
    order, count, router = routes(2, 3, [0, 1])
    router[1, 0] = 0
    both = experts(x, *stacked, order, count, router, LIMIT)
    alone = experts(x, *stacked, order, torch.ones_like(count), router, LIMIT)
    assert torch.equal(bits(both[0]), bits(alone[0])) and not torch.equal(both[2], alone[2])


def test_time_goes_with_the_active_experts():
    """Modelled, without what no expert costs: the time of an expert is the same within 10%."""
    x, stacked = matrix(7, 6, 2048, torch.bfloat16), placed(weights(4, 2048, 768))
    times = []
    for n in range(5):
        last = (*routes(4, 6, list(range(n))), LIMIT)
        times.append(cost.profile(experts[2], x, *stacked, *last).us)
    each = [(times[n] - times[0]) / n for n in range(1, 5)]
    assert 0 < max(each) <= 1.1 * min(each), times


def test_the_operation_runs_the_kernel():
    x, stacked = matrix(8, 2, 64, torch.bfloat16), placed(weights(2, 64, 64))
    last = (*routes(2, 2, [1]), LIMIT)
    with backend.use("sim"):
        y = ops.experts(x, *stacked, *last)
    torch.testing.assert_close(y, ops.experts(x, *stacked, *last), rtol=2.0**-7, atol=1e-5)
    assert y.any()
