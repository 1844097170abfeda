"""hc_expand against its twin, bit by bit, and float64; orientation, specials, cores, rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn import backend, ops
from dslearn.kernels.hc_expand import hc_expand
from dslearn.model.arith import Arith
from dslearn.model.hyper import expand, sinkhorn
from dslearn.numerics import Numerics
from dslearn.ops.hc_expand import hc_expand as op
from dslearn.ops.hc_expand import reference
from dslearn.sim.rules import KernelError
from tests.support.kernels import bits, dma_bytes, matrix, recorded
from tests.support.streams import DTYPES, numbers, padded_with_nan, streams, wide

SIZES = [
    (1, 1, 1), (1, 4, 5120), (1, 4, 9), (3, 4, 17), (6, 4, 256), (131, 4, 33), (5, 8, 640),
    (2, 4, 1031),
]  # fmt: skip


def given_for(seed, rows, count, width, dtype=torch.float32):
    """y, h, post and comb."""
    return (
        matrix(seed, rows, width, dtype), streams(seed + 1, rows, count, width, dtype),
        numbers(seed + 2, rows, count), numbers(seed + 3, rows, count, count),
    )  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equals_its_twin_bit_by_bit(size, dtype):
    arguments = given_for(1, *size, dtype)
    out, expected = hc_expand(*arguments), reference(*arguments)
    assert out.dtype == dtype and out.shape == size
    assert torch.equal(bits(out), bits(expected)) and out.float().abs().max() > 0


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 20), count=st.integers(1, 8), width=st.integers(1, 150))
def test_any_size_within_the_bound_of_its_sum(rows, count, width):
    y, h, post, comb = arguments = given_for(2, rows, count, width)
    terms = wide(comb)[:, :, :, None] * wide(h)[:, :, None, :]
    first = wide(post)[:, :, None] * wide(y)[:, None, :]
    exact, size = first + terms.sum(1), np.abs(first) + np.abs(terms).sum(1)
    wrong = np.abs(wide(hc_expand(*arguments)) - exact)
    assert (wrong <= 2 * (count + 1) * 2.0**-24 * size).all()


def test_has_the_bits_of_the_model():
    y, h, post, comb = given_for(3, 6, 4, 96)
    expected = expand(y, h, post, comb, Arith(Numerics(row_invariant=True)))
    assert torch.equal(hc_expand(y, h, post, comb), expected) and expected.abs().max() > 0


def test_bf16_is_rounded_once():
    y, h, post, comb = given_for(4, 7, 4, 130, torch.bfloat16)
    out, in_fp32 = hc_expand(y, h, post, comb), hc_expand(y.float(), h.float(), post, comb)
    assert torch.equal(bits(out), bits(in_fp32.bfloat16()))
    assert not torch.equal(out.float(), in_fp32)


def test_the_mixture_is_over_the_first_index():
    y, h, _, _ = given_for(5, 2, 4, 10)
    comb = torch.zeros(2, 4, 4)
    comb[:, 0, 1] = comb[:, 1, 2] = comb[:, 2, 3] = comb[:, 3, 0] = 1.0
    out = hc_expand(y, h, torch.zeros(2, 4), comb)
    assert torch.equal(out, h.roll(1, dims=1)) and not torch.equal(out, h.roll(-1, dims=1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_identity_and_nothing_written_keep_the_streams(dtype):
    y, h, _, _ = given_for(6, 3, 4, 31, dtype)
    out = hc_expand(y, h, torch.zeros(3, 4), torch.eye(4).repeat(3, 1, 1))
    assert torch.equal(out, h)


def test_nothing_mixed_leaves_what_is_written():
    y, h, post, _ = given_for(7, 3, 4, 31)
    out = hc_expand(y, h, post, torch.zeros(3, 4, 4))
    assert torch.equal(out, post[:, :, None] * y[:, None, :])


def test_a_mixture_whose_columns_sum_to_one_stays_between_its_streams():
    y, h, _, logits = given_for(8, 6, 4, 64)
    comb = sinkhorn(logits, 20, 1e-6)
    out = hc_expand(y, h, torch.zeros(6, 4), comb)
    low, high = h.min(1, keepdim=True).values, h.max(1, keepdim=True).values
    assert (out >= low - 1e-5).all() and (out <= high + 1e-5).all()
    torch.testing.assert_close(out.sum(1), h.sum(1), rtol=1e-3, atol=2e-3)  # rows: almost


@pytest.mark.parametrize(("rows", "width"), [(1, 640), (1, 7), (2, 40), (3, 40), (257, 9)])
def test_two_cores_give_the_bytes_of_one(rows, width):
    arguments = given_for(9, rows, 4, width, torch.bfloat16)
    one, two = hc_expand[1](*arguments), hc_expand[2](*arguments)
    assert torch.equal(bits(one), bits(two)) and one.float().abs().max() > 0


def test_a_row_does_not_depend_on_its_neighbours():
    arguments = given_for(10, 140, 4, 50)
    whole = hc_expand(*arguments)
    for row in (0, 127, 128, 139):
        alone = hc_expand(*(a[row : row + 1].clone() for a in arguments))
        assert torch.equal(bits(alone[0]), bits(whole[row]))


def test_a_batch_padded_from_three_to_eight_leaves_the_bytes_of_its_rows():
    arguments = given_for(11, 3, 4, 320, torch.bfloat16)
    more = hc_expand(*(padded_with_nan(a) for a in arguments))
    assert torch.equal(bits(more[:3]), bits(hc_expand(*arguments))) and more[3:].isnan().all()


def test_nan_stays_in_its_row_and_column():
    y, h, post, comb = given_for(12, 5, 4, 9)
    h[1, 2, 5], y[3, 4] = math.nan, math.nan
    out = hc_expand(y, h, post, comb)
    assert out.isnan().nonzero().tolist() == [[1, k, 5] for k in range(4)] + [
        [3, k, 4] for k in range(4)
    ]


def test_infinities_of_both_signs_meet_as_in_the_twin():
    y, h, post, comb = given_for(13, 1, 2, 4)
    h[0, 0, 1], h[0, 1, 1], y[0, 2] = math.inf, -math.inf, math.inf
    comb, post = comb.abs(), post.abs()
    out, expected = hc_expand(y, h, post, comb), reference(y, h, post, comb)
    assert out[:, :, 1].isnan().all() and out[:, :, 2].isinf().all()
    assert torch.equal(out.isnan(), expected.isnan())


def test_subnormal_numbers_are_multiplied_as_what_they_are():
    y, h, post, comb = given_for(14, 1, 2, 3)
    y, h = y * 0, h * 1e-39
    assert torch.equal(hc_expand(y, h, post, comb * 8), reference(y, h, post, comb * 8))
    assert hc_expand(y, h, post, comb * 8).abs().max() > 0


def test_streams_move_once_each_way():
    arguments = given_for(15, 6, 4, 640, torch.bfloat16)
    moved = [dma_bytes(core) for core in recorded(lambda: hc_expand[2](*arguments))]
    factors = 2 * 30 * 20 * 4  # three rows in ten lanes on each core, twenty numbers each
    assert sum(read for read, _ in moved) == 6 * 5 * 640 * 2 + factors
    assert sum(wrote for _, wrote in moved) == 6 * 4 * 640 * 2


def test_scalar_multiplies_while_vector_adds():
    (core,) = recorded(lambda: hc_expand(*given_for(16, 6, 4, 256)))
    engines = [one.engine for one in core if one.engine != "dma"]
    assert engines.count("scalar") == 4 * 5 and engines.count("vector") == 4
    assert "tensor" not in engines, "zero times NaN would cross rows"


def test_the_operation_takes_the_kernel_on_the_simulator_and_the_twin_elsewhere():
    arguments = given_for(17, 2, 4, 12)
    with backend.use("sim"), ops.collect() as taken:
        out = op(*arguments)
    assert str(taken) == "hc_expand: kernel 1" and torch.equal(out, reference(*arguments))
    with backend.use("cpu"):
        assert torch.equal(op(*arguments), out)


def test_no_rows_are_none_and_the_kernel_itself_refuses_them():
    arguments = tuple(a[:0] for a in given_for(18, 2, 4, 12))
    with backend.use("sim"):
        assert op(*arguments).shape == (0, 4, 12)
    with pytest.raises(KernelError, match="at least one element"):
        hc_expand(*arguments)


@pytest.mark.parametrize("wrong", [0, 2, 3])
def test_an_argument_of_other_rows_is_refused(wrong):
    arguments = list(given_for(19, 3, 4, 12))
    with backend.use("sim"):
        assert op(*arguments).shape == (3, 4, 12)
        arguments[wrong] = arguments[wrong][:2]
        with pytest.raises(KernelError):
            op(*arguments)


def test_arguments_stay_as_they_are():
    arguments = given_for(20, 3, 4, 40)
    before = [a.clone() for a in arguments]
    hc_expand(*arguments)
    assert all(torch.equal(a, b) for a, b in zip(arguments, before, strict=True))
