"""hc_attn_out: exact sums, the two kernels it replaces bit by bit, padding, rows, cores, bytes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dslearn import backend, ops
from dslearn.formats.place import place_fp8
from dslearn.kernels.fp8_folded import fp8_folded
from dslearn.kernels.hc_attn_out import hc_attn_out
from dslearn.kernels.hc_expand import hc_expand
from dslearn.ops.hc_attn_out import hc_attn_out as op
from dslearn.ops.hc_attn_out import reference
from dslearn.sim.rules import KernelError
from tests.support import linear
from tests.support.kernels import bits, dma_bytes, recorded
from tests.support.streams import DTYPES, numbers, padded_with_nan, streams, wide

SIZES = [  # rows, streams, columns, inputs
    (1, 4, 7, 40), (1, 1, 6, 33), (2, 3, 1, 5), (3, 4, 130, 200), (6, 4, 300, 128), (5, 8, 257, 70),
]  # fmt: skip


def given_for(size, dtype=torch.float32, tile=32, whole=False):
    """x, weight, power, h, post and comb."""
    rows, count, width, inputs = size
    x = (linear.whole_rows if whole else linear.rows)(rows, inputs)
    placed = place_fp8(*linear.fp8(width, inputs, tile, whole=whole), tile)
    h, post, comb = (
        streams(1, rows, count, width, dtype), numbers(2, rows, count),
        numbers(3, rows, count, count),
    )  # fmt: skip
    return x, *placed, h, post, comb


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tile", [32, 128])
def test_has_the_bits_of_projection_and_expand(size, dtype, tile):
    x, weight, power, h, post, comb = arguments = given_for(size, dtype, tile)
    out = hc_attn_out(*arguments)
    y = fp8_folded(x, weight, power, size[2], dtype == torch.float32)
    assert out.dtype == dtype and out.shape == h.shape
    assert torch.equal(bits(out), bits(hc_expand(y, h, post, comb)))
    assert out.float().abs().max() > 0


@pytest.mark.parametrize("tile", [32, 128])
def test_whole_numbers_are_computed_exactly(tile):
    rows, count, width, inputs = size = (3, 4, 150, 96)
    x, weight, power, *_ = given_for(size, tile=tile, whole=True)
    h = streams(4, rows, count, width).mul(4).round()
    post, comb = numbers(5, rows, count).mul(2).round(), numbers(6, rows, count, count).round()
    codes, scale = linear.fp8(width, inputs, tile, whole=True)
    y = linear.product(x, linear.fp8_values(codes, scale, tile))
    exact = wide(post)[:, :, None] * y[:, None, :] + np.einsum("rjk,rjd->rkd", comb, h)
    out = hc_attn_out(x, weight, power, h, post, comb)
    assert np.array_equal(wide(out), exact) and np.abs(exact).max() > 100


def test_the_twin_is_the_same_function():
    arguments = given_for((6, 4, 130, 200))
    out, expected = hc_attn_out(*arguments), reference(*arguments)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())
    assert expected.abs().max() > 1


def test_the_projection_is_rounded_as_it_would_be_in_hbm():
    x, weight, power, h, post, comb = given_for((6, 4, 130, 200), torch.bfloat16)
    out = hc_attn_out(x, weight, power, h, post, comb)
    y = fp8_folded(x, weight, power, 130, True)
    unrounded = hc_expand(y, h.float(), post, comb).bfloat16()
    assert not torch.equal(out, unrounded), "one rounding less gives other bytes"
    torch.testing.assert_close(out, unrounded, rtol=2.0**-5, atol=1.0)


@pytest.mark.parametrize("width", [1, 100, 128, 129, 256, 600])
def test_two_cores_give_the_bytes_of_one(width):
    arguments = given_for((3, 4, width, 64), torch.bfloat16)
    one, two = hc_attn_out[1](*arguments), hc_attn_out[2](*arguments)
    assert torch.equal(bits(one), bits(two)) and one.float().abs().max() > 0


@pytest.mark.parametrize("rows", [33, 70])
def test_more_rows_than_lanes_for_their_streams_go_in_chunks(rows):
    x, weight, power, *rest = arguments = given_for((rows, 4, 40, 64), torch.bfloat16)
    whole = hc_attn_out(*arguments)
    for row in (0, 31, 32, rows - 1):
        part = slice(row, row + 1)
        alone = hc_attn_out(x[part], weight, power, *(a[part].clone() for a in rest))
        assert torch.equal(bits(alone[0]), bits(whole[row]))


def test_a_batch_padded_from_three_to_eight_leaves_the_bytes_of_its_rows():
    x, weight, power, *rest = arguments = given_for((3, 4, 130, 96), torch.bfloat16)
    more = hc_attn_out(padded_with_nan(x), weight, power, *(padded_with_nan(a) for a in rest))
    assert torch.equal(bits(more[:3]), bits(hc_attn_out(*arguments))) and more[3:].isnan().all()


def test_nan_stays_in_its_row_and_column():
    x, weight, power, h, post, comb = given_for((4, 4, 140, 96))
    x[1, 3], h[2, 1, 133] = math.nan, math.nan
    out = hc_attn_out(x, weight, power, h, post, comb)
    assert out[1].isnan().all() and out[[0, 3]].isfinite().all()
    assert out[2].isnan().nonzero().tolist() == [[k, 133] for k in range(4)]


def test_nothing_written_leaves_the_mixture():
    x, weight, power, h, post, comb = given_for((3, 4, 140, 96))
    out = hc_attn_out(x, weight, power, h, torch.zeros_like(post), comb)
    assert torch.equal(out, hc_expand(torch.zeros(3, 140), h, torch.zeros_like(post), comb))


def test_nothing_mixed_leaves_the_projection():
    x, weight, power, h, post, comb = given_for((3, 4, 140, 96))
    out = hc_attn_out(x, weight, power, h, post, torch.zeros_like(comb))
    y = fp8_folded(x, weight, power, 140, True)
    assert torch.equal(out, post[:, :, None] * y[:, None, :])


@pytest.mark.parametrize("cores", [1, 2])
def test_weights_and_streams_move_once(cores):
    x, weight, power, h, post, comb = arguments = given_for((3, 4, 512, 200), torch.bfloat16)
    moved = [dma_bytes(core) for core in recorded(lambda: hc_attn_out[cores](*arguments))]
    inputs = weight.numel() + power.numel() + h.numel() * 2
    factors = x.numel() * 2 + 128 * (post.numel() + comb.numel()) * 4
    assert sum(read for read, _ in moved) == inputs + cores * factors
    assert sum(wrote for _, wrote in moved) == h.numel() * 2


def test_the_operation_takes_the_kernel_on_the_simulator_and_the_twin_elsewhere():
    arguments = given_for((2, 4, 40, 64), torch.bfloat16)
    with backend.use("sim"), ops.collect() as taken:
        out = op(*arguments)
    assert str(taken) == "hc_attn_out: kernel 1" and torch.equal(out, hc_attn_out(*arguments))
    with backend.use("cpu"):
        assert torch.equal(op(*arguments), reference(*arguments))


def test_what_cannot_be_is_refused():
    x, weight, power, h, post, comb = given_for((2, 4, 300, 64))
    with pytest.raises(AssertionError, match="tiles of 128"):
        hc_attn_out(x, weight[:, :2].contiguous(), power[:, :2].contiguous(), h, post, comb)
    with backend.use("sim"):
        with pytest.raises(KernelError):
            op(x.float(), weight, power, h, post, comb)
        with pytest.raises(KernelError):
            op(x, weight, power, h, post[:1], comb)
        assert op(x[:0], weight, power, h[:0], post[:0], comb[:0]).shape == (0, 4, 300)
    assert hc_attn_out(x, weight, power, h, post, comb).shape == (2, 4, 300)


def test_arguments_stay_as_they_are():
    arguments = given_for((3, 4, 40, 64))
    before = [a.clone() for a in arguments]
    hc_attn_out(*arguments)
    assert all(torch.equal(a, b) for a, b in zip(arguments, before, strict=True))
