"""swiglu against its twin: odd sizes, clamps, special values, one rounding, two cores, bytes."""

from __future__ import annotations

import math

import pytest
import torch

from dslearn.kernels.swiglu import WIDEST, swiglu
from dslearn.model.moe import clamped_swiglu
from dslearn.ops.swiglu import reference
from dslearn.sim.rules import KernelError
from tests.support.kernels import bits, dma_bytes, matrix, recorded

LIMIT = 1.5  # cuts about a tenth of the values of `matrix`
SIZES = [(1, 1), (1, 2048), (2, 7), (3, 64), (127, 33), (128, 64), (129, 5), (300, 17)]
DTYPES = [torch.float32, torch.bfloat16]


def inputs(rows, columns, dtype=torch.float32):
    return matrix(1, rows, columns, dtype), matrix(2, rows, columns, dtype), matrix(3, rows, 1)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_equals_its_twin(size, dtype, weighted):
    gate, up, weight = inputs(*size, dtype)
    weight = weight if weighted else None
    y = swiglu(gate=gate, up=up, limit=LIMIT, weight=weight)
    expected = reference(gate, up, LIMIT, weight)
    assert y.dtype == dtype and y.shape == gate.shape
    assert y.float().abs().max() > 0, "all zeros would agree with many a mistake"
    tolerance = 1e-6 if dtype == torch.float32 else 2.0**-7  # one step of bf16
    torch.testing.assert_close(y.float(), expected.float(), rtol=tolerance, atol=1e-12)


def test_the_twin_is_the_model():
    gate, up, _ = inputs(20, 30)
    assert torch.equal(reference(gate, up, LIMIT), clamped_swiglu(gate, up, LIMIT))


@pytest.mark.parametrize("columns", [WIDEST - 1, WIDEST, WIDEST + 1, 2 * WIDEST + 3])
def test_wide_rows_are_cut_without_a_seam(columns):
    gate, up, weight = inputs(2, columns)
    y = swiglu(gate=gate, up=up, limit=LIMIT, weight=weight)
    torch.testing.assert_close(y, reference(gate, up, LIMIT, weight), rtol=1e-6, atol=1e-12)


def test_the_gate_is_cut_from_above_only_and_up_on_both_sides():
    gate = torch.tensor([[9.0, 9.0, 9.0, -9.0, -9.0, -1.0]])
    up = torch.tensor([[9.0, -9.0, 1.0, 9.0, -9.0, -1.0]])
    high, low, mid = (z / (1 + math.exp(-z)) for z in (LIMIT, -9.0, -1.0))
    expected = [high * 1.5, high * -1.5, high, low * 1.5, low * -1.5, -mid]
    y = swiglu(gate=gate, up=up, limit=LIMIT)
    torch.testing.assert_close(y, torch.tensor([expected]), rtol=1e-6, atol=0)


def test_bf16_is_rounded_once():
    gate, up, weight = inputs(130, 96, torch.bfloat16)
    limit = 1.51  # not a bf16 number: a clamp that rounds would show
    y = swiglu(gate=gate, up=up, limit=limit, weight=weight)
    in_fp32 = swiglu(gate=gate.float(), up=up.float(), limit=limit, weight=weight)
    assert torch.equal(bits(y), bits(in_fp32.bfloat16()))
    assert not torch.equal(y.float(), in_fp32), "something was there to round"


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 129, 255, 256, 257, 300, 513])
def test_two_cores_give_the_bytes_of_one(rows):
    gate, up, weight = inputs(rows, 24, torch.bfloat16)
    one = swiglu[1](gate=gate, up=up, limit=LIMIT, weight=weight)
    two = swiglu[2](gate=gate, up=up, limit=LIMIT, weight=weight)
    assert torch.equal(bits(one), bits(two)) and one.float().abs().max() > 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_special_values(dtype):
    gate = torch.tensor([[0.0, -0.0, 1e-39, math.inf, -100.0, 1.0, math.nan]], dtype=dtype)
    up = torch.tensor([[1.0, 1.0, 1.0, 1.0, math.inf, -math.inf, 1.0]], dtype=dtype)
    y = swiglu(gate=gate, up=up, limit=LIMIT)
    expected = reference(gate, up, LIMIT)
    assert torch.equal(bits(y[:, :2]), bits(gate[:, :2])), "zeros keep their sign"
    torch.testing.assert_close(y, expected, rtol=2.0**-7, atol=1e-38, equal_nan=True)
    assert y[0, 6].isnan() and y[0, :6].isfinite().all(), "clamps tame infinities"


def test_minus_infinity_is_where_the_twins_differ():
    """silu(-inf) is 0 as a limit, which the simulator gives, and -inf/inf in torch."""
    gate, up = torch.tensor([[-math.inf]]), torch.ones(1, 1)
    assert swiglu(gate=gate, up=up, limit=LIMIT).item() == 0
    assert reference(gate, up, LIMIT).isnan()


@pytest.mark.parametrize("cores", [1, 2])
def test_each_byte_moves_once(cores):
    gate, up, weight = inputs(300, 40, torch.bfloat16)
    launched = recorded(lambda: swiglu[cores](gate=gate, up=up, limit=LIMIT, weight=weight))
    moved = [dma_bytes(core) for core in launched]
    assert len(moved) == cores
    assert sum(read for read, _ in moved) == 2 * gate.numel() * 2 + 300 * 4
    assert sum(wrote for _, wrote in moved) == gate.numel() * 2


def test_what_cannot_be_is_refused():
    with pytest.raises(KernelError, match="at least one element"):
        swiglu(gate=torch.zeros(0, 8), up=torch.zeros(0, 8), limit=LIMIT)
    with pytest.raises(KernelError, match="rule"):
        swiglu(gate=torch.zeros(4, 8), up=torch.zeros(4, 7), limit=LIMIT)
    with pytest.raises(KernelError, match="rule"):
        swiglu(gate=torch.zeros(4, 8), up=torch.zeros(4, 8), limit=LIMIT, weight=torch.ones(3, 1))
