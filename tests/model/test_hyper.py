"""Hyper-connections: Sinkhorn vectors, both eps, the factor of post, who reads with which pre."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dslearn.model.hyper import collapse, expand, sinkhorn
from tests.support.models import build, small_config

RAW = small_config()
LOGITS = torch.tensor([[1, 0, 0, -1], [0, 2, 0, 0], [0.5, 0, -0.5, 0], [0, 0, 0, 1]])
TWENTY_ROUNDS = torch.tensor(
    [
        [0.4503806, 0.1389582, 0.3245772, 0.0860831],
        [0.0946226, 0.586378, 0.1853644, 0.133634],
        [0.3240483, 0.1648394, 0.2335332, 0.2775781],
        [0.1309475, 0.1098234, 0.2565243, 0.5027038],
    ]
)


def logits(seed: int, *shape: int, width: float = 3.0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, width, shape)).float()


def wide_rounds(x: torch.Tensor, rounds: int, eps: float) -> torch.Tensor:
    """The recipe in float64, spelled out: softmax rows, eps, columns, then rows and columns."""
    c = np.exp(x.double().numpy())
    c = c / c.sum(-1, keepdims=True) + eps
    c = c / (c.sum(-2, keepdims=True) + eps)
    for _ in range(rounds - 1):
        c = c / (c.sum(-1, keepdims=True) + eps)
        c = c / (c.sum(-2, keepdims=True) + eps)
    return torch.from_numpy(c)


def test_sinkhorn_of_the_published_matrix():
    assert (sinkhorn(LOGITS.clone(), 20, 1e-6) - TWENTY_ROUNDS).abs().max() < 2e-7


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 19, 20])
@pytest.mark.parametrize("streams", [1, 2, 3, 4])
def test_each_round_counts(rounds, streams):
    """The first softmax with its column step is round one; a flat matrix would not tell."""
    x = logits(rounds, 6, streams, streams)
    got = sinkhorn(x.clone(), rounds, 1e-6)
    assert (got - wide_rounds(x, rounds, 1e-6)).abs().max() < 1e-6
    if streams > 1 and rounds < 5:
        assert (got - wide_rounds(x, rounds + 1, 1e-6)).abs().max() > 1e-4


def test_20_and_19_rounds_differ_visibly_on_a_slow_matrix():
    slow = torch.tensor([[9.0, 0, 0, 0], [0, 0, 9, 0], [0, 0, 9, 0], [0, 0, 9.0, 0]])
    twenty, less = (wide_rounds(slow, n, 1e-6) for n in (20, 19))
    assert (twenty - less).abs().max() > 5e-4
    assert (sinkhorn(slow.clone(), 20, 1e-6) - twenty).abs().max() < 1e-6


def test_the_eps_stands_in_all_three_places():
    """Off the diagonal only eps is left of exp(-100), and each division sees it again."""
    x = torch.full((3, 3), -100.0).fill_diagonal_(0.0)
    one = sinkhorn(x.clone(), 1, 1e-2)
    assert torch.allclose(one[0, 1], torch.tensor(0.01 / (1.01 + 0.02 + 0.01)))
    assert torch.allclose(one[0, 0], torch.tensor(1.01 / (1.01 + 0.02 + 0.01)))
    for rounds in (2, 3):
        assert torch.allclose(
            sinkhorn(x.clone(), rounds, 1e-2), wide_rounds(x, rounds, 1e-2).float()
        )


def test_columns_come_last_and_rows_are_nearly_one():
    c = sinkhorn(logits(5, 50, 4, 4), 20, 1e-6)
    assert (c.sum(-2) - 1).abs().max() < 3e-6
    early = sinkhorn(logits(5, 50, 4, 4), 1, 1e-6)
    assert (early.sum(-2) - 1).abs().max() < 1e-3 and (early.sum(-1) - 1).abs().max() > 0.1


def test_extremes_stay_finite():
    """maxtext#4337 and the like: exp must not see a thousand."""
    huge = torch.tensor([[1000.0, -1000], [-1000, 1000]])
    assert sinkhorn(huge.clone(), 20, 1e-6).isfinite().all()
    column = torch.zeros(4, 4)
    column[:, 2] = 1000
    assert torch.allclose(sinkhorn(column, 20, 1e-6), torch.tensor(0.25), atol=1e-4)


