"""Router and experts: scores at the ends, ties, clamps, who is weighed and when."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dslearn.model.moe import clamped_swiglu
from dslearn.numerics import Numerics
from tests.support.models import EXACT, build, small_config

RAW = small_config(n_routed_experts=9, num_experts_per_tok=4, routed_scaling_factor=1.5)


def draw(seed: int, *shape: int, width: float = 1.0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, width, shape)).float()


@pytest.fixture(params=[EXACT, replace(EXACT, row_invariant=True)], ids=["plain", "invariant"])
def ffn(request):
    return build(RAW, request.param).layers[0].ffn


def with_logits(gate, logits: list[list[float]]) -> torch.Tensor:
    """Inputs [R, d] whose router logits are exactly these."""
    gate.weight.zero_()
    gate.weight[:, :9] = torch.eye(9)
    x = torch.zeros(len(logits), gate.weight.shape[1])
    x[:, :9] = torch.tensor(logits)
    return x


def test_scores_are_the_root_of_softplus_at_every_size(ffn):
    """sglang#34459: log(1 + exp(x)) is 0 below -16.6 and inf above 88.7 in fp32."""
    z = [-200.0, -80, -17, -1, 0, 1, 17, 89, 200]
    scores = ffn.gate.scores(with_logits(ffn.gate, [z]))[0].double()
    want = torch.tensor([math.sqrt(math.log1p(math.exp(v)) if v < 50 else v) for v in z])
    assert torch.allclose(scores[1:], want[1:].double(), rtol=1e-5, atol=0)
    assert 0 <= scores[0] < 1e-30 and abs(float(scores[4]) - math.sqrt(math.log(2))) < 1e-6


@pytest.mark.parametrize("z", [-17.0, 0.0, 89.0, 200.0])
def test_weights_are_finite_and_sum_to_the_scaling_factor(ffn, z):
    """sglang#34459, flashinfer#5211: neither 0/0 nor inf/inf, and no plain sigmoid."""
    ffn.gate.bias.zero_()
    _, weights = ffn.gate(with_logits(ffn.gate, [[z] * 9]), None)
    assert torch.allclose(weights, torch.full((1, 4), 1.5 / 4))


def test_a_row_without_any_score_is_finite(ffn):
    _, weights = ffn.gate(with_logits(ffn.gate, [[-200.0] * 9]), None)
    assert weights.isfinite().all() and (weights >= 0).all()


def test_known_weights(ffn):
    """Scores sqrt(softplus) of 3, 1, 0, -1 by hand; the bias picks, and does not weigh."""
    ffn.gate.bias.copy_(torch.tensor([0, 0, 0, 0, 0, 50.0, 60, 70, 80]))
    ids, weights = ffn.gate(with_logits(ffn.gate, [[9.0] * 5 + [3, 1, 0, -1]]), None)
    scores = [math.sqrt(math.log1p(math.exp(v))) for v in (-1, 0, 1, 3)]
    assert ids[0].tolist() == [8, 7, 6, 5]
    want = torch.tensor([1.5 * s / sum(scores) for s in scores])
    assert torch.allclose(weights[0], want, atol=1e-6)


def test_equal_scores_go_to_the_lowest_expert(ffn):
    """torch.topk would give 8, 0, 7, 6 here."""
    ffn.gate.weight.zero_()
    ffn.gate.bias.copy_(torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 0, 2]))
    ids, _ = ffn.gate(torch.ones(3, 32), None)
    assert ids.tolist() == [[8, 0, 1, 2]] * 3


def test_the_gate_is_clamped_from_above_and_up_on_both_sides():
    """Primus#698, torchtitan#1166: clamp, then SiLU, then the product."""
    gate, up = torch.tensor([20.0, -20, 20, 3]), torch.tensor([-20.0, 20, 4, -3])
    silu = F.silu(torch.tensor([10.0, -20, 10, 3]))
    want = silu * torch.tensor([-10.0, 10, 4, -3])
    assert torch.allclose(clamped_swiglu(gate, up, 10.0), want)


