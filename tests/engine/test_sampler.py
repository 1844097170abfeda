"""Sampling: sets by hand, ties, seeds, and frequencies against the distribution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslearn.engine.sampler import Sampler, Sampling, probabilities
from dslearn.errors import UsageError

FIVE = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.05], np.float32))


def kept(logits: np.ndarray, top_p: float, temperature: float = 1.0) -> list[int]:
    return np.flatnonzero(probabilities(logits, Sampling(temperature, top_p))).tolist()


@pytest.mark.parametrize(
    "top_p, tokens",
    [
        (0.05, [0]),
        (0.39, [0]),
        (0.41, [0, 1]),
        (0.69, [0, 1]),
        (0.71, [0, 1, 2]),
        (0.94, [0, 1, 2, 3]),
        (0.96, [0, 1, 2, 3, 4]),
        (1.0, [0, 1, 2, 3, 4]),
    ],
)
def test_top_p_keeps_the_smallest_set_that_holds_it(top_p, tokens):
    assert kept(FIVE, top_p) == tokens
    shuffled = FIVE[[3, 0, 4, 2, 1]]
    assert kept(shuffled, top_p) == sorted([1, 4, 3, 0, 2][: len(tokens)])


def test_top_p_reached_exactly_adds_nothing():
    halves = np.log(np.array([0.25, 0.5, 0.25], np.float64)).astype(np.float32)
    assert kept(halves, 0.5) == [1]
    assert kept(halves, 0.75) == [0, 1], "of equals the lowest id"


def test_probabilities_are_a_renormalised_softmax():
    p = probabilities(FIVE, Sampling(1.0, 0.69))
    np.testing.assert_allclose(p, [4 / 7, 3 / 7, 0, 0, 0], atol=1e-7)
    sharp = probabilities(FIVE, Sampling(0.5))
    squares = np.array([0.4, 0.3, 0.15, 0.1, 0.05]) ** 2
    np.testing.assert_allclose(sharp, squares / squares.sum(), atol=1e-7)


def test_greedy_takes_the_lowest_of_equals():
    sampler = Sampler(Sampling())
    assert sampler(np.array([1, 5, 5, 2], np.float32)) == 1
    assert sampler(np.zeros(7, np.float32)) == 0
    assert sampler(np.array([-np.inf, -3], np.float32)) == 1


def test_cold_is_greedy_and_extremes_stay_finite():
    logits = np.array([-1e30, 3, 88, 2, 87.9], np.float32)
    for temperature in (1e-320, 1e-9, 1e-3):
        p = probabilities(logits, Sampling(temperature))
        assert p[2] == pytest.approx(1) and np.isfinite(p).all()
    hot = probabilities(FIVE, Sampling(1e30))
    np.testing.assert_allclose(hot, 0.2)


def test_a_seed_reproduces_and_seeds_differ():
    def draw(seed: int | None) -> list[int]:
        sampler = Sampler(Sampling(1.0, seed=seed))
        return [sampler(FIVE) for _ in range(60)]

    assert draw(7) == draw(7)
    assert draw(7) != draw(8)
    assert draw(None) != draw(None), "without a seed every sampler is fresh (5^-60 chance)"


def test_frequencies_follow_the_distribution():
    """Chi-square with 4 degrees of freedom: 18.47 is passed by chance once in 1000 seeds."""
    sampler, n = Sampler(Sampling(1.0, seed=1)), 4000
    counts = np.bincount([sampler(FIVE) for _ in range(n)], minlength=5)
    expected = n * np.array([0.4, 0.3, 0.15, 0.1, 0.05])
    assert ((counts - expected) ** 2 / expected).sum() < 18.47


def test_what_top_p_cut_off_is_never_drawn():
    sampler = Sampler(Sampling(1.0, 0.71, seed=2))
    assert set(sampler(FIVE) for _ in range(500)) == {0, 1, 2}


@given(
    st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=20),
    st.floats(0.01, 1),
    st.floats(0.05, 5),
)
def test_any_logits_give_a_distribution_with_the_set_property(logits, top_p, temperature):
    row = np.array(logits, np.float32)
    full = probabilities(row, Sampling(temperature))
    p = probabilities(row, Sampling(temperature, top_p))
    assert p.sum() == pytest.approx(1) and (p >= 0).all()
    chosen = np.flatnonzero(p)
    assert full[chosen].sum() >= top_p - 1e-9
    smallest = full[chosen].min()
    assert full[chosen].sum() - smallest < top_p + 1e-9, "one token less would do"
    left_out = np.setdiff1d(np.arange(len(row)), chosen)
    assert (full[left_out] <= smallest).all()


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"temperature": -0.1}, "temperature=-0.1"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"temperature": float("inf")}, "temperature=inf"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"top_p": float("nan")}, "top_p=nan"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_options_out_of_range_are_refused(wrong, words):
    with pytest.raises(UsageError, match=words):
        Sampling(**wrong)
