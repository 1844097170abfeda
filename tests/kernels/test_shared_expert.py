"""shared_expert against its twin and the model's: clamps, exact sums, odd sizes, two cores."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn import backend
from dslearn.formats import inputs_first
from dslearn.kernels.shared_expert import shared_expert
from dslearn.model.moe import clamped_swiglu
from dslearn.ops import shared_expert as ops
from dslearn.ops.shared_expert import reference
from tests.support.kernels import bits, dma_bytes, matrix, recorded
from tests.support.weights import fp8, of_fp8, whole_fp8, whole_rows

LIMIT = 2.0
SIZES = [(1, 128, 64), (3, 160, 96), (6, 300, 200), (20, 512, 320), (128, 64, 32)]


def weights(hidden, inner, make=fp8):
    """w1, w3, w2 as in a checkpoint."""
    return make(1, inner, hidden), make(2, inner, hidden), make(3, hidden, inner)


def by_hand(x, three, limit=LIMIT):
    """The expert in double precision, its hidden values rounded to bf16; and what adds up to it."""
    w1, w3, w2 = map(of_fp8, three)
    x = x.double()
    hidden = clamped_swiglu(x @ w1.T, x @ w3.T, limit).to(torch.bfloat16).double()
    return hidden @ w2.T, hidden.abs() @ w2.abs().T


def near(y, exact, size):
    """One rounding of y, and one of hidden values at a boundary: 2^-8 of half of the terms."""
    return bool(((y.double() - exact).abs() <= 2.0**-8 * exact.abs() + 2.0**-9 * size).all())


def large(m, hidden, inner):
    """x and weights whose gate is always beyond the limit, where silu is the identity in fp32."""
    x = torch.ones(m, hidden).to(torch.bfloat16)
    x[:, ::3] = 2
    ones = torch.full((inner, hidden), 0x38, dtype=torch.uint8)
    scale = torch.full((-(-inner // 32), -(-hidden // 32)), 127, dtype=torch.uint8)
    return x, ((ones, scale), whole_fp8(2, inner, hidden), whole_fp8(3, hidden, inner))


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_sum_is_exact(size):
    m, hidden, inner = size
    x, three = large(*size)
    y = shared_expert(x, *inputs_first.shared_expert(*three), 32.0)
    up = (x.double() @ of_fp8(three[1]).T).clamp(-32, 32)
    exact = (32 * up) @ of_fp8(three[2]).T
    assert torch.equal(y[:, :hidden], exact.to(torch.bfloat16)) and y.abs().max() > 100
    assert not y[:, hidden:].any() and y.shape[1] % 256 == 0


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_equals_the_model_s_expert_and_the_twin(size):
    m, hidden, inner = size
    x, three = matrix(4, m, hidden, torch.bfloat16), weights(hidden, inner)
    placed = inputs_first.shared_expert(*three)
    y, (exact, terms) = shared_expert(x, *placed, LIMIT), by_hand(x, three)
    assert near(y[:, :hidden], exact, terms) and y.any()
    twin = reference(x, *placed, LIMIT)
    assert near(twin[:, :hidden], exact, terms)
    assert (y == twin).float().mean() > 0.98, "few hidden values lie at a rounding boundary"


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 7), st.integers(1, 300), st.integers(1, 200), st.floats(0.1, 20))
def test_any_size_and_limit(m, hidden, inner, limit):
    x, three = matrix(5, m, hidden, torch.bfloat16), weights(hidden, inner)
    y = shared_expert(x, *inputs_first.shared_expert(*three), limit)
    assert near(y[:, :hidden], *by_hand(x, three, limit))


@pytest.mark.parametrize("inner", [32, 64, 96, 288, 352])
@pytest.mark.parametrize("rows", [1, 6])
def test_two_cores_give_the_bytes_of_one(inner, rows):
    x, three = matrix(6, rows, 200, torch.bfloat16), weights(200, inner)
    placed = inputs_first.shared_expert(*three)
    one, two = (shared_expert[cores](x, *placed, LIMIT) for cores in (1, 2))
    assert torch.equal(bits(one), bits(two)) and one.any()


def test_the_gate_is_cut_from_above_only_and_up_on_both_sides():
    """One weight of 1 each: y is the activation of x itself."""
    one = torch.zeros(32, 32, dtype=torch.uint8)
    one.fill_diagonal_(0x38)
    eye = one, torch.full((1, 1), 127, dtype=torch.uint8)
    x = torch.tensor([[-9.0, -2.5, -1.0, -0.0, 0.5, 2.5, 9.0] + [0.0] * 25]).to(torch.bfloat16)
    y = shared_expert(x, *inputs_first.shared_expert(eye, eye, eye), LIMIT)[0, :7]
    z = torch.tensor([-9.0, -2.5, -1.0, -0.0, 0.5, 2.0, 2.0])
    up = torch.tensor([-2.0, -2.0, -1.0, -0.0, 0.5, 2.0, 2.0])
    assert torch.equal(y, (F.silu(z) * up).to(torch.bfloat16))


def test_the_hidden_values_are_rounded_once():
    """Rounding gate, up or silu to bf16 would show in hidden values of one large product."""
    x, three = matrix(7, 2, 64, torch.bfloat16), weights(64, 64)
    one = torch.zeros(64, 64, dtype=torch.uint8)
    one.fill_diagonal_(0x38)
    eye = one, torch.full((2, 2), 127, dtype=torch.uint8)
    y = shared_expert(x, *inputs_first.shared_expert(three[0], three[1], eye), 10.0)[:, :64]
    gate, up = (x.double() @ of_fp8(w).T for w in three[:2])
    hidden = clamped_swiglu(gate, up, 10.0)
    assert (y == hidden.to(torch.bfloat16)).float().mean() > 0.98
    coarse = clamped_swiglu(gate.bfloat16().double(), up.bfloat16().double(), 10.0)
    assert (y == coarse.to(torch.bfloat16)).float().mean() < 0.9


def test_a_row_of_nan_stays_alone():
    x, three = matrix(8, 5, 64, torch.bfloat16), weights(64, 64)
    placed = inputs_first.shared_expert(*three)
    whole = shared_expert(x, *placed, LIMIT)
    x[3] = float("nan")
    y = shared_expert(x, *placed, LIMIT)
    others = [0, 1, 2, 4]
    assert y[3, :64].isnan().all() and torch.equal(bits(y[others]), bits(whole[others]))


@pytest.mark.parametrize("cores", [1, 2])
def test_each_weight_is_read_once(cores):
    x, three = matrix(9, 3, 256, torch.bfloat16), weights(256, 256)
    placed = inputs_first.shared_expert(*three)
    launched = recorded(lambda: shared_expert[cores](x, *placed, LIMIT))
    gate_up, scale, down, down_scale = (t.numel() for t in placed)
    scales = 32 * (scale + down_scale)
    read = sum(dma_bytes(core)[0] for core in launched)
    assert read == gate_up + down + scales + cores * x.numel() * 2
    assert sum(dma_bytes(core)[1] for core in launched) == x.numel() * 2


def test_the_operation_runs_the_kernel():
    x, three = large(2, 64, 64)
    placed = inputs_first.shared_expert(*three)
    with backend.use("sim"):
        y = ops.shared_expert(x, *placed, 32.0)
    assert torch.equal(y, ops.shared_expert(x, *placed, 32.0)) and y.any()


def test_what_cannot_be_is_refused():
    placed = inputs_first.shared_expert(*weights(64, 64))
    with pytest.raises(AssertionError, match="at most 128"):
        shared_expert(whole_rows(1, 129, 64), *placed, LIMIT)
    with pytest.raises(AssertionError, match="no more inputs"):
        shared_expert(whole_rows(1, 2, 257), *placed, LIMIT)
    assert shared_expert(whole_rows(1, 128, 256), *placed, LIMIT).shape == (128, 256)
