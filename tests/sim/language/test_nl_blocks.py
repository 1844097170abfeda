"""Reductions, softmax, rms_norm, where, moves and fills against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.sim import modules
from tests.support.sim import HBM, PSUM, SBUF, SHARED, expect_refusal, filled, values

NKI = modules.build()
nl, nisa = NKI["nki.language"], NKI["nki.isa"]


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("name", ["sum", "max", "min", "prod", "mean", "var"])
@pytest.mark.parametrize("axis", [-1, 2, (1, 2), [1, 2]])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions_are_numpys(name, axis, keepdims):
    x = noise(5, 3, 7)
    axes = tuple(axis) if isinstance(axis, list) else axis
    keep = keepdims or name == "var"  # var ignores it, as published
    expected = getattr(np, name)(x.astype(np.float64), axis=axes, keepdims=keep)
    out = getattr(nl, name)(filled(x), axis=axis, keepdims=keepdims)
    assert out.ndim >= 2 and out.shape == (expected.shape if expected.ndim > 1 else (5, 1))
    assert np.allclose(values(out).reshape(expected.shape), expected, rtol=1e-5, atol=1e-6)
    half = getattr(nl, name)(filled(x), axis=axis, dtype=nl.bfloat16)
    assert half.dtype == nl.bfloat16


def test_all_says_whether_every_element_is_set():
    x = np.array([[1, 2, 3], [1, 0, 3]], np.float32)
    assert values(nl.all(filled(x), axis=1)).tolist() == [[1], [0]]


@pytest.mark.parametrize("axis, rule", [(0, "operand"), ((1,), "operand"), (3, "bounds")])
def test_reductions_over_partitions_or_inner_dimensions_are_refused(axis, rule):
    x = filled(noise(4, 3, 5))
    assert nl.sum(x, axis=2).shape == (4, 3)
    with expect_refusal(rule, "axis"):
        nl.sum(x, axis=axis)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 128), st.integers(1, 70), st.sampled_from([1, 50]))
def test_softmax_is_the_definition_and_survives_large_inputs(rows, columns, size):
    x = noise(rows, columns) * size
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    assert np.abs(values(nl.softmax(filled(x))) - e / e.sum(1, keepdims=True)).max() < 1e-6


def test_softmax_of_equal_inputs_and_over_several_dimensions():
    assert (values(nl.softmax(nl.full((128, 512), 1.0, dtype=nl.float32), axis=1)) == 1 / 512).all()
    x = noise(4, 3, 5)
    total = values(nl.softmax(filled(x), axis=(1, 2))).sum((1, 2))
    assert np.allclose(total, 1, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 6])
def test_rms_norm_is_the_definition(rows):
    x, w = noise(6, 40), noise(rows, 40)
    out = nl.rms_norm(filled(x), filled(w), axis=1, n=40, epsilon=1e-6)
    y = x.astype(np.float64)
    expected = y / np.sqrt((y**2).mean(1, keepdims=True) + 1e-6) * w
    assert np.allclose(values(out), expected, rtol=2e-6, atol=1e-6)
    two = nl.full((128, 512), 2.0, dtype=nl.float32)
    one = nl.full((128, 512), 1.0, dtype=nl.float32)
    assert np.allclose(values(nl.rms_norm(two, one, axis=1, n=512)), 1.0)


def test_where_takes_tiles_and_numbers():
    cond = filled(np.array([[1, 0, 1]], np.float32))
    x, y = filled(np.array([[10, 20, 30]], np.float32)), filled(np.array([[5, 6, 7]], np.float32))
    assert values(nl.where(cond, x, y)).tolist() == [[10, 6, 30]]
    assert values(nl.where(cond, x, 0.0)).tolist() == [[10, 0, 30]]
    assert values(nl.where(cond, -1.0, y)).tolist() == [[-1, 6, -1]]
    mask = nl.equal(cond, 0.0, dtype=nl.uint8)
    out = nl.where(mask, x, y, dtype=nl.bfloat16)
    assert out.dtype == nl.bfloat16 and values(out).astype(int).tolist() == [[5, 20, 7]]
    with expect_refusal("arguments", "dtype="):
        nl.where(cond, 1.0, 2.0)


def test_random_functions_say_that_they_are_not_simulated():
    x = filled(noise(2, 2))
    for call in (
        lambda: nl.dropout(x, 0.5),
        lambda: nl.rand((2, 2), nl.float32),
        lambda: nl.random_seed(x),
    ):
        with expect_refusal("not-simulated", "nl.", kind=NotImplementedError):
            call()


def test_load_and_store_move_and_cast():
    x = noise(100, 33)
    tile = nl.load(filled(x, HBM), dtype=nl.bfloat16)
    assert tile.buffer is nl.sbuf and np.array_equal(values(tile), x.astype(values(tile).dtype))
    out = nl.ndarray((100, 33), nl.float32, buffer=nl.private_hbm)
    nl.store(out, value=tile)
    assert np.array_equal(values(out), values(tile).astype(np.float32))
    with expect_refusal("region", "psum"):
        nl.store(out, filled(x, PSUM))
    with expect_refusal("partition-limit"):
        nl.load(filled(noise(129, 2), HBM))


@pytest.mark.parametrize("shape", [(128, 128), (3, 70), (100, 1)])
def test_transpose_and_matmul_land_in_psum(shape):
    x, y = noise(*shape), noise(shape[0], 200)
    out = nl.transpose(filled(x))
    assert out.buffer is nl.psum and np.array_equal(values(out), x.T)
    product = nl.matmul(filled(x), filled(y), transpose_x=True)
    assert product.buffer is nl.psum and product.dtype == nl.float32
    assert np.allclose(values(product), x.T.astype(np.float64) @ y, atol=1e-4)
    with expect_refusal("operand", "transpose_x=True"):
        nl.matmul(filled(x), filled(y))


def test_published_identity_examples():
    eye = nl.shared_identity_matrix(n=128, dtype=nl.float32)
    assert eye.buffer is nl.sbuf and np.array_equal(values(eye), np.eye(128))
    result = nl.ndarray((128, 128), nl.float32)
    nisa.tensor_copy(result, nl.transpose(eye))
    assert np.array_equal(values(result), np.eye(128))
    ones = nl.full((128, 128), 1.0, dtype=nl.float32)
    assert (values(nl.matmul(eye, ones, transpose_x=True)) == 1).all()
    dst = nl.ndarray((16, 16), nl.bfloat16)
    assert nl.shared_identity_matrix(16, nl.bfloat16, dst) is dst
    assert np.array_equal(values(dst).astype(float), np.eye(16))
    assert nl.shared_identity_matrix(4).dtype == nl.uint8


def test_load_transpose2d_swaps_partitions_and_columns():
    x = noise(48, 32).astype(np.float16)
    assert np.array_equal(values(nl.load_transpose2d(filled(x, HBM))), x.T)
    cast = nl.load_transpose2d(filled(x, HBM), dtype=nl.float32)
    assert cast.dtype == nl.float32 and np.array_equal(values(cast), x.T)


@pytest.mark.parametrize(
    "shape, target",
    [((1, 7), (70, 7)), ((1, 1, 5), (128, 3, 5)), ((4, 1), (4, 9)), ((1, 1), (33, 2))],
)
def test_broadcast_to_repeats_partitions_and_columns(shape, target):
    x = noise(*shape)
    assert np.array_equal(values(nl.broadcast_to(filled(x), target)), np.broadcast_to(x, target))
    same = filled(x)
    assert nl.broadcast_to(same, shape) is same
    with expect_refusal("shape"):
        nl.broadcast_to(filled(noise(2, 3)), (4, 3))
    with expect_refusal("shape"):
        nl.broadcast_to(filled(noise(1, 3)), (4, 1, 3))


def test_gather_flattened_reads_each_partitions_own_elements():
    x = noise(6, 3, 4)
    index = np.random.default_rng(0).integers(0, 12, (6, 9)).astype(np.uint32)
    out = nl.gather_flattened(filled(x), filled(index))
    expected = np.take_along_axis(x.reshape(6, 12), index.astype(int), 1)
    assert np.array_equal(values(out), expected)
    with expect_refusal("operand", "axis=1"):
        nl.gather_flattened(filled(x), filled(index), axis=1)


def test_expand_dims_is_a_view():
    x = filled(noise(4, 5))
    assert nl.expand_dims(x, 1).shape == (4, 1, 5)
    assert nl.expand_dims(x, 1).storage is x.storage


@pytest.mark.parametrize("region", [SBUF, PSUM, HBM, SHARED])
@pytest.mark.parametrize("kind", ["float32", "int32", "bfloat16", "uint8"])
def test_fills_work_in_every_memory(region, kind):
    shape = (3, 5)
    for made, value in (
        (nl.zeros(shape, kind, region), 0),
        (nl.ones(shape, kind, buffer=region), 1),
        (nl.full(shape, 7, kind, region, name="x"), 7),
    ):
        assert (made.buffer, made.dtype, made.shape) == (region, kind, shape)
        assert (values(made).astype(int) == value).all()


def test_large_hbm_tensors_are_filled_whole():
    assert (values(nl.full((300, 17), 2.5, nl.float32, buffer=nl.shared_hbm)) == 2.5).all()


def test_fills_like_another_tensor():
    x = filled(noise(4, 6), PSUM)
    like, other = nl.zeros_like(x), nl.zeros_like(x, dtype=nl.int32, buffer=nl.sbuf)
    assert (like.buffer, like.dtype) == (nl.psum, nl.float32) and not values(like).any()
    assert (other.buffer, other.dtype) == (nl.sbuf, nl.int32)
    with expect_refusal("uninitialised"):
        values(nl.empty_like(x))
    with expect_refusal("operand", "int literal"):
        nl.full((2, 2), 1.5, nl.int32)


def test_constants_come_from_arrays_and_files(tmp_path):
    x = noise(3, 4)
    np.save(tmp_path / "x.npy", x)
    for given_ in (x, str(tmp_path / "x.npy")):
        constant = nl.shared_constant(given_)
        assert constant.buffer is nl.shared_hbm and np.array_equal(values(constant), x)
    with expect_refusal("arguments"):
        nl.shared_constant([1, 2])
    with pytest.raises(ValueError, match="Unsupported dtype"):
        nl.shared_constant(np.zeros(2))


def test_device_print_prints_at_once(capsys):
    nl.device_print("tile", filled(np.array([[1.5, 2.0]], np.float32)))
    assert capsys.readouterr().out == "tile [[1.5 2. ]]\n"
    with expect_refusal("uninitialised"):
        nl.device_print("empty", nl.ndarray((2, 2), nl.float32))


def test_buffers_and_objects():
    assert nl.is_sbuf(nl.sbuf) and nl.is_psum(nl.psum) and nl.is_hbm(nl.hbm)
    assert nl.is_hbm(nl.shared_hbm) and nl.is_on_chip(nl.psum) and not nl.is_on_chip(nl.hbm)

    class Config(nl.NKIObject):
        pass

    assert Config(rows=3).rows == 3
