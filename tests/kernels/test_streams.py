"""How the stream kernels cut rows: divisors, lanes, what each core gets; sums of few terms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dslearn.kernels  # before nki

import nki  # isort: skip
import nki.isa as nisa  # isort: skip
import nki.language as nl  # isort: skip

from dslearn.kernels.streams import (
    cut,
    divisor,
    lanes_per_row,
    load_cut,
    load_factors,
    results,
    shares,
    weighted_sum,
)


@given(number=st.integers(1, 6000), largest=st.integers(1, 128))
def test_divisor_is_the_largest_that_fits(number, largest):
    found = divisor(number, largest)
    assert number % found == 0 and found <= largest
    assert all(number % n for n in range(found + 1, largest + 1))


def plans(rows, columns, cores):
    """[(shares, lanes)] of each core."""
    found = []

    @nki.jit
    def plan(x):
        some = shares(rows, columns)
        found.append((some, [lanes_per_row(rows, width) for *_, width in some]))
        out, _ = results((1, 2), nl.float32)
        tile = nl.ndarray((1, 2), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        if nl.program_id(axis=0) == 0:
            nisa.dma_copy(dst=out, src=tile)
        else:
            other = nl.ndarray((1, 2), dtype=nl.float32, buffer=nl.private_hbm)
            nisa.dma_copy(dst=other, src=tile)
        return out

    plan[cores](np.zeros((1, 2), np.float32))
    return sorted(found)


@pytest.mark.parametrize(
    ("rows", "columns", "lanes"),
    [(1, 5120, 40), (6, 5120, 40), (64, 5120, 4), (300, 5120, 1), (6, 5119, 1), (1, 64, 1)],
)
def test_rows_lie_in_as_many_lanes_as_there_are(rows, columns, lanes):
    for blocks, each in plans(rows, columns, 2):
        assert set(each) == {lanes}, "the same on both cores"
        assert all(height * lanes <= 128 for _, height, *_ in blocks)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 129, 300])
@pytest.mark.parametrize("columns", [6, 7])
def test_every_number_belongs_to_a_core(rows, columns):
    owned = np.zeros((rows, columns), int)
    for blocks, _ in plans(rows, columns, 2):
        for start, height, first, width in blocks:
            owned[start : start + height, first : first + width] += 1
    twice = rows == 1 and columns % 2 == 1
    assert (owned == (2 if twice else 1)).all()


def test_one_core_has_everything():
    ((blocks, lanes),) = plans(1, 640, 1)
    assert blocks == [(0, 1, 0, 640)] and lanes == [10]


def test_a_cut_row_comes_together_again():
    @nki.jit
    def copied(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tile = load_cut(cut(x, 4), 0, 3)
        assert tuple(tile.shape) == (8, 3, 3)
        nisa.dma_copy(dst=cut(out, 4), src=tile)
        return out

    x = np.arange(2 * 3 * 12, dtype=np.float32).reshape(2, 3, 12)
    assert np.array_equal(copied(x), x)


def test_a_sum_adds_in_order():
    @nki.jit
    def added(x, factors):
        out = nl.ndarray((2, 1, 1), dtype=x.dtype, buffer=nl.shared_hbm)
        tile, numbers = load_cut(cut(x, 1), 0, 1), load_factors(factors, 1)
        total = nl.ndarray((2, 1, 1), dtype=x.dtype, buffer=nl.sbuf)
        weighted_sum(
            total, [tile[:, c, :] for c in range(3)], [numbers[:, c : c + 1] for c in range(3)]
        )
        nisa.dma_copy(dst=out, src=total)
        return out

    x = np.array([[[2.0**24], [1.0], [-(2.0**24)]], [[1.0], [2.0**-24], [2.0**-24]]], np.float32)
    y = added(x, np.ones((2, 3), np.float32))
    assert y[:, 0, 0].tolist() == [0.0, 1.0], "another order gives 1 and 1 + 2^-23"


def test_somebody_runs_kernels():
    assert dslearn.kernels.NKI.status in ("real", "stand-in")
