"""max8, nc_find_index8, nc_match_replace8: order of ties, missing values, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.sim.isa.search import max8, nc_find_index8, nc_match_replace8
from tests.support.isa import empty, grid, last
from tests.support.sim import PSUM, expect_refusal, filled, values

ROW = np.array([[5, 1, 7, 5, 2, 7, 0, 3, 5, 4]], np.float32)
VALS = np.array([[7, 7, 5, 5, 5, 4, 9, 3]], np.float32)
NONE = 2**32 - 1


@given(st.lists(st.integers(-9, 9), min_size=8, max_size=40))
@settings(max_examples=40, deadline=None)
def test_max8_is_the_head_of_a_sort(row: list[int]) -> None:
    dst = empty((2, 8))
    max8(dst=dst, src=filled(np.array([row, row[::-1]], np.float32)))
    expected = sorted(row, reverse=True)[:8]
    assert values(dst).tolist() == [expected, expected]


def test_max8_of_low_precision_and_three_dimensions() -> None:
    data = filled(grid(3, 24).reshape(3, 4, 6), PSUM, "bfloat16")
    dst = empty((3, 8))
    max8(dst, data)
    expected = -np.sort(-values(data).astype(np.float32).reshape(3, 24))[:, :8]
    assert np.array_equal(values(dst), expected)
    assert last().engine == "vector"


def test_find_index8_counts_duplicates_upwards() -> None:
    dst = empty((1, 8), "uint32")
    nc_find_index8(dst=dst, data=filled(ROW), vals=filled(VALS))
    assert values(dst).tolist() == [[2, 5, 0, 3, 8, 9, NONE, 7]]
    short = empty((1, 8), "uint16")
    nc_find_index8(short, filled(ROW), filled(VALS))
    assert values(short).tolist() == [[2, 5, 0, 3, 8, 9, 0xFFFF, 7]]


def test_match_replace8_serves_the_last_slot_first() -> None:
    dst, places = empty((1, 10)), empty((1, 8), "uint32")
    nc_match_replace8(dst=dst, data=filled(ROW), vals=filled(VALS), imm=-1.0, dst_idx=places)
    assert values(dst).tolist() == [[-1, 1, -1, -1, 2, -1, 0, -1, -1, -1]]
    assert values(places).tolist() == [[5, 2, 8, 3, 0, 9, NONE, 7]]


def test_topk_by_rounds_of_eight_is_a_stable_sort() -> None:
    data = np.random.default_rng(5).integers(0, 12, (2, 40)).astype(np.float32)
    tile, best, places = filled(data), empty((2, 8)), empty((2, 8), "uint32")
    found = []
    for _ in range(3):
        max8(best, tile)
        nc_match_replace8(tile, tile, best, -np.inf, places)
        found.append(values(best))
    expected = -np.sort(-data)[:, :24]
    assert np.array_equal(np.concatenate(found, 1), expected)


def test_refusals() -> None:
    data, vals = filled(grid(3, 16)), filled(grid(3, 8))
    eight, places = empty((3, 8)), empty((3, 8), "uint32")
    with expect_refusal("shape", "8 to 16384"):
        max8(eight, filled(grid(3, 7)))
    with expect_refusal("shape", "8 to 16384"):
        max8(empty((1, 8)), filled(np.zeros((1, 16385), np.float32)))
    with expect_refusal("shape", "3 dimensions"):
        max8(eight, data.reshape((3, 2, 2, 4)))
    with expect_refusal("shape", "(3, 8)"):
        max8(empty((3, 9)), data)
    with expect_refusal("dtype", "uint16 or uint32"):
        nc_find_index8(empty((3, 8), "int32"), data, vals)
    with expect_refusal("shape", "vals"):
        nc_find_index8(places, data, filled(grid(3, 7)))
    with expect_refusal("shape", "data"):
        nc_match_replace8(empty((3, 15)), data, vals, 0.0)
    with expect_refusal("dtype", "dst_idx"):
        nc_match_replace8(empty((3, 16)), data, vals, 0.0, empty((3, 8), "int32"))
    with expect_refusal("arguments", "imm", kind=TypeError):
        nc_match_replace8(empty((3, 16)), data, vals, data)  # type: ignore[arg-type]
    nc_find_index8(places, data, vals.reshape((3, 2, 4)))
    nc_match_replace8(empty((3, 16)), data, vals, 0.0)
    assert last().name == "nc_match_replace8"


@pytest.mark.parametrize("kind", ["float16", "int32"])
def test_replace_in_other_dtypes(kind: str) -> None:
    data = np.arange(8, 17)[None].astype(np.float32)
    dst = empty((1, 9), kind)
    nc_match_replace8(dst, filled(data, kind=kind), filled(data[:, :8]), -2.0)
    assert values(dst).astype(int).tolist() == [[-2] * 8 + [16]]
