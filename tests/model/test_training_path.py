"""With gradients: the dense form of attention is the same function, and it teaches the indexer."""

from __future__ import annotations

import pytest
import torch

from dslearn.numerics import Numerics
from tests.support.models import EXACT, build, prompt, small_config

RAW = small_config()


def both_forms(length: int, numerics: Numerics) -> torch.Tensor:
    """Largest difference per position between the two forms, of a batch of two."""
    ids = torch.cat((prompt(RAW, length, 1), prompt(RAW, length, 2)))
    want = build(RAW, numerics).forward(ids)
    logits = build(RAW, numerics).requires_grad_(True).forward(ids)
    assert logits.requires_grad and not want.requires_grad
    return (logits.detach() - want).abs().amax(-1).flatten()


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 16, 17, 23])
def test_dense_attention_is_the_gathered_one(length):
    assert both_forms(length, EXACT).max() < 1e-4


def test_with_quantised_caches_too_but_for_roundings_that_fall_the_other_way():
    gaps = torch.cat([both_forms(n, Numerics(activations=False)) for n in (1, 2, 8, 9, 12, 17)])
    assert (gaps < 1e-3).float().mean() > 0.6


def test_every_parameter_but_the_biases_learns_from_the_text():
    model = build(RAW).requires_grad_(True)
    trace: dict = {"index_losses": []}
    logits = model.forward(prompt(RAW, 24), trace=trace)
    loss = torch.nn.functional.cross_entropy(logits[0, :-1], prompt(RAW, 24)[0, 1:])
    assert len(trace["index_losses"]) == 4, "one per layer that attends to entries"
    (loss + sum(trace["index_losses"])).backward()
    still = {
        name
        for name, p in model.named_parameters()
        if p.grad is None or not (p.grad.isfinite().all() and p.grad.any())
    }
    assert all("gate.bias" in name or "experts." in name for name in still), still


def test_the_indexer_learns_from_attention_alone():
    """Its loss moves no other weight: it reads detached inputs and keys of detached latents."""
    model = build(RAW).requires_grad_(True)
    trace: dict = {"index_losses": []}
    model.forward(prompt(RAW, 24), trace=trace)
    losses = torch.stack(trace["index_losses"])
    assert (losses >= 0).all() and losses.isfinite().all() and losses.max() > 1e-3
    losses.sum().backward()
    moved = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert moved and all(".indexer." in name for name in moved), moved


@pytest.mark.parametrize("length", [1, 3])
def test_short_texts_have_a_finite_index_loss(length):
    model = build(RAW).requires_grad_(True)
    trace: dict = {"index_losses": []}
    model.forward(prompt(RAW, length), trace=trace)
    assert all(x.isfinite() for x in trace["index_losses"])
