"""Row-invariant mode: a row gives the same bytes alone, among others, and in any place.

CPU libraries choose another order of summation for another number of rows, and torch computes the
last elements of a tensor, those that fill no vector register, by another formula than the rest
(sigmoid, softplus and silu show it). Widths here are odd so that every row can be such a tail.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.models import EXACT, INVARIANT, build, small_config

RAW = small_config(moe_intermediate_size=40, n_routed_experts=7, num_experts_per_tok=3)
PLAIN = replace(EXACT, row_invariant=True)
COUNTS = (1, 2, 3, 5, 11, 16, 17, 33)


def draw(*shape: int, width: float = 2.0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(len(shape)).normal(0, width, shape)).float()


@pytest.fixture(scope="module")
def model():
    return build(RAW, PLAIN)


def check_same_in_any_company(function, x: torch.Tensor) -> None:
    """function maps rows [R, ...] to a tuple of rows; slices of R must map to the same bytes."""
    whole = function(x)
    for count in COUNTS:
        for begin in (0, 1, len(x) - count):
            part = function(x[begin : begin + count].clone())
            for i, (a, b) in enumerate(zip(part, whole, strict=True)):
                assert torch.equal(a, b[begin : begin + count]), (
                    f"output {i}: {count} rows from {begin} differ from the same among {len(x)}"
                )


@pytest.mark.parametrize("site", ["hc_attn", "hc_ffn"])
def test_hyper_connections(model, site):
    module = getattr(model.layers[0], site)
    check_same_in_any_company(lambda h: [c[0] for c in module(h[None])], draw(40, 3, 32))


def test_router(model):
    check_same_in_any_company(lambda x: model.layers[0].ffn.gate(x, None), draw(40, 32))


def test_experts(model):
    check_same_in_any_company(lambda x: model.layers[0].ffn(x)[:1], draw(40, 32))


def test_experts_with_quantised_inputs():
    wide = build(small_config(), INVARIANT)
    check_same_in_any_company(lambda x: wide.layers[0].ffn(x)[:1], draw(40, 32))


def test_norms(model):
    for norm in (model.layers[0].attn_norm, model.norm):
        check_same_in_any_company(lambda x, norm=norm: [norm(x)], draw(40, 32))


def test_engram(model):
    engram = model.layers[1].engram
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 30, size=(40, 3)))

    def rows(h: torch.Tensor) -> list[torch.Tensor]:
        count = len(h)
        first = next(i for i in range(40) if torch.equal(whole[i], h[0]))
        rows = engram.look_up(ids[None, first : first + count])
        out, gate = engram(h[None], rows, None)
        return [out[0], gate[0]]

    whole = draw(40, 3, 32)
    check_same_in_any_company(rows, whole)


def test_products(model):
    for inputs, outputs in ((32, 5), (96, 64), (17, 3)):
        weight = draw(outputs, inputs)
        check_same_in_any_company(
            lambda x, weight=weight: [model.arith.linear(x, weight)], draw(40, inputs)
        )


@pytest.mark.parametrize("numerics", [INVARIANT, PLAIN], ids=["quantised", "plain"])
@pytest.mark.parametrize("batch", [2, 5])
def test_a_whole_model_does_not_see_the_batch(numerics, batch):
    raw = RAW if numerics is PLAIN else small_config()
    model = build(raw, numerics)
    ids = torch.from_numpy(np.random.default_rng(batch).integers(0, 64, size=(batch, 13)))
    together = model.forward(ids)
    for row in range(batch):
        assert torch.equal(model.forward(ids[row : row + 1])[0], together[row])


def test_the_mode_changes_nothing_but_last_bits(model):
    ids = torch.arange(20)[None]
    assert (model.forward(ids) - build(RAW).forward(ids)).abs().max() < 1e-4
