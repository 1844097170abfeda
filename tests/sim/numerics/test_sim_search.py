"""Searching: the documented loops, ties, missing values, the snake layout."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dslearn.sim.numerics import search

SHAPES = st.tuples(st.integers(1, 3), st.integers(8, 30))
FEW = hnp.arrays(np.float32, SHAPES, elements=st.integers(0, 5))  # many ties


def f32(values):
    return np.array(values, dtype=np.float32)


@settings(max_examples=100, deadline=None)
@given(FEW)
def test_max8_is_the_end_of_a_sorted_list(x):
    got = search.max8(x)
    assert got.tolist() == [sorted(row, reverse=True)[:8] for row in x.tolist()]
    assert got.dtype == np.float32


def test_max8_flattens_free_axes_and_shows_nan():
    x = np.arange(2 * 3 * 5, dtype=np.float32).reshape(2, 3, 5)
    assert search.max8(x)[0].tolist() == [14, 13, 12, 11, 10, 9, 8, 7]
    x[1, 2, 0] = np.nan
    x[1, 0, 0] = np.inf
    got = search.max8(x)[1]
    assert np.isnan(got[0])
    assert got[1:4].tolist() == [np.inf, 29, 28]
    assert search.max8(f32([[-np.inf] * 8])).tolist() == [[-np.inf] * 8]


@settings(max_examples=100, deadline=None)
@given(FEW, st.lists(st.integers(0, 6), min_size=8, max_size=8))
def test_find_index8_gives_equal_values_successive_places(x, wanted):
    got = search.find_index8(x, np.tile(f32(wanted), (x.shape[0], 1)))
    for row, places in zip(x.tolist(), got.tolist(), strict=True):
        queues = {v: [i for i, element in enumerate(row) if element == v] for v in set(wanted)}
        assert places == [queues[v].pop(0) if queues[v] else 0xFFFFFFFF for v in wanted]


@settings(max_examples=100, deadline=None)
@given(
    hnp.arrays(np.float32, (3, 25), elements=st.integers(-4, 9) | st.just(np.nan)),
    st.lists(
        st.lists(st.integers(-6, 11), min_size=8, max_size=8, unique=True), min_size=3, max_size=3
    ),
    st.booleans(),
)
def test_different_values_are_found_where_they_come_first(x, wanted, falling):
    vals = f32([sorted(row, reverse=True) if falling else row for row in wanted])
    places = [
        [row.index(v) if v in row else search.MISSING for v in values]
        for row, values in zip(x.tolist(), vals.tolist(), strict=True)
    ]
    assert search.find_index8(x, vals).tolist() == places
    for data in (x, np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2]):
        got, found = search.match_replace8(data, vals, -9.0)
        assert found.tolist() == places
        expected, _ = documented_match_replace(x, vals, -9.0)
        assert np.array_equal(got, expected, equal_nan=True)


def test_find_index8_examples():
    data = f32([[5, 1, 5, 3, 5, 0, 0, 9]])
    got = search.find_index8(data, f32([[9, 5, 5, 3, 1, 0, 5, 5]]))
    assert got.tolist() == [[7, 0, 2, 3, 1, 5, 4, search.MISSING]]
    assert got.dtype == np.uint32
    assert got.astype(np.uint16)[0, 7] == 0xFFFF
    nans = search.find_index8(f32([[np.nan] * 8]), f32([[np.nan] * 8]))
    assert nans.tolist() == [[search.MISSING] * 8]


def documented_match_replace(data, vals, imm):
    """The vendor's NumPy equivalent, with the slots taken from 7 down as release 0.6 does."""
    data, indices = data.copy(), np.zeros(vals.shape, dtype=np.uint32)
    for i in range(data.shape[0]):
        for j in reversed(range(8)):
            matches = np.where(data[i] == vals[i, j])[0]
            if matches.size > 0:
                indices[i, j] = matches[0]
                data[i, matches[0]] = imm
    return data, indices


@settings(max_examples=100, deadline=None)
@given(FEW)
def test_match_replace8_of_the_eight_largest_is_the_documented_loop(x):
    vals = search.max8(x)
    got, places = search.match_replace8(x, vals, -1.0)
    expected, expected_places = documented_match_replace(x, vals, -1.0)
    assert np.array_equal(got, expected)
    assert np.array_equal(places, expected_places)


def test_match_replace8_gives_the_lowest_place_to_the_highest_slot():
    data = f32([[7, 2, 7, 1, 7, 0, 0, 3]])
    vals = f32([[7, 7, 7, 3, 2, 1, 0, 0]])
    got, places = search.match_replace8(data, vals, -9)
    assert got.tolist() == [[-9] * 8]
    assert places.tolist() == [[4, 2, 0, 7, 1, 3, 6, 5]]
    assert search.find_index8(data, vals).tolist() == [[0, 2, 4, 7, 1, 3, 5, 6]]
    assert data[0, 0] == 7


def test_match_replace8_when_the_replacement_is_among_the_values():
    low = -np.inf
    data = f32([[low, 4, low, 1, low, 3, 2, low]]).reshape(1, 2, 4)
    vals = f32([[4, 3, 2, 1, low, low, low, low]])
    got, places = search.match_replace8(data, vals, low)
    assert got.shape == (1, 2, 4)
    assert (got == low).all()
    assert places.tolist() == [[1, 5, 6, 3, 7, 4, 2, 0]]


