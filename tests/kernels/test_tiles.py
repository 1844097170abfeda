"""How kernels cut matrices: every row once, equally many blocks for both cores, as few as fit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dslearn.kernels  # noqa: F401 - decides which nki runs
from dslearn.kernels.tiles import PARTITIONS, column_blocks, row_blocks

# isort: split
import nki
import nki.language as nl


def blocks_of(rows, cores):
    """What `row_blocks` gives each core of a launch."""
    found = {}

    def kernel(x):
        found[nl.program_id(axis=0)] = row_blocks(rows)
        return x

    nki.simulate(kernel)[cores](np.zeros((1, 1), np.float32))
    return [found[core] for core in range(cores)]


@given(st.integers(1, 1000), st.sampled_from([1, 2]))
def test_rows_are_shared_evenly(rows, cores):
    shares = blocks_of(rows, cores)
    if rows < cores:
        assert shares == [[(0, rows)]] * cores, "both cores do the only row"
        return
    covered = [row for blocks in shares for start, n in blocks for row in range(start, start + n)]
    assert covered == list(range(rows)), "each row once, in order"
    heights = [n for blocks in shares for _, n in blocks]
    assert max(heights) <= PARTITIONS and max(heights) - min(heights) <= 1
    counts = {len(blocks) for blocks in shares}
    assert counts == {-(-rows // (cores * PARTITIONS))}, "as few as fit, equally many"


@pytest.mark.parametrize(
    ("columns", "widest", "expected"),
    [(1, 4, [(0, 1)]), (4, 4, [(0, 4)]), (9, 4, [(0, 4), (4, 4), (8, 1)])],
)
def test_columns_are_cut(columns, widest, expected):
    assert column_blocks(columns, widest) == expected
