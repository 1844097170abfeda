"""hc_collapse against its twin, bit by bit, and float64; sizes, specials, cores, rows, bytes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn import backend, ops
from dslearn.kernels.hc_collapse import WIDEST, hc_collapse
from dslearn.model.arith import Arith
from dslearn.model.hyper import collapse
from dslearn.numerics import Numerics
from dslearn.ops.hc_collapse import hc_collapse as op
from dslearn.ops.hc_collapse import reference
from dslearn.sim.rules import KernelError
from tests.support.kernels import bits, dma_bytes, recorded
from tests.support.streams import DTYPES, numbers, padded_with_nan, streams, wide

SIZES = [
    (1, 1, 1), (1, 4, 5120), (1, 4, 7), (3, 4, 17), (6, 4, 256), (129, 4, 33), (5, 8, 640),
    (2, 4, 2 * WIDEST + 3),
]  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equals_its_twin_bit_by_bit(size, dtype):
    h, w = streams(1, *size, dtype), numbers(2, *size[:2])
    y, expected = hc_collapse(h, w), reference(h, w)
    assert y.dtype == dtype and y.shape == (size[0], size[2])
    assert torch.equal(bits(y), bits(expected)) and y.float().abs().max() > 0


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 20), count=st.integers(1, 8), width=st.integers(1, 200))
def test_any_size_within_the_bound_of_its_sum(rows, count, width):
    h, w = streams(3, rows, count, width), numbers(4, rows, count)
    exact = (wide(h) * wide(w)[:, :, None]).sum(1)
    size = (np.abs(wide(h)) * np.abs(wide(w))[:, :, None]).sum(1)
    assert (np.abs(wide(hc_collapse(h, w)) - exact) <= 2 * count * 2.0**-24 * size).all()


def test_agrees_with_the_model():
    h, w = streams(5, 6, 4, 96), numbers(6, 6, 4)
    expected = collapse(h, w, Arith(Numerics(row_invariant=True)))
    torch.testing.assert_close(hc_collapse(h, w), expected, rtol=1e-6, atol=1e-6)
    assert expected.abs().max() > 0


def test_bf16_is_rounded_once():
    h, w = streams(7, 9, 4, 130, torch.bfloat16), numbers(8, 9, 4)
    y, in_fp32 = hc_collapse(h, w), hc_collapse(h.float(), w)
    assert torch.equal(bits(y), bits(in_fp32.bfloat16())) and not torch.equal(y.float(), in_fp32)


@pytest.mark.parametrize(("rows", "width"), [(1, 5120), (1, 7), (2, 40), (3, 40), (257, 9)])
def test_two_cores_give_the_bytes_of_one(rows, width):
    h, w = streams(9, rows, 4, width, torch.bfloat16), numbers(10, rows, 4)
    one, two = hc_collapse[1](h, w), hc_collapse[2](h, w)
    assert torch.equal(bits(one), bits(two)) and one.float().abs().max() > 0


def test_two_cores_share_the_columns_of_a_single_row():
    h, w = streams(11, 1, 4, 512), numbers(12, 1, 4)
    moved = [dma_bytes(core) for core in recorded(lambda: hc_collapse[2](h, w))]
    numbers_of_lanes = [read - 4 * 256 * 4 for read, _ in moved]
    assert [wrote for _, wrote in moved] == [256 * 4, 256 * 4]
    assert numbers_of_lanes == [4 * 16, 4 * 16], "four lanes of 64 columns need four weights each"


def test_a_batch_padded_from_three_to_eight_leaves_the_bytes_of_its_rows():
    h, w = streams(13, 3, 4, 320), numbers(14, 3, 4)
    y = hc_collapse(h, w)
    more = hc_collapse(padded_with_nan(h), padded_with_nan(w))
    assert torch.equal(bits(more[:3]), bits(y)) and more[3:].isnan().all()


def test_nan_and_inf_stay_in_their_place():
    h, w = streams(15, 4, 4, 12), numbers(16, 4, 4).abs()
    h[1, 2, 5], h[2, 0, 3] = math.nan, math.inf
    y = hc_collapse(h, w)
    assert y.isnan().nonzero().tolist() == [[1, 5]]
    assert y.isinf().nonzero().tolist() == [[2, 3]]


def test_an_infinite_value_of_an_unread_stream_is_nan_as_in_the_twin():
    h, w = streams(17, 1, 2, 4), torch.tensor([[1.0, 0.0]])
    h[0, 1, 2] = math.inf
    y, expected = hc_collapse(h, w), reference(h, w)
    assert y.isnan().tolist() == expected.isnan().tolist() == [[False, False, True, False]]


@pytest.mark.parametrize("stream", [0, 3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_weight_of_one_reads_a_stream_as_it_is(stream, dtype):
    h, w = streams(18, 5, 4, 33, dtype), torch.zeros(5, 4)
    w[:, stream] = 1.0
    assert torch.equal(hc_collapse(h, w), h[:, stream])


def test_zeros_keep_their_sign_where_there_is_one_stream():
    h = torch.tensor([[[0.0, -0.0, 1e-40, -1e-40]]])
    assert torch.equal(bits(hc_collapse(h, torch.ones(1, 1))), bits(h[:, 0]))


def test_a_power_of_two_in_the_weights_is_one_in_the_result():
    h, w = streams(19, 4, 4, 50), numbers(20, 4, 4)
    assert torch.equal(hc_collapse(h, w * 8), hc_collapse(h, w) * 8)


def test_rows_move_once():
    h, w = streams(21, 6, 4, 640, torch.bfloat16), numbers(22, 6, 4)
    moved = [dma_bytes(core) for core in recorded(lambda: hc_collapse[2](h, w))]
    factors = 2 * 30 * 16  # three rows in ten lanes on each core
    assert sum(read for read, _ in moved) == h.numel() * 2 + factors
    assert sum(wrote for _, wrote in moved) == 6 * 640 * 2


def test_no_instruction_lets_rows_meet():
    h, w = streams(23, 6, 4, 64), numbers(24, 6, 4)
    (core,) = recorded(lambda: hc_collapse(h, w))
    assert {one.engine for one in core} == {"dma", "scalar", "vector"}


def test_the_operation_takes_the_kernel_on_the_simulator_and_the_twin_elsewhere():
    h, w = streams(25, 2, 4, 12), numbers(26, 2, 4)
    with backend.use("sim"), ops.collect() as taken:
        y = op(h, w)
    assert str(taken) == "hc_collapse: kernel 1" and torch.equal(y, reference(h, w))
    with backend.use("cpu"):
        assert torch.equal(op(h, w), y)


def test_no_rows_are_none_and_the_kernel_itself_refuses_them():
    h, w = torch.zeros(0, 4, 8), torch.zeros(0, 4)
    with backend.use("sim"):
        assert op(h, w).shape == (0, 8)
    with pytest.raises(KernelError, match="at least one element"):
        hc_collapse(h, w)


def test_weights_of_other_rows_or_in_bf16_are_refused():
    h, w = streams(27, 3, 4, 8), numbers(28, 3, 4)
    with backend.use("sim"):
        for wrong in (w[:2], w[:, :3], w.bfloat16()):
            with pytest.raises(KernelError):
                op(h, wrong)
        assert op(h, w).shape == (3, 8)


def test_arguments_stay_as_they_are():
    h, w = streams(29, 3, 4, 40), numbers(30, 3, 4)
    before = h.clone(), w.clone()
    hc_collapse(h, w)
    assert torch.equal(h, before[0]) and torch.equal(w, before[1])
