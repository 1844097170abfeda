"""grouped against its twin and the model's product: fp8 and bf16, odd groups, two cores, bytes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn import backend
from dslearn.formats import inputs_first
from dslearn.kernels.grouped import grouped
from dslearn.model.arith import Arith
from dslearn.numerics import Numerics
from dslearn.ops import grouped as ops
from dslearn.ops.grouped import reference
from tests.support.kernels import bits, dma_bytes, matrix, recorded
from tests.support.weights import fp8, near, of_fp8, whole_fp8, whole_rows

SIZES = [(1, 2, 128, 64), (3, 1, 160, 200), (6, 4, 96, 65), (17, 3, 256, 320), (128, 2, 32, 32)]


def parts_of(groups):
    return 1 if groups % 2 == 0 else 2


def placed(weights):
    """fp8 weights of all groups as the kernel takes them."""
    parts = parts_of(len(weights))
    both = [inputs_first.fp8(*weight) for weight in weights]
    codes = torch.stack([inputs_first.by_part(codes, parts) for codes, _ in both])
    return codes, torch.stack([inputs_first.scale_by_part(scale, parts) for _, scale in both])


def placed_bf16(weights):
    """bf16 weights [N, K] of all groups as the kernel takes them."""
    wide = [inputs_first.padded(w, (64, 128)).T for w in weights]
    return torch.stack([inputs_first.by_part(w, parts_of(len(weights))) for w in wide])


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_sum_is_exact_in_fp8(size):
    r, g, k, n = size
    x = whole_rows(1, r, g, k)
    weights = [whole_fp8(i, n, k) for i in range(g)]
    y = grouped(x, *placed(weights))
    for i, weight in enumerate(weights):
        exact = x[:, i].double() @ of_fp8(weight).T
        assert torch.equal(y[:, i, :n], exact.to(torch.bfloat16)), f"group {i}"
    assert not y[:, :, n:].any() and y.any()
    assert torch.equal(y, reference(x, *placed(weights)))


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_sum_is_exact_in_bf16(size):
    r, g, k, n = size
    x, weights = whole_rows(2, r, g, k), [whole_rows(3 + i, n, k) for i in range(g)]
    y = grouped(x, placed_bf16(weights))
    exact = torch.einsum("rgk,gnk->rgn", x.double(), torch.stack(weights).double())
    assert torch.equal(y[:, :, :n], exact.to(torch.bfloat16)) and y.any()
    assert torch.equal(y, reference(x, placed_bf16(weights)))


@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 7), st.integers(1, 4), st.integers(1, 200), st.integers(1, 150), st.booleans()
)
def test_random_products_are_near(r, g, k, n, quantised):
    x = torch.stack([matrix(10 + i, r, k, torch.bfloat16) for i in range(g)], 1)
    if quantised:
        weights = [fp8(i, n, k) for i in range(g)]
        wide, y = torch.stack([of_fp8(w) for w in weights]), grouped(x, *placed(weights))
    else:
        plain = [matrix(20 + i, n, k, torch.bfloat16) for i in range(g)]
        wide, y = torch.stack(plain).double(), grouped(x, placed_bf16(plain))
    exact = torch.einsum("rgk,gnk->rgn", x.double(), wide)
    size = torch.einsum("rgk,gnk->rgn", x.double().abs(), wide.abs())
    assert near(y[:, :, :n], exact, size)


@pytest.mark.parametrize("groups", [1, 2, 3, 4])
@pytest.mark.parametrize("outputs", [64, 96, 300])
def test_two_cores_give_the_bytes_of_one(groups, outputs):
    x = whole_rows(4, 5, groups, 160, largest=100)
    weights = placed([fp8(i, outputs, 160) for i in range(groups)])
    one, two = (grouped[cores](x, *weights) for cores in (1, 2))
    assert torch.equal(bits(one), bits(two)) and one.any()


def test_it_is_the_model_s_product():
    x, weight = whole_rows(5, 3, 2, 64), whole_rows(6, 2, 32, 64)
    flat = Arith(Numerics()).grouped(x.float(), weight.float())  # [R, G * N]
    y = grouped(x, placed_bf16(list(weight)))[:, :, :32]
    assert torch.equal(y.flatten(1).float(), flat.bfloat16().float()) and flat.any()


def test_a_row_does_not_depend_on_its_neighbours():
    weights = placed([fp8(i, 64, 128) for i in range(2)])
    x = torch.stack([matrix(7 + i, 5, 128, torch.bfloat16) for i in range(2)], 1)
    x[3] = float("inf")
    whole, some = grouped(x, *weights), grouped(x[:3], *weights)
    torch.testing.assert_close(whole[:3], some, rtol=2.0**-7, atol=1e-6)
    assert whole[:3].isfinite().all() and not whole[3].isfinite().any()


@pytest.mark.parametrize("groups", [2, 3])
def test_each_weight_is_read_once(groups):
    x = whole_rows(8, 2, groups, 128)
    codes, scale = placed([fp8(i, 128, 128) for i in range(groups)])
    cores = recorded(lambda: grouped[2](x, codes, scale))
    again = x.numel() * 2 * (1 if groups == 2 else 2)  # odd groups: each core needs all rows
    assert sum(dma_bytes(c)[0] for c in cores) == codes.numel() + 32 * scale.numel() + again
    assert sum(dma_bytes(c)[1] for c in cores) == 2 * groups * 128 * 2


def test_the_operation_runs_the_kernel():
    x, weights = whole_rows(9, 3, 2, 64), placed([whole_fp8(i, 64, 64) for i in range(2)])
    with backend.use("sim"):
        y = ops.grouped(x, *weights)
    assert torch.equal(y, ops.grouped(x, *weights)) and y.any()


def test_what_cannot_be_is_refused():
    x, weights = whole_rows(10, 2, 2, 64), placed([whole_fp8(i, 64, 64) for i in range(2)])
    with pytest.raises(AssertionError, match="even number of groups"):
        grouped(x[:, :1], *(w[:1] for w in weights))
    with pytest.raises(AssertionError, match="no more inputs"):
        grouped(whole_rows(11, 2, 2, 129), *weights)
    assert grouped(x, *weights).shape == (2, 2, 64)
