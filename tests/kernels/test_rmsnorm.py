"""rmsnorm against its twin: odd sizes, special values, one rounding, two cores, bytes."""

from __future__ import annotations

import math

import pytest
import torch

from dslearn.kernels.rmsnorm import WIDEST, rmsnorm
from dslearn.ops.rmsnorm import reference
from dslearn.sim.rules import KernelError
from tests.support.kernels import bits, dma_bytes, matrix, recorded

EPS = 1e-20
SIZES = [(1, 1), (1, 5120), (2, 7), (3, 64), (127, 33), (128, 64), (129, 5), (300, 17)]
DTYPES = [torch.float32, torch.bfloat16]


def gain(columns, dtype=torch.float32):
    return matrix(9, 1, columns, dtype)[0] / 4 + 1


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equals_its_twin(size, dtype):
    x, weight = matrix(1, *size, dtype), gain(size[1], dtype)
    y, expected = rmsnorm(x=x, weight=weight, eps=EPS), reference(x, weight, EPS)
    assert y.dtype == dtype and y.shape == x.shape
    assert y.float().abs().max() > 0, "all zeros would agree with many a mistake"
    tolerance = 1e-6 if dtype == torch.float32 else 2.0**-7  # fp32 sums; one step of bf16
    torch.testing.assert_close(y.float(), expected.float(), rtol=tolerance, atol=1e-30)
    if dtype == torch.bfloat16:
        assert (y == expected).float().mean() > 0.99, "few results lie at a rounding boundary"


def test_against_a_sum_in_double_precision():
    x, weight = matrix(2, 5, 5120), gain(5120)
    exact = x.double() / (x.double().square().mean(1, keepdim=True) + EPS).sqrt() * weight.double()
    y = rmsnorm(x=x, weight=weight, eps=EPS)
    assert ((y.double() - exact).abs() <= 1e-6 * exact.abs() + 1e-12).all()


@pytest.mark.parametrize("columns", [WIDEST - 1, WIDEST, WIDEST + 1, 2 * WIDEST + 3])
def test_wide_rows_are_cut_without_a_seam(columns):
    x, weight = matrix(3, 3, columns), gain(columns)
    y = rmsnorm(x=x, weight=weight, eps=EPS)
    torch.testing.assert_close(y, reference(x, weight, EPS), rtol=2e-6, atol=0)


def test_bf16_is_rounded_once():
    x, weight = matrix(4, 130, 96, torch.bfloat16), gain(96)
    y = rmsnorm(x=x, weight=weight, eps=EPS)
    in_fp32 = rmsnorm(x=x.float(), weight=weight, eps=EPS)
    assert torch.equal(bits(y), bits(in_fp32.bfloat16()))
    assert not torch.equal(y.float(), in_fp32), "something was there to round"


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 129, 255, 256, 257, 300, 513])
def test_two_cores_give_the_bytes_of_one(rows):
    x, weight = matrix(5, rows, 40, torch.bfloat16), gain(40)
    one = rmsnorm[1](x=x, weight=weight, eps=EPS)
    two = rmsnorm[2](x=x, weight=weight, eps=EPS)
    assert torch.equal(bits(one), bits(two)) and one.float().abs().max() > 0


def test_two_cores_cut_wide_rows_too():
    x, weight = matrix(6, 3, WIDEST + 9), gain(WIDEST + 9)
    one, two = (rmsnorm[n](x=x, weight=weight, eps=EPS) for n in (1, 2))
    assert torch.equal(bits(one), bits(two))


def test_a_row_does_not_depend_on_its_neighbours():
    x, weight = matrix(7, 200, 50), gain(50)
    whole = rmsnorm(x=x, weight=weight, eps=EPS)
    for row in (0, 127, 128, 199):
        alone = rmsnorm(x=x[row : row + 1].clone(), weight=weight, eps=EPS)
        assert torch.equal(bits(alone[0]), bits(whole[row]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_zeros_keep_their_sign_and_subnormals_their_value(dtype):
    x = torch.zeros(3, 8, dtype=dtype)
    x[0, ::2] = -0.0
    x[1] = 1e-39  # subnormal in both dtypes; its square is 0
    x[2, 3] = 1e-10
    weight = gain(8)
    y = rmsnorm(x=x, weight=weight, eps=EPS)
    assert torch.equal(bits(y[0]), bits(x[0])), "a row of zeros stays as it is"
    expected = (x[1].double() * 1e10 * weight.double()).to(dtype)  # 1 / sqrt(eps) = 1e10
    torch.testing.assert_close(y[1], expected, rtol=2.0**-7 if dtype != torch.float32 else 1e-6,
                               atol=0)  # fmt: skip
    torch.testing.assert_close(y[2], reference(x, weight, EPS)[2])


def test_inf_and_nan_stay_in_their_row():
    x = matrix(8, 5, 6)
    x[1, 2], x[3, 4] = math.inf, math.nan
    weight = gain(6)
    with pytest.warns(UserWarning, match="not valid"):  # rsqrt(inf)
        y = rmsnorm(x=x, weight=weight, eps=EPS)
    assert torch.equal(y.isnan(), reference(x, weight, EPS).isnan())
    assert y[1].isnan().tolist() == [False, False, True, False, False, False]
    assert y[3].isnan().all() and y[[0, 2, 4]].isfinite().all()


def test_a_row_of_zeros_needs_an_eps():
    x, weight = torch.zeros(2, 8), torch.ones(8)
    with pytest.warns(UserWarning, match="not valid"):
        assert rmsnorm(x=x, weight=weight, eps=0.0).isnan().all()
    assert not rmsnorm(x=x, weight=weight, eps=1e-26).any()


def test_eps_counts():
    x, weight = matrix(10, 2, 16) * 1e-3, torch.ones(16)
    large, small = (rmsnorm(x=x, weight=weight, eps=e) for e in (1e-2, EPS))
    torch.testing.assert_close(large, reference(x, weight, 1e-2), rtol=1e-6, atol=0)
    assert (large.abs() < small.abs() / 10).all()


@pytest.mark.parametrize(("size", "reads"), [((5, 40), 1), ((300, 40), 1), ((2, WIDEST + 1), 2)])
def test_bytes_are_those_the_docstring_says(size, reads):
    x, weight = matrix(11, *size, torch.bfloat16), gain(size[1])
    (core,) = recorded(lambda: rmsnorm(x=x, weight=weight, eps=EPS))
    read, wrote = dma_bytes(core)
    gains = min(size[0], 128) * size[1] * 4
    assert read == reads * x.numel() * 2 + gains and wrote == x.numel() * 2


def test_what_cannot_be_is_refused():
    with pytest.raises(KernelError, match="at least one element"):
        rmsnorm(x=torch.zeros(0, 8), weight=torch.ones(8), eps=EPS)
    with pytest.raises(KernelError, match="rule"):
        rmsnorm(x=torch.zeros(4, 8), weight=torch.ones(7), eps=EPS)
