"""nc_matmul: values, formats, sizes, memories, banks."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn.sim.isa.copies import tensor_copy
from dslearn.sim.isa.matmul import nc_matmul
from dslearn.sim.tensor import NkiTensor
from tests.support.isa import empty, grid, last
from tests.support.sim import HBM, PSUM, expect_refusal, filled, values


def _psum(m: int, n: int, kind: str = "float32") -> NkiTensor:
    return empty((m, n), kind, PSUM)


def _integers(p: int, n: int, seed: int) -> np.ndarray:
    """Small integers: every order of summation gives the same fp32 number."""
    return np.random.default_rng(seed).integers(-8, 8, (p, n)).astype(np.float32)


def _product(a: NkiTensor, b: NkiTensor) -> np.ndarray:
    wide = [values(t).astype(np.float64).reshape(t.shape[0], -1) for t in (a, b)]
    return wide[0].T @ wide[1]


@given(st.integers(1, 128), st.integers(1, 128), st.integers(1, 512))
@settings(max_examples=25, deadline=None)
def test_stationary_transposed_times_moving(k: int, m: int, n: int) -> None:
    a, b = filled(_integers(k, m, k)), filled(_integers(k, n, n))
    dst = _psum(m, n)
    nc_matmul(dst=dst, stationary=a, moving=b)
    assert np.array_equal(values(dst), _product(a, b))


@pytest.mark.parametrize("left", ["float8_e4m3", "float8_e5m2", "bfloat16", "float16"])
@pytest.mark.parametrize("right", ["float8_e4m3", "float8_e5m2", "bfloat16", "float16"])
def test_narrow_formats_mix(left: str, right: str) -> None:
    a, b = filled(grid(37, 9), kind=left), filled(grid(37, 21, 1), kind=right)
    dst = _psum(9, 21)
    nc_matmul(dst, a, b)
    np.testing.assert_allclose(values(dst), _product(a, b), rtol=1e-5, atol=1e-5)


def test_products_are_exact_and_the_sum_is_fp32() -> None:
    a = filled(np.array([[1 + 2**-7]], np.float32), kind="bfloat16")
    dst = _psum(1, 1)
    nc_matmul(dst, a, a)
    assert values(dst)[0, 0] == (1 + 2**-7) ** 2  # would need 15 bits, bf16 has 8
    ones = filled(np.ones((128, 1), np.float32), kind="bfloat16")
    nc_matmul(dst, ones, ones, accumulate=False)
    assert values(dst)[0, 0] == 128


def test_tf32_operands_are_rounded_to_ten_bits() -> None:
    fine = np.array([[1 + 2**-10 + 2**-12]], np.float32)
    one = filled(np.ones((1, 1), np.float32))
    dst = _psum(1, 1)
    nc_matmul(dst, filled(fine), one)
    assert values(dst)[0, 0] == fine[0, 0]
    nc_matmul(dst, filled(fine).view("tfloat32"), one, accumulate=False)
    assert values(dst)[0, 0] == 1 + 2**-10


def test_infinities_and_nan_go_through() -> None:
    a = filled(np.array([[np.inf, 1.0, np.nan]], np.float32), kind="bfloat16")
    dst = _psum(3, 1)
    nc_matmul(dst, a, filled(np.zeros((1, 1), np.float32), kind="bfloat16"))
    assert np.isnan(values(dst)[:, 0]).tolist() == [True, False, True]


def test_free_dimensions_are_flattened() -> None:
    a, b = _integers(16, 12, 1).reshape(16, 3, 4), _integers(16, 10, 2).reshape(16, 2, 5)
    dst = empty((12, 5, 2), region=PSUM)
    nc_matmul(dst, filled(a), filled(b))
    expected = a.reshape(16, 12).T @ b.reshape(16, 10)
    assert np.array_equal(values(dst).reshape(12, 10), expected)


def test_strided_views() -> None:
    a, b = filled(_integers(8, 12, 1)), filled(_integers(8, 20, 2))
    dst = _psum(6, 10)
    nc_matmul(dst, a[:, ::2], b[:, 0:20:2])
    assert np.array_equal(values(dst), values(a)[:, ::2].T @ values(b)[:, ::2])


def test_onezero_hints_change_nothing() -> None:
    a, b = filled(grid(5, 4)), filled(grid(5, 6, 1))
    plain, hinted = _psum(4, 6), _psum(4, 6)
    nc_matmul(plain, a, b)
    nc_matmul(hinted, a, b, is_stationary_onezero=True, is_moving_onezero=True)
    assert values(plain).tobytes() == values(hinted).tobytes()
    assert last().details["onezero"] is True


def test_dtypes() -> None:
    bf16, fp32 = filled(grid(5, 4), kind="bfloat16"), filled(grid(5, 4))
    with expect_refusal("dtype", "float32 and tfloat32 mix only"):
        nc_matmul(_psum(4, 4), bf16, fp32)
    with expect_refusal("dtype", "moving is int8"):
        nc_matmul(_psum(4, 4), bf16, filled(np.ones((5, 4), np.int8)))
    with expect_refusal("platform", "trn3", "float8_e4m3"):
        nc_matmul(_psum(4, 4), filled(grid(5, 4), kind="float8_e4m3fn"), bf16)
    with expect_refusal("dtype", "float32 on trn2"):
        nc_matmul(_psum(4, 4, "bfloat16"), bf16, bf16)
    nc_matmul(_psum(4, 4), fp32, fp32.view("tfloat32"))
    assert last().inputs[1].dtype == "tfloat32"


def test_sizes_with_the_vendors_words() -> None:
    a, b = filled(grid(5, 4)), filled(grid(5, 6))
    with expect_refusal(
        "shape", "Matmul contraction dimension mismatch: stationary[0]=4 != moving[0]=5"
    ):
        nc_matmul(_psum(4, 6), filled(grid(4, 4)), b)
    with expect_refusal(
        "matmul-size",
        "Matmul stationary free dimension M exceeds gemm_stationary_fmax=128",
        kind=AssertionError,
    ):
        nc_matmul(empty((128, 6), region=PSUM), filled(grid(5, 129)), b)
    with expect_refusal(
        "matmul-size",
        "Matmul moving free dimension N exceeds gemm_moving_fmax=512",
        kind=AssertionError,
    ):
        nc_matmul(_psum(4, 513), a, filled(grid(5, 513)))
    for wrong in ((4, 5), (5, 6), (1, 24)):
        with expect_refusal("shape", "must be (4, 6)"):
            nc_matmul(_psum(*wrong), a, b)
    nc_matmul(_psum(128, 512), filled(grid(128, 128)), filled(grid(128, 512)))
    assert (last().details["k"], last().details["m"], last().details["n"]) == (128, 128, 512)


def test_memories() -> None:
    a, b = filled(grid(5, 4)), filled(grid(5, 6))
    with expect_refusal("region", "nc_matmul dst must be in ['psum'], got sbuf"):
        nc_matmul(empty((4, 6)), a, b)
    with expect_refusal("region", "nc_matmul stationary must be in ['sbuf'], got psum"):
        nc_matmul(_psum(4, 6), filled(grid(5, 4), PSUM), b)
    with expect_refusal("region", "nc_matmul moving must be in ['sbuf']"):
        nc_matmul(_psum(4, 6), a, filled(grid(5, 6), HBM))
    with expect_refusal("uninitialised", "nc_matmul moving"):
        nc_matmul(_psum(4, 6), a, empty((5, 6)))
    nc_matmul(_psum(4, 6), a, b)
    assert last().engine == "tensor"


def test_destination_stays_in_one_bank() -> None:
    a, b = filled(grid(5, 4)), filled(grid(5, 300))
    wide = _psum(4, 1024)
    for start in (0, 212, 512, 724):
        nc_matmul(wide[:, start : start + 300], a, b, accumulate=False)
        np.testing.assert_allclose(
            values(wide[:, start : start + 300]), _product(a, b), rtol=1e-4, atol=1e-5
        )
    for start in (213, 400):
        with expect_refusal("psum-bank", "2048"):
            nc_matmul(wide[:, start : start + 300], a, b)
    with expect_refusal("psum-bank", "2048"):
        nc_matmul(wide[:, ::2][:, 0:300], a, b)


def test_eviction_rounds_once() -> None:
    a, b = filled(grid(64, 8), kind="bfloat16"), filled(grid(64, 16, 1), kind="bfloat16")
    psum, out = _psum(8, 16), empty((8, 16), "bfloat16")
    for part in (slice(0, 32), slice(32, 64)):
        nc_matmul(psum, a[part], b[part])
    tensor_copy(out, psum)
    assert values(out).tobytes() == values(psum).astype(ml_dtypes.bfloat16).tobytes()
    np.testing.assert_allclose(values(psum), _product(a, b), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("m", "n"), [(1, 24), (24, 1), (1, 1), (2, 24)])
def test_an_element_does_not_depend_on_how_many_there_are(m: int, n: int) -> None:
    a, b = grid(128, 40), grid(128, 30, 1)
    whole, part = _psum(40, 30), _psum(m, n)
    nc_matmul(dst=whole, stationary=filled(a), moving=filled(b))
    nc_matmul(dst=part, stationary=filled(a[:, :m]), moving=filled(b[:, :n]))
    assert np.array_equal(values(part), values(whole)[:m, :n])
    assert np.abs(values(part)).max() > 0
