"""plain_linear against float64 and its twin: exact sums, bounds, dtypes, specials, two cores."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn import backend
from dslearn.errors import KernelError
from dslearn.formats.place import place_codes
from dslearn.kernels.plain_linear import plain_linear
from dslearn.ops import plain_linear as ops
from dslearn.ops.plain_linear import reference
from tests.support import linear
from tests.support.kernels import bits, dma_bytes, recorded

WIDE, HALF = torch.float32, torch.bfloat16
PAIRS = [(WIDE, WIDE), (WIDE, HALF), (HALF, HALF)]  # of rows and weight
SIZES = [(1, 1, 1), (2, 300, 130), (130, 33, 257), (64, 129, 700), (512, 100, 60), (600, 64, 129)]
each_pair = pytest.mark.parametrize("pair", PAIRS, ids=str)


def whole(m, k, n, pair):
    """Whole numbers from -4 to 4, whose sums are exact in fp32."""
    draw = linear.rng(5, m, k, n)
    x, w = (torch.from_numpy(draw.integers(-4, 5, shape)) for shape in ((m, k), (n, k)))
    return x.to(pair[0]), w.to(pair[1])


def normal(m, k, n, pair):
    draw = linear.rng(6, m, k, n)
    x, w = (torch.from_numpy(draw.standard_normal(shape)) for shape in ((m, k), (n, k)))
    return x.to(pair[0]), w.to(pair[1])


@pytest.mark.parametrize("size", SIZES, ids=str)
@each_pair
def test_sums_of_whole_numbers_are_the_exact_ones(size, pair):
    x, w = whole(*size, pair)
    y = plain_linear(x, place_codes(w), size[2])
    assert y.dtype is WIDE and torch.equal(y.double(), x.double() @ w.double().T)


@settings(max_examples=20, deadline=None)
@given(
    m=st.integers(1, 200), k=st.integers(1, 300), n=st.integers(1, 300), pair=st.sampled_from(PAIRS)
)  # fmt: skip
def test_any_size_within_the_bound_of_its_sum(m, k, n, pair):
    x, w = normal(m, k, n, pair)
    for y in (plain_linear(x, place_codes(w), n), reference(x, place_codes(w), n)):
        # Products of fp32 numbers are rounded too: one more step of fp32 for each.
        size = x.double().abs() @ w.double().abs().T
        assert ((y.double() - x.double() @ w.double().T).abs() <= (k + 1) * 2.0**-24 * size).all()


def test_fp32_keeps_what_bf16_would_lose():
    x, w = torch.tensor([[1 + 2.0**-20, 1.0]]), torch.tensor([[1.0, -1.0]])
    assert plain_linear(x, place_codes(w), 1).item() == 2.0**-20
    assert plain_linear(x, place_codes(w.bfloat16()), 1).item() == 2.0**-20


@each_pair
def test_the_widest_weight_with_more_rows_than_fit(pair):
    x, w = whole(130, 10240, 40, pair)
    y = plain_linear(x, place_codes(w), 40)
    assert torch.equal(y.double(), x.double() @ w.double().T)


@pytest.mark.parametrize("outputs", [1, 128, 129, 300, 3000])
@each_pair
def test_two_cores_give_the_bytes_of_one(outputs, pair):
    x, w = normal(20, 160, outputs, pair)
    one, two = (plain_linear[cores](x, place_codes(w), outputs) for cores in (1, 2))
    assert torch.equal(bits(one), bits(two)) and one.abs().max() > 0


@each_pair
def test_special_values_stay_in_their_row(pair):
    x, w = normal(5, 64, 40, pair)
    x[0], x[1], x[2, 3], x[3, 40] = 0.0, -0.0, math.inf, math.nan
    y, expected = plain_linear(x, place_codes(w), 40), reference(x, place_codes(w), 40)
    assert (y[:2] == 0).all() and y[3].isnan().all() and y[4].isfinite().all()
    torch.testing.assert_close(y[2], expected[2], rtol=0, atol=0, equal_nan=True)


@each_pair
@pytest.mark.parametrize("cores", [1, 2])
def test_weights_move_once_in_the_dtype_they_are_kept_in(pair, cores):
    x, w = normal(3, 224, 600, pair)
    placed = place_codes(w)
    launched = recorded(lambda: plain_linear[cores](x, placed, 600))
    moved = [dma_bytes(core) for core in launched]
    assert sum(read for read, _ in moved) == placed.nbytes + cores * x.nbytes
    assert sum(wrote for _, wrote in moved) == 3 * 600 * 4
    kinds = {
        i.dtype for core in launched for one in core if one.name == "nc_matmul" for i in one.inputs
    }
    assert kinds == {"float32" if pair[0] is WIDE else "bfloat16"}


def test_what_the_operation_takes():
    x, w = whole(3, 96, 70, (HALF, WIDE))
    with backend.use("sim"):
        y = ops.plain_linear(x, place_codes(w), 70)
        assert torch.equal(y.double(), x.double() @ w.double().T), "bf16 rows are widened"
        assert ops.plain_linear(x[:0], place_codes(w), 70).shape == (0, 70)
        with pytest.raises(KernelError, match="weight is u8"):
            ops.plain_linear(x, place_codes(w.byte()), 70)
    with pytest.raises(AssertionError, match="x: fp32 where the weight is fp32"):
        plain_linear(x, place_codes(w), 70)
    with pytest.raises(AssertionError, match="outputs"):
        plain_linear(x.float(), place_codes(w), 257)


@each_pair
def test_graphs_have_it_as_one_operation(pair):
    x, w = whole(3, 96, 70, pair)
    placed = place_codes(w)
    assert set(torch.library.opcheck(ops.plain_linear.overload, (x, placed, 70)).values()) == {
        "SUCCESS"
    }
