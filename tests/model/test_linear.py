"""Linears that share an input, and what a forward call accepts as lengths."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from dslearn.errors import UsageError
from dslearn.model.arith import Arith
from dslearn.model.linear import Fused, Input, Linear
from dslearn.numerics import Numerics
from tests.support.models import build, prompt, small_config

ARITH = Arith(Numerics())


def linear(rows: int, seed: int) -> Linear:
    out = Linear(32, rows, ARITH, quantised=True).requires_grad_(False)
    out.weight.copy_(torch.randn(rows, 32, generator=torch.Generator().manual_seed(seed)))
    return out


@pytest.mark.parametrize("replaced", [0, 1])
@pytest.mark.parametrize("how", ["parameter", "data", "in place"])
def test_a_fused_product_follows_a_changed_weight(replaced, how):
    parts = [linear(3, 0), linear(5, 1)]
    fused, x = Fused(*parts), torch.linspace(-1, 1, 64).view(2, 32)
    fused(Input(x, ARITH))
    new = linear(parts[replaced].weight.shape[0], 2).weight
    if how == "parameter":
        parts[replaced].weight = new
    elif how == "data":
        parts[replaced].weight.data = new.data
    else:
        parts[replaced].weight.copy_(new)
    for _ in range(2):  # the second call finds the weight fused anew
        for got, part in zip(fused(Input(x, ARITH)), parts, strict=True):
            assert torch.allclose(got, F.linear(x, part.weight), atol=1e-6)
    assert torch.allclose(parts[replaced].weight, new)


def test_a_joined_weight_is_of_the_kind_that_it_was():
    # Graphs tell inference tensors from others: eager code between two of their calls must not
    # cost a second graph.
    parts = [linear(3, 0), linear(5, 1)]
    with torch.inference_mode():
        assert Fused(*parts).joined() is not None
    assert not any(part.weight.is_inference() for part in parts)


@pytest.mark.parametrize("lengths", [[2.0], [True], [2, 2], [-1], [4]])
def test_lengths_are_whole_numbers_one_per_row(lengths):
    raw = small_config()
    with pytest.raises(
        UsageError, match=r"lengths=.*one per row \(1\), each a whole number 0\.\.3"
    ):
        build(raw).forward(prompt(raw, 3), lengths=torch.tensor(lengths))
