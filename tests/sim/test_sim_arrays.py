"""Calling a kernel on arrays: what goes in by reference, what comes back, what is refused."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from dslearn.sim.access import load, store
from dslearn.sim.dtypes import DTYPES, FLOATS, NUMPY, dtype
from dslearn.sim.jit import jit, simulate
from dslearn.sim.language.allocate import ndarray
from dslearn.sim.rules import KernelError
from tests.support.sim import HBM, PSUM, SBUF, SHARED, expect_refusal


@jit
def copied(x):
    out = ndarray(x.shape, x.dtype, SHARED)
    store(out, load(x))
    return out


@jit
def doubled_in_place(x):
    store(x, load(x) * 2)
    return x


ROUND_TRIP = [
    np.float32, np.float16, np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32, np.bool_,
    ml_dtypes.bfloat16, ml_dtypes.float8_e4m3, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn,
]  # fmt: skip


@pytest.mark.parametrize("kind", ROUND_TRIP)
def test_numpy_arrays_come_back_with_their_dtype_and_bits(kind):
    x = np.arange(6).reshape(2, 3).astype(kind)
    y = copied(x)
    assert isinstance(y, np.ndarray) and y.dtype == x.dtype and y.tobytes() == x.tobytes()
    assert y is not x


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.int32, torch.bool])
def test_torch_tensors_come_back_as_torch(kind):
    x = torch.arange(6).reshape(2, 3).to(kind)
    y = simulate(copied)(x)
    assert isinstance(y, torch.Tensor) and y.dtype == kind and torch.equal(x, y)


@pytest.mark.parametrize("value", [np.zeros(2), np.zeros(2, np.int64), torch.zeros(2).double()])
def test_dtypes_that_the_chip_lacks_are_refused_in_the_vendors_words(value):
    with pytest.raises(ValueError, match="Unsupported dtype: (float64|int64)"):
        copied(value)
    assert copied(np.zeros(2, np.float32)).shape == (2,)


def strided() -> tuple[np.ndarray, np.ndarray]:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    return base, base[::2, ::3]


def test_a_kernel_that_writes_its_input_changes_the_callers_array():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y = doubled_in_place(x)
    assert y is x and x.tolist() == [[0, 2, 4], [6, 8, 10]]


def test_also_when_the_array_is_not_contiguous():
    base, view = strided()
    expected, rest = view * 2, base.sum() - view.sum()
    y = doubled_in_place(view)
    assert y is view and np.array_equal(view, expected)
    assert base.sum() == rest + expected.sum(), "other elements of the base changed"


@pytest.mark.parametrize("contiguous", [True, False])
def test_also_for_torch(contiguous):
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    x = base if contiguous else base.t()
    expected = x * 2
    y = doubled_in_place(x)
    assert y is x and torch.equal(x, expected)


def test_one_array_given_twice_is_one_tensor():
    @jit
    def same(a, b):
        store(a, load(b) + 1)
        return a

    x = np.zeros((2, 2), np.float32)
    same(x, x)
    assert (x == 1).all()


def test_containers_names_and_plain_values_pass_through():
    seen = {}

    @jit
    def kernel(pair, table, n, flag=True):
        seen.update(names=(pair[0].name, table["w"].name), n=n, flag=flag)
        out = ndarray((2,), "float32", SHARED)
        store(out, load(pair[0]) + load(table["w"]))
        return out, {"n": n}["n"]

    x = np.ones(2, np.float32)
    out, n = kernel((x, x + 1), {"w": x + 2}, n=7)
    assert out.tolist() == [4, 4] and n == 7
    assert seen == {"names": ("pair_0", "table_w"), "n": 7, "flag": True}


def test_a_view_of_a_result_comes_back_with_its_shape():
    @jit
    def kernel(x):
        out = ndarray((4, 6), "float32", SHARED)
        store(out, load(x))
        return out[1:3, ::2], out.reshape((6, 4))

    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    a, b = kernel(x)
    assert np.array_equal(a, x[1:3, ::2]) and np.array_equal(b, x.reshape(6, 4))


@pytest.mark.parametrize("region, cores", [(SBUF, 1), (PSUM, 1), (HBM, 2), (HBM, 1), (SHARED, 2)])
def test_results_live_in_hbm_that_the_caller_sees(region, cores):
    @jit
    def kernel(x, given):
        return x[0:1] if given else ndarray((2, 2), "float32", region)

    x = np.zeros((2, 2), np.float32)
    assert kernel[cores](x, given=True).shape == (1, 2)
    if (region, cores) in ((HBM, 1), (SHARED, 2)):
        assert kernel[cores](x, given=False).shape == (2, 2)
    else:
        with expect_refusal("region", "results live in nl.shared_hbm"):
            kernel[cores](x, given=False)


def test_parts_of_a_result_that_nobody_wrote_are_visible():
    @jit
    def kernel(x):
        out, counts = ndarray((2, 2), "float32", SHARED), ndarray((2,), "int32", SHARED)
        store(out[0:1], load(x))
        return out, counts

    with pytest.warns(UserWarning, match=r"2 of 4 elements were never written"):
        out, counts = kernel(np.zeros((1, 2), np.float32))
    assert out[0].tolist() == [0, 0] and np.isnan(out[1]).all() and counts.tolist() == [4, 4]


@pytest.mark.parametrize("name", list(DTYPES))
def test_dtype_names_are_strings_with_a_size(name):
    kind = dtype(name)
    assert kind is DTYPES[name] and kind == name and kind.itemsize == NUMPY[name].itemsize


def test_numpy_torch_and_ml_dtypes_names_are_understood():
    assert dtype(np.float32) == dtype(torch.float32) == dtype(np.dtype("float32")) == "float32"
    assert dtype(bool) == dtype(torch.bool) == "bool_"
    assert dtype(ml_dtypes.float8_e4m3) == "float8_e4m3" and "float8_e4m3" in FLOATS
    assert NUMPY["float8_e4m3"] == ml_dtypes.float8_e4m3
    for wrong in ("float64", np.int64, torch.complex64, object, 3):
        with pytest.raises(KernelError, match="Unsupported dtype"):
            dtype(wrong)


@jit
def doubled_beside(a, b):
    store(a, load(a) * 2)
    return {"same": a, "read": b}


def test_only_what_a_kernel_changed_is_brought_back():
    a = torch.ones(4, 8)
    doubled_beside(a, a[:, ::2])  # b is a copy of part of a, and is only read
    assert torch.equal(a, torch.full((4, 8), 2.0))
    wide = torch.ones(1, 8).expand(4, 8)  # may be read, and has no place for four rows
    doubled_beside(torch.ones(2, 2), wide)
    with torch.inference_mode():
        read = torch.ones(8, 4).t()
    doubled_beside(torch.ones(2, 2), read)
    strided = torch.ones(4, 16)[:, ::2]
    found = doubled_beside(strided, a)
    assert found["same"] is strided and torch.equal(strided, torch.full((4, 8), 2.0))


def test_a_read_only_array_may_be_read_but_not_written():
    fixed = np.ones((4, 8), np.float32)
    fixed.flags.writeable = False
    assert doubled_beside(np.ones((2, 2), np.float32), fixed)["read"] is fixed
    with pytest.raises(TypeError, match="read-only array: pass a copy"):
        doubled_beside(fixed, fixed)
