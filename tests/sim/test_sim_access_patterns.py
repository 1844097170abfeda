"""`.ap` addresses storage: any pattern against NumPy's as_strided, and the runtime offsets."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from dslearn.sim.access import Place, load
from dslearn.sim.language.allocate import ndarray
from dslearn.sim.registers import VirtualRegister
from dslearn.sim.rules import BoundsError, NkiValidationError
from tests.support.sim import HBM, expect_refusal, filled, values

FREE = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), min_size=1, max_size=3)


def seen(flat: np.ndarray, pattern: list[tuple[int, int]], offset: int) -> np.ndarray:
    """What the pattern addresses: NumPy's own strided view."""
    strides = [s * flat.itemsize for s, _ in pattern]
    return as_strided(flat[offset:], [n for _, n in pattern], strides)


def reach(pattern: list[tuple[int, int]]) -> int:
    return sum(s * (n - 1) for s, n in pattern)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 8), st.integers(1, 40), FREE, st.integers(0, 40), st.integers(0, 7))
def test_any_pattern_of_a_tile_is_a_strided_view(rows, row, free, column, first):
    tile = np.arange(rows * row, dtype=np.int32).reshape(rows, row)
    count = max(rows - first, 1)
    pattern, offset = [(row, count), *free], first * row + column
    inside = column + reach(free) < row and first < rows
    t = filled(tile)
    if inside:
        view = t.ap([list(pair) for pair in pattern], offset=offset)
        assert np.array_equal(values(view), seen(tile.ravel(), pattern, offset))
    else:
        with pytest.raises(BoundsError) as caught:
            t.ap([list(pair) for pair in pattern], offset=offset)
        assert caught.value.rule == "bounds"


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 60), FREE, st.integers(0, 30))
def test_any_pattern_of_an_hbm_tensor_is_a_strided_view(size, pattern, offset):
    flat = np.arange(size, dtype=np.int32)
    t = filled(flat, HBM)
    if offset + reach(pattern) < size:
        assert np.array_equal(values(t.ap(pattern, offset=offset)), seen(flat, pattern, offset))
    else:
        with pytest.raises(BoundsError):
            t.ap(pattern, offset=offset)


def test_ap_ignores_the_views_own_shape_and_keeps_its_offset():
    tile = np.arange(64, dtype=np.int32).reshape(4, 16)
    view = filled(tile)[:, 4:6]
    assert np.array_equal(values(view.ap([[16, 4], [2, 3]])), tile[:, 4:10:2])
    assert np.array_equal(values(view.ap([[16, 4], [1, 16]], offset=0)), tile)


def test_with_dtype_patterns_and_offsets_count_new_elements():
    tile = np.arange(32, dtype=np.uint16).reshape(2, 16)
    words = tile.view(np.uint32)
    view = filled(tile).ap([[8, 2], [2, 3]], offset=1, dtype="uint32")
    assert view.dtype == "uint32" and np.array_equal(values(view), words[:, 1:7:2])
    nibbles = filled(tile).ap([[32, 2], [1, 4]], dtype="uint8")
    assert np.array_equal(values(nibbles), tile.view(np.uint8)[:, :4])


def test_partitions_with_holes_are_refused_in_the_vendors_words():
    t = ndarray((8, 16), "float32")
    assert t.ap([[16, 8], [1, 4]]).shape == (8, 4)
    with expect_refusal(
        "partition-view", "ap() pattern has invalid partition stride", kind=NkiValidationError
    ):
        t.ap([[32, 4], [1, 4]])
    with expect_refusal("bounds"):
        t.ap([[16, 8], [-1, 4]])


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("kind", ["register", "tile"])
def test_a_scalar_offset_counts_in_the_base_shape(dim, kind):
    shape = (3, 4, 5)
    array = np.arange(60, dtype=np.int32).reshape(shape)
    scalar = VirtualRegister(2) if kind == "register" else filled(np.full((1, 1), 2, np.int32))
    view = filled(array, HBM).ap([[1, 3]], scalar_offset=scalar, indirect_dim=dim)
    start = 2 * prod(shape[dim + 1 :])
    assert view.is_indirect()
    assert np.array_equal(values(view), array.ravel()[start : start + 3])


