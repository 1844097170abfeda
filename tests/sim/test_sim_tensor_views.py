"""Views of tiles and HBM tensors: the published examples, and any chain of views against NumPy."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.sim.language.allocate import ndarray
from dslearn.sim.rules import RuleError
from tests.support.sim import HBM, PSUM, SBUF, expect_refusal, filled, values


def counted(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(prod(shape), dtype=np.int32).reshape(shape)


def test_a_fresh_tile_has_row_major_strides_and_its_attributes():
    t = ndarray((128, 64), "float32", SBUF, name="x")
    assert (t.shape, t.strides, t.offset, t.ndim, t.size) == ((128, 64), (64, 1), 0, 2, 8192)
    assert (t.dtype, t.buffer, t.name) == ("float32", SBUF, "x")
    assert t.get_pattern() == [[64, 128], [1, 64]]
    assert t.is_contiguous() and not t.is_indirect()


@pytest.mark.parametrize(
    "key, shape",
    [
        ((0, 0, 10), (1, 1)),
        ((slice(None), 0), (64, 64)),
        ((slice(None), 0, 10), (64, 1)),
        ((slice(None), slice(None), slice(None, None, 2)), (64, 64, 32)),
        ((Ellipsis, -1), (64, 64)),
        ((0,), (1, 64, 64)),
    ],
)
def test_published_index_examples_of_a_64_cube(key, shape):
    cube = counted((64, 64, 64))
    view = filled(cube)[key]
    assert view.shape == shape
    assert np.array_equal(values(view), cube[key].reshape(shape))


def test_published_view_examples():
    t = ndarray((128, 4, 8), "float32")
    assert t.permute((0, 2, 1)).shape == (128, 8, 4)
    assert ndarray((128, 1, 64), "float32").broadcast(1, 8).shape == (128, 8, 64)
    assert ndarray((128, 64), "float32").expand_dim(1).shape == (128, 1, 64)
    assert ndarray((128, 1, 64), "float32").squeeze_dim(1).shape == (128, 64)
    assert ndarray((128, 24), "float32").reshape_dim(1, (4, -1)).shape == (128, 4, 6)
    assert ndarray((128, 2, 3, 4), "float32").flatten_dims(1, 2).shape == (128, 6, 4)
    assert ndarray((128, 4, 6), "float32").reshape((128, 2, 12)).shape == (128, 2, 12)
    t = ndarray((128, 64), "float32")
    assert (t.slice(1, 8, 24, 1).shape, t.slice(1, 0, 64, 2).shape) == ((128, 16), (128, 32))
    assert ndarray((128, 8, 64), "float32").select(1, 3).shape == (128, 64)
    assert (t.view("uint8").shape, t.view("int32").shape) == ((128, 256), (128, 64))
    assert ndarray((128, 256), "uint8").view("float32").shape == (128, 64)


def test_rearrange_splits_orders_and_merges_as_the_published_example():
    array = counted((128, 24))
    view = filled(array).rearrange(("b", ("h", "w")), ("b", "w", "h"), {"h": 4})
    assert np.array_equal(values(view), array.reshape(128, 4, 6).transpose(0, 2, 1))
    with expect_refusal("view"):
        filled(array).rearrange(("b", ("h", "w")), ("b", "w"), {"h": 4})
    with expect_refusal("view"):
        filled(array).rearrange(("b", ("h", "w")), ("b", "w", "h"), {"h": 5})


def test_hbm_integers_drop_dimensions_down_to_one():
    cube = counted((4, 5, 6))
    t = filled(cube, HBM)
    assert (t[1].shape, t[1, 2].shape, t[1, 2, 3].shape) == ((5, 6), (6,), (1,))
    assert np.array_equal(values(t[:, 2]), cube[:, 2])
    assert values(t[1, 2, 3]) == cube[1, 2, 3]


@pytest.mark.parametrize("region", [SBUF, PSUM, HBM])
def test_slices_outside_are_refused_and_not_clamped(region):
    t = ndarray((8, 16), "float32", region, name="t")
    assert t[:, 8:16].shape == (8, 8)
    with expect_refusal("bounds", "Out-of-bound access for tensor `t` on dimension 1", "[8, 16]"):
        t[:, 8:17]
    for key in ((slice(None), slice(4, 4)), (slice(9), slice(None)), (slice(None), 16), (0, 0, 0)):
        with pytest.raises((AssertionError, IndexError)):
            t[key]


@pytest.mark.parametrize(
    "view, rule",
    [
        (lambda t: t.permute((1, 0, 2)), "partition-view"),
        (lambda t: t[0:1].broadcast(0, 8), "partition-view"),
        (lambda t: t.reshape((16, 3)), "partition-view"),
        (lambda t: t.expand_dim(0), "partition-view"),
        (lambda t: t.broadcast(1, 8), "view"),
        (lambda t: t.reshape((8, 7)), "view"),
        (lambda t: t.squeeze_dim(1), "view"),
        (lambda t: t.permute((0, 2, 1)).reshape((8, 6)), "view"),
        (lambda t: t[:, :, ::2].view("uint8"), "view"),
        (lambda t: t.view("uint8")[:, :, 0:3].view("float32"), "view"),
        (lambda t: t.indirect(t), "platform"),
    ],
)
def test_views_that_are_no_views_are_refused_by_rule(view, rule):
    with expect_refusal(rule):
        view(ndarray((8, 2, 3), "float32"))
    assert ndarray((8, 2, 3), "float32").reshape((8, 6)).shape == (8, 6)


def test_writing_through_a_view_changes_the_tile():
    array = counted((4, 3, 5))
    t = filled(array)
    t[0:2, 2, ::2] = filled(np.full((2, 3), -7, np.int32))
    array[0:2, 2, ::2] = -7
    assert np.array_equal(values(t), array)


def step(data: Any, t: Any, a: np.ndarray, chip: bool) -> tuple[Any, np.ndarray]:
    """One random view of both; a reshape that NumPy must copy has to be refused."""
    low = 1 if chip else 0
    dim = data.draw(st.integers(0, a.ndim - 1))
    size = a.shape[dim]
    cut = (slice(None),) * dim
    kind = data.draw(st.sampled_from(["slice", "select", "permute", "split", "flatten", "expand"]))
    if kind == "slice":
        start = data.draw(st.integers(0, size - 1))
        end, by = data.draw(st.integers(start + 1, size)), data.draw(st.integers(1, 3))
        return t.slice(dim, start, end, by), a[(*cut, slice(start, end, by))]
    if kind == "select":
        i = data.draw(st.integers(-size, size - 1))
        kept = (chip and dim == 0) or a.ndim <= 1 + low
        return t.select(dim, i), np.take(a, [i], dim) if kept else a[(*cut, i)]
    if kind == "permute":
        order = data.draw(st.permutations(range(low, a.ndim)))
        order = [*range(low), *order]
        return t.permute(order), a.transpose(order)
    if kind == "expand" and a.ndim < 5:
        at = data.draw(st.integers(low, a.ndim))
        t, a = t.expand_dim(at), np.expand_dims(a, at)
        n = data.draw(st.integers(1, 3))
        return t.broadcast(at, n), np.broadcast_to(a, (*a.shape[:at], n, *a.shape[at + 1 :]))
    if kind == "split" and dim >= low:
        parts = [n for n in range(1, size + 1) if size % n == 0]
        n = data.draw(st.sampled_from(parts))
        return t.reshape_dim(dim, (n, -1)), a.reshape(*a.shape[:dim], n, -1, *a.shape[dim + 1 :])
    if kind == "flatten" and dim >= low:
        end = data.draw(st.integers(dim, a.ndim - 1))
        flat = a.reshape(*a.shape[:dim], -1, *a.shape[end + 1 :])
        if np.shares_memory(flat, a):
            return t.flatten_dims(dim, end), flat
        with pytest.raises(RuleError):
            t.flatten_dims(dim, end)
    return t, a


@settings(max_examples=300, deadline=None)
@given(st.data(), st.booleans())
def test_any_chain_of_views_shows_what_numpy_shows(data, chip):
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=2, max_size=4)))
    array = counted(shape)
    t = filled(array, SBUF if chip else HBM)
    for _ in range(data.draw(st.integers(1, 6))):
        t, array = step(data, t, array, chip)
        assert t.shape == array.shape
        assert np.array_equal(values(t), array)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_index_shows_what_numpy_shows(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=2, max_size=4)))
    array = counted(shape)
    key: list[Any] = []
    for size in shape[: data.draw(st.integers(1, len(shape)))]:
        start = data.draw(st.integers(0, size - 1))
        whole = slice(start, data.draw(st.integers(start + 1, size)), data.draw(st.integers(1, 3)))
        key.append(data.draw(st.sampled_from([start, start - size, whole, slice(None)])))
    expected = array[tuple(key)]
    view = filled(array, HBM)[tuple(key)]
    assert np.array_equal(values(view).reshape(expected.shape), expected)
    on_chip = filled(array)[tuple(key)]
    assert on_chip.ndim >= 2 and np.array_equal(values(on_chip).ravel(), expected.ravel())


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["uint8", "uint16", "float16", "int32", "float32"]), st.integers(1, 4))
def test_view_as_another_dtype_is_numpys(kind, words):
    array = np.random.default_rng(words).integers(0, 255, (5, 4 * words), np.uint8)
    seen = values(filled(array).view(kind))
    assert seen.tobytes() == array.tobytes() and seen.shape == array.view(seen.dtype).shape
