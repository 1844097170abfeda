"""Sinkhorn inside hc_mixes: the page's vector, iterations, where eps goes, sums, instructions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.support import streams as st
from tests.support.kernels import recorded
from tests.support.streams import HC_EPS, check_mixes, mixed


@pytest.mark.parametrize("iterations", [1, 2, 3, 19])
def test_the_first_iteration_counts(iterations):
    h, parts = st.streams(3, 4, 4, 40), st.parameters(4, 4, 40)
    found = mixed(h, parts, iterations=iterations)
    check_mixes(found, st.mixes(h, parts, iterations))
    assert np.abs(st.wide(found[2]) - st.mixes(h, parts, iterations + 1)[2]).max() > 1e-9


def test_sinkhorn_of_the_page():
    """docs/reference/model.md has the vector; zero streams leave the base alone."""
    logits = [[1, 0, 0, -1], [0, 2, 0, 0], [0.5, 0, -0.5, 0], [0, 0, 0, 1]]
    base = torch.cat([torch.zeros(8), torch.tensor(logits).flatten().float()])
    parts = torch.zeros(24, 32), base, torch.ones(3)
    pre, post, comb = mixed(torch.zeros(2, 4, 8), parts)
    expected = [
        [0.4503806, 0.1389582, 0.3245772, 0.0860831], [0.0946226, 0.586378, 0.1853644, 0.133634],
        [0.3240483, 0.1648394, 0.2335332, 0.2775781], [0.1309475, 0.1098234, 0.2565243, 0.5027038],
    ]  # fmt: skip
    torch.testing.assert_close(comb, torch.tensor([expected] * 2), rtol=0, atol=1e-6)
    assert (pre == 0.5 + HC_EPS).all() and (post == 1.0).all()


def test_columns_sum_to_one_and_rows_almost():
    h, parts = st.streams(5, 20, 4, 64), st.parameters(6, 4, 64)
    comb = mixed(h, parts)[2]
    assert (comb > 0).all() and (comb.sum(1) - 1).abs().max() < 4e-6
    assert (comb.sum(2) - 1).abs().max() < 1e-2


def test_eps_is_added_where_the_page_says():
    h, parts = st.streams(7, 3, 4, 40), st.parameters(8, 4, 40)
    for iterations in (1, 2, 20):
        found = mixed(h, parts, hc_eps=0.125, iterations=iterations)
        check_mixes(found, st.mixes(h, parts, iterations, 0.125))
    pre, post, comb = mixed(h, parts, hc_eps=0.0)
    assert torch.equal(post, found[1]) and (found[0] - pre - 0.125).abs().max() < 1e-7
    assert (comb - found[2]).abs().max() > 1e-3


def test_large_logits_neither_overflow_nor_lose_the_largest():
    base = torch.zeros(24)
    base[8:] = (torch.eye(4).roll(1, 1) * 2e4 - 1e4).flatten()
    parts = torch.zeros(24, 32), base, torch.ones(3)
    comb = mixed(torch.zeros(1, 4, 8), parts)[2][0]
    torch.testing.assert_close(comb, torch.eye(4).roll(1, 1), rtol=0, atol=1e-4)


def test_a_half_step_of_sinkhorn_is_three_instructions():
    h, parts = st.streams(33, 6, 4, 32), st.parameters(34, 4, 32)

    def vector(iterations):
        (core,) = recorded(lambda: mixed(h, parts, iterations=iterations))
        return [one.name for one in core if one.engine == "vector"]

    longer, shorter = vector(20), vector(10)
    assert len(longer) - len(shorter) == 10 * 2 * 3
    assert longer.count("reciprocal") == 2 * 20