def test_a_scalar_offset_outside_is_found_when_the_instruction_runs():
    t = filled(np.arange(12, dtype=np.int32).reshape(3, 4), HBM)
    assert np.array_equal(values(t.ap([[1, 4]], scalar_offset=VirtualRegister(2))), [8, 9, 10, 11])
    for value in (3, -1):
        with expect_refusal("bounds", kind=BoundsError):
            values(t.ap([[1, 4]], scalar_offset=VirtualRegister(value)))


def test_dynamic_select_adds_to_the_static_view():
    array = np.arange(4 * 6 * 5, dtype=np.int32).reshape(4, 6, 5)
    index = filled(np.full((1, 1), 3, np.int32))
    view = filled(array, HBM).select(0, index)
    assert view.shape == (6, 5) and np.array_equal(values(view), array[3])
    assert np.array_equal(values(view[1:3, ::2]), array[3, 1:3, ::2])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=16), st.integers(0, 2), st.integers(1, 3))
def test_a_vector_offset_gathers_rows_whatever_the_leading_stride(rows, column, step):
    array = np.arange(100, dtype=np.int32).reshape(10, 10)
    index = filled(np.array(rows, np.int32)[:, None])
    view = filled(array, HBM).ap(
        [[7, len(rows)], [step, 3]], offset=column, vector_offset=index, indirect_dim=0
    )
    assert np.array_equal(values(view), array[rows, column:][:, : 2 * step + 1 : step])
    selected = filled(array, HBM).vector_select(0, index)
    assert np.array_equal(values(selected), array[rows])


def test_rows_outside_are_refused_or_marked_invalid():
    t = filled(np.arange(20, dtype=np.int32).reshape(5, 4), HBM)
    index = filled(np.array([[1], [5], [-1]], np.int32))
    view = t.ap([[4, 3], [1, 4]], vector_offset=index)
    with expect_refusal("bounds", "row 1", kind=BoundsError):
        load(view)
    place = Place(view, skip=True)
    assert place.valid is not None and place.valid.tolist() == [True, False, False]


@pytest.mark.parametrize(
    "make, rule",
    [
        (lambda t, i: t.ap([[4, 3]], scalar_offset=i, vector_offset=i), "arguments"),
        (lambda t, i: t.ap([[4, 3], [1, 4]], vector_offset=i, indirect_dim=1), "region"),
        (lambda t, i: t.ap([[4, 4], [1, 4]], vector_offset=i), "operand"),
        (lambda t, i: t.ap([[4, 1], [1, 4]], scalar_offset=i), "operand"),
        (lambda t, i: t.ap([[4, 1], [1, 4]], scalar_offset=1.5), "operand"),
        (lambda t, i: t.vector_select(1, i), "region"),
        (lambda t, i: t.vector_select(0, i).ap([[1, 3]], vector_offset=i), "view"),
        (lambda t, i: t.vector_select(0, i).select(1, VirtualRegister(0)), "view"),
        (lambda t, i: t.select(0, VirtualRegister(0)).select(0, VirtualRegister(0)), "view"),
        (lambda t, i: t.vector_select(0, i)[1:3], "view"),
        (lambda t, i: t.vector_select(0, i).permute((1, 0)), "view"),
        (lambda t, i: t.vector_select(0, i).view("uint8"), "view"),
        (lambda t, i: t.select(0, i[0:1, 0:1]).view("int32"), "view"),
        (lambda t, i: t.select(0, i), "operand"),
        (lambda t, i: i.select(0, VirtualRegister(0)), "partition-view"),
    ],
)
def test_runtime_offsets_that_the_hardware_lacks_are_refused(make, rule):
    t = filled(np.zeros((5, 4), np.int32), HBM)
    index = filled(np.zeros((3, 1), np.int32))
    assert t.ap([[4, 3], [1, 4]], vector_offset=index).shape == (3, 4)
    with expect_refusal(rule):
        make(t, index)


def test_registers_have_no_value_for_python():
    t = filled(np.zeros((4, 4), np.float32))
    register = VirtualRegister(1)
    for use in (
        lambda: t[register],
        lambda: t[:, register:register],
        lambda: bool(register),
        lambda: register + 1,
        lambda: range(register),
        lambda: register < 3,
    ):
        with expect_refusal("register", kind=TypeError):
            use()
    assert register.read() == 1