def test_gradients_of_the_trainer_s_path_give_the_same_values():
    x = logits(7, 2, 3, 4, 4)
    tracked = sinkhorn(x.clone().requires_grad_(), 20, 1e-6)
    assert (tracked.detach() - sinkhorn(x.clone(), 20, 1e-6)).abs().max() < 1e-6
    tracked.square().sum().backward()


@pytest.fixture
def site():
    """A hyper-connection whose coefficients depend on its base alone."""
    module = build(small_config(hc_eps=0.125)).layers[0].hc_attn
    module.fn.zero_()
    return module


def test_pre_has_an_eps_and_post_a_factor_of_two(site):
    h = logits(1, 2, 5, 3, 32)
    site.base.zero_()
    pre, post, _ = site(h)
    assert torch.equal(pre, torch.full((2, 5, 3), 0.625))
    assert torch.equal(post, torch.full((2, 5, 3), 1.0))
    site.base.fill_(-200.0)
    pre, post, _ = site(h)
    assert torch.equal(pre, torch.full((2, 5, 3), 0.125)) and not post.any()
    site.base.fill_(200.0)
    assert torch.equal(site(h)[1], torch.full((2, 5, 3), 2.0))


def test_the_eps_of_the_config_reaches_the_mixing_matrix(site):
    site.base.zero_()
    site.base[6:] = torch.full((3, 3), -100.0).fill_diagonal_(0.0).flatten()
    comb = site(logits(2, 1, 1, 3, 32))[2][0, 0]
    want = wide_rounds(site.base[6:].view(3, 3), RAW["hc_sinkhorn_iters"], 0.125).float()
    assert torch.allclose(comb, want, atol=1e-6) and want[0, 1] > 0.05


def test_one_statistic_covers_all_streams():
    module = build(RAW).layers[0].hc_ffn
    h = logits(3, 1, 4, 3, 32)
    scaled = h * torch.tensor([1.0, 1.0, 8.0])[:, None]
    assert torch.allclose(module(h)[0], module(1e-3 * h)[0], atol=1e-5), "scale of a token: no"
    assert not torch.allclose(module(h)[0], module(scaled)[0], atol=1e-2), "one stream's: yes"


def test_comb_is_contracted_over_its_first_index():
    """transformers#46172, Automodel#2159, Megatron-LM#4957: only an asymmetric comb can tell."""
    arith = build(RAW).arith
    h, y, post = logits(1, 1, 2, 3, 8), logits(2, 1, 2, 8), logits(3, 1, 2, 3)
    comb = logits(4, 1, 2, 3, 3)
    want = post.unsqueeze(-1) * y.unsqueeze(-2) + torch.einsum("btjk,btjd->btkd", comb, h)
    got = expand(y, h, post, comb, arith)
    assert torch.allclose(got, want, atol=1e-5)
    wrong = expand(y, h, post, comb.transpose(-1, -2).contiguous(), arith)
    assert (wrong - want).abs().max() > 1
    weights = logits(5, 1, 2, 3)
    assert torch.allclose(
        collapse(h, weights, arith), (weights.unsqueeze(-1) * h).sum(2), atol=1e-5
    )


def test_each_sublayer_reads_with_the_pre_of_the_one_before():
    """What attention reads depends on the pre handed in, never on this layer's own hc_attn."""
    model = build(RAW)
    layer, seen = model.layers[2], []
    layer.attn_norm.register_forward_hook(lambda _, args, out: seen.append(args[0]))
    layer.ffn_norm.register_forward_hook(lambda _, args, out: seen.append(args[0]))
    ids, trace = torch.arange(6)[None], {}
    model.forward(ids, trace=trace)
    streams, pre = trace["layers"][2]["streams"], trace["layers"][2]["pre"]
    assert torch.allclose(seen[0], (streams * pre.unsqueeze(-1)).sum(2), atol=1e-5)
    layer.hc_attn.base[: RAW["hc_mult"]] += 3.0
    model.forward(ids)
    assert torch.equal(seen[0], seen[2]) and not torch.allclose(seen[1], seen[3], atol=1e-2)


def test_the_first_block_reads_stream_0():
    model, trace = build(RAW), {}
    model.forward(torch.arange(4)[None], trace=trace)
    pre = trace["layers"][0]["pre"]
    assert torch.equal(pre, torch.tensor([1.0, 0, 0]).expand(1, 4, 3))