def test_match_replace8_leaves_out_what_is_not_there():
    got, places = search.match_replace8(f32([[1, 2, 3, 4, 5, 6, 7, 8]]), f32([[9] * 7 + [1]]), 0)
    assert got.tolist() == [[0, 2, 3, 4, 5, 6, 7, 8]]
    assert places.tolist() == [[search.MISSING] * 7 + [0]]


def to_snakes(rows):
    """Rows [G, n] as 16-partition snakes, unused places NaN."""
    columns = -(-rows.shape[1] // 16)
    src = np.full((16 * len(rows), columns), np.nan, dtype=np.float32)
    for g, row in enumerate(rows):
        for s, value in enumerate(row):
            src[16 * g + s % 16, s // 16] = value
    return src


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(8, 50), st.integers(1, 3))
def test_topk_is_ascending_and_laid_as_a_snake(data, n, groups):
    k = data.draw(st.integers(1, n))
    rows = data.draw(hnp.arrays(np.float32, (groups, n), elements=st.integers(-9, 9)))
    values, places, held = search.topk(to_snakes(rows), n, k)
    assert values.shape == places.shape == held.shape == (16 * groups, -(-k // 16))
    assert held.sum() == groups * k
    for g, row in enumerate(rows):
        answer = [(16 * g + j % 16, j // 16) for j in range(k)]
        assert all(held[at] for at in answer)
        found = [int(places[at]) for at in answer]
        # The vendor library's check: a stable descending sort, reversed.
        assert found == np.argsort(-row, kind="stable")[:k][::-1].tolist()
        assert [values[at] for at in answer] == row[found].tolist()


def test_topk_of_random_bits_is_a_stable_sort():
    bits = np.random.default_rng(1).integers(0, 2**16, (2, 5000), dtype=np.uint16)
    bits[:, ::9], bits[:, 1::9] = 0x8000, 0  # -0.0 equals 0.0
    rows = bits.view(ml_dtypes.bfloat16).astype(np.float32)
    ranked = np.where(np.isnan(rows), np.inf, rows)
    _, places, held = search.topk(to_snakes(rows), 5000, 640)
    for g, row in enumerate(ranked):
        found = places[16 * g : 16 * g + 16].T.reshape(-1)
        assert found.tolist() == np.argsort(-row, kind="stable")[:640][::-1].tolist()
    assert held.all()


def test_topk_ranks_nan_as_infinity():
    row = f32([[1, np.nan, np.inf, -np.inf, 0, 2, 3, 4]]).astype(ml_dtypes.bfloat16)
    values, places, _ = search.topk(to_snakes(row.astype(np.float32)), 8, 3)
    assert places[:3, 0].tolist() == [7, 2, 1]
    assert np.isnan(values[2, 0])
    assert values.shape == (16, 1)


def test_nonzero_with_count_is_the_documented_example():
    src = np.zeros((32, 8), dtype=np.int32)
    src[0] = [0, 1, 1, 0, 0, 1, 0, 0]
    src[16] = -3
    src[1] = 1  # not partition 0 of its group: not read
    got = search.nonzero_with_count(src, index_offset=16, padding_val=-1)
    assert got.tolist() == [
        [17, 18, 21, -1, -1, -1, -1, -1, 3],
        [16, 17, 18, 19, 20, 21, 22, 23, 8],
    ]
    assert got.dtype == np.int32


@pytest.mark.parametrize("partitions", [1, 15, 16, 17, 128])
def test_nonzero_with_count_has_a_row_per_group(partitions):
    src = np.full((partitions, 3), 0.0, dtype=np.float32)
    src[-1, 2] = np.nan
    got = search.nonzero_with_count(src, padding_val=7)
    assert got.shape == (-(-partitions // 16), 4)
    last = [2, 7, 7, 1] if partitions % 16 == 1 else [7, 7, 7, 0]
    assert got[-1].tolist() == last


def documented_bounds(sequence):
    n = len(sequence)
    low, high = np.zeros(n), np.zeros(n)
    low[0] = 0 if sequence[0] != 0 else n
    for i in range(1, n):
        if sequence[i] == 0:
            low[i] = n
        elif sequence[i] == sequence[i - 1]:
            low[i] = low[i - 1]
        else:
            low[i] = i
    high[-1] = n if sequence[-1] != 0 else -1
    for i in range(n - 2, -1, -1):
        if sequence[i] == 0:
            high[i] = -1
        elif sequence[i] == sequence[i + 1]:
            high[i] = high[i + 1]
        else:
            high[i] = i + 1
    return np.vstack((low, high))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.sampled_from(["i4", "f4"]))
def test_sequence_bounds_is_the_documented_loop(ids, dtype):
    got = search.sequence_bounds(np.array([ids], dtype=dtype))
    assert got.dtype == np.dtype(dtype)
    assert got.shape == (1, 2, len(ids))
    assert np.array_equal(got[0], documented_bounds(ids))