def test_w1_is_the_gate_and_w3_the_other(ffn):
    expert = ffn.shared_experts
    for w in (expert.w1, expert.w2, expert.w3):
        w.weight.copy_(torch.eye(32))
    expert.w3.weight.mul_(-1.0)
    x = torch.full((1, 32), 1.25)
    assert torch.allclose(expert(x), -F.silu(x) * x, atol=1e-6)


def by_hand(ffn, x: torch.Tensor) -> torch.Tensor:
    """Every expert on every row in float64, weighed before w2; shared expert without a weight."""
    limit = RAW["swiglu_limit"]

    def expert(part, weight):
        w1, w2, w3 = (getattr(part, name).weight.double() for name in ("w1", "w2", "w3"))
        gate, up = x.double() @ w1.T, x.double() @ w3.T
        inner = F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit) * weight
        return inner @ w2.T

    ids, weights = ffn.gate(x, None)
    dense = torch.zeros(len(x), 9).scatter(1, ids, weights).double()
    routed = sum(expert(part, dense[:, e, None]) for e, part in enumerate(ffn.experts))
    return routed + expert(ffn.shared_experts, 1.0)


@pytest.mark.parametrize("rows", [1, 2, 17])
def test_the_sum_over_experts(rows):
    ffn = build(RAW).layers[1].ffn
    x = draw(rows, rows, 32)
    y, ids, weights = ffn(x)
    assert (y - by_hand(ffn, x)).abs().max() < 1e-5
    assert ids.shape == weights.shape == (rows, 4)


def test_all_rows_may_choose_the_same_experts_twice_in_a_row():
    """ik_llama.cpp#1604: an expert without rows left what the call before had put there."""
    ffn = build(RAW).layers[0].ffn
    x = draw(1, 6, 32)
    first = ffn(x)[0].clone()
    ffn.gate.bias.copy_(torch.tensor([9.0, 9, 9, 9, 0, 0, 0, 0, 0]))
    y, ids, _ = ffn(x)
    assert (ids.sort(-1).values == torch.arange(4)).all()
    assert (y - by_hand(ffn, x)).abs().max() < 1e-5
    assert torch.equal(ffn(x)[0], y) and not torch.allclose(first, y, atol=1e-3)


def test_no_rows_at_all():
    ffn = build(RAW).layers[0].ffn
    y, ids, weights = ffn(torch.zeros(0, 32))
    assert y.shape == (0, 32) and ids.shape == weights.shape == (0, 4)


def test_one_expert_keeps_its_own_weight():
    """Weights are divided by their sum only when more than one expert is chosen."""
    ffn = build(small_config(num_experts_per_tok=1)).layers[0].ffn
    x = draw(3, 5, 32)
    ids, weights = ffn.gate(x, None)
    assert torch.allclose(weights, 1.5 * ffn.gate.scores(x).gather(1, ids))
    off = build(small_config(norm_topk_prob=False)).layers[0].ffn
    ids, weights = off.gate(x, None)
    assert torch.allclose(weights, 1.5 * off.gate.scores(x).gather(1, ids))


def test_the_temperature_divides_the_logits():
    cold = build(small_config(gate_temp=0.5)).layers[0].ffn.gate
    warm = build(small_config()).layers[0].ffn.gate
    x = draw(4, 5, 32)
    assert torch.allclose(cold.scores(x), warm.scores(2 * x), atol=1e-6)


def test_the_weight_is_multiplied_before_w2_sees_its_quantised_input():
    """Afterwards the same number would meet another rounding: a factor of 3 is no power of two."""
    ffn = build(RAW, Numerics(activations=True)).layers[0].ffn
    expert, x = ffn.experts[0], draw(5, 4, 32)
    seen = []
    expert.w2.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    expert(x), expert(x, torch.full((4, 1), 3.0))
    assert torch.allclose(seen[1], 3 * seen[0]) and (seen[1] - seen[0]).abs().max() > 0.1
