"""fp4_gated and fp4_active: equal to the product without a gate, written zeros, cores, time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn import backend
from dslearn.formats.place_fp4 import place_fp4
from dslearn.kernels.fp4_gated import fp4_active, fp4_gated
from dslearn.kernels.fp4_linear import fp4_linear
from dslearn.ops import fp4_gated as ops
from dslearn.ops.fp4_gated import reference, reference_active
from dslearn.sim import cost
from tests.support.kernels import bits, matrix, recorded
from tests.support.weights import fp4, near, of_fp4, whole_rows

SIZES = [(1, 512, 128), (3, 160, 200), (16, 96, 130), (64, 64, 2)]
FLAGS = [[0, 0, 0], [1, 1, 1], [0, 1, 0], [5, 0, -1]]


def whole(number, outputs, inputs):
    """Experts whose scales are 1, 2 or 4: whole numbers of halves, so that sums are exact."""
    return [fp4(e, outputs, inputs, 127, 129) for e in range(number)]


def placed(weights):
    words, power = zip(*(place_fp4(*weight) for weight in weights), strict=True)
    return torch.stack(words), torch.stack(power)


def flagged(flags):
    return torch.tensor([flags], dtype=torch.int32)


def listed(flags):
    """The same as a list: active experts first, and their number."""
    order = sorted(range(len(flags)), key=lambda e: (flags[e] == 0, e))
    count = sum(flag != 0 for flag in flags)
    return (
        torch.tensor(order, dtype=torch.int32).unsqueeze(-1),
        torch.tensor([[count]], dtype=torch.int32),
    )


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_sum_is_exact_and_the_rest_is_zero(size, flags):
    """A result that nobody wrote would be NaN: the simulator fills memory with it."""
    m, k, n = size
    x, weights = whole_rows(1, m, k), whole(3, n, k)
    y = fp4_gated(x, *placed(weights), flagged(flags), n)
    for e, weight in enumerate(weights):
        exact = x.double() @ of_fp4(weight).T if flags[e] else torch.zeros(m, n)
        assert torch.equal(y[e], exact.to(torch.bfloat16)), f"expert {e}"
        assert y[e].any() == bool(flags[e])
    assert torch.equal(y, reference(x, *placed(weights), flagged(flags), n))
    again = fp4_active(x, *placed(weights), *listed(flags), n)
    assert torch.equal(bits(again), bits(y)), "the list gives the bytes of the flags"


def test_an_expert_s_product_is_the_one_without_a_gate():
    x, weights = matrix(2, 5, 192, torch.bfloat16), [fp4(e, 300, 192) for e in range(2)]
    words, power = placed(weights)
    y = fp4_gated(x, words, power, flagged([1, 1]), 300)
    for e in range(2):
        assert torch.equal(bits(y[e]), bits(fp4_linear(x, words[e], power[e], 300))) and y[e].any()


@settings(max_examples=10, deadline=None)
@given(
    st.integers(1, 9),
    st.integers(1, 20),
    st.integers(2, 300),
    st.lists(st.integers(0, 1), min_size=1, max_size=3),
)
def test_random_products_are_near(m, blocks, n, flags):
    x = matrix(3, m, 32 * blocks, torch.bfloat16)
    weights = [fp4(e, n, 32 * blocks) for e in range(len(flags))]
    y = fp4_active(x, *placed(weights), *listed(flags), n)
    for e, weight in enumerate(weights):
        wide = of_fp4(weight) * bool(flags[e])
        assert near(y[e], x.double() @ wide.T, x.double().abs() @ wide.abs().T)


@pytest.mark.parametrize("outputs", [2, 100, 128, 300, 512])
@pytest.mark.parametrize("flags", [[0, 1], [1, 1]], ids=str)
def test_two_cores_give_the_bytes_of_one(outputs, flags):
    x, weights = matrix(4, 3, 64, torch.bfloat16), placed([fp4(e, outputs, 64) for e in range(2)])
    for kernel, gate in ((fp4_gated, (flagged(flags),)), (fp4_active, listed(flags))):
        one, two = (kernel[cores](x, *weights, *gate, outputs) for cores in (1, 2))
        assert torch.equal(bits(one), bits(two)) and one.any()


def test_both_cores_take_the_same_path():
    x, weights = whole_rows(5, 2, 64), placed(whole(3, 256, 64))
    for kernel, gate in ((fp4_gated, (flagged([0, 1, 0]),)), (fp4_active, listed([0, 1, 0]))):
        first, second = recorded(lambda k=kernel, g=gate: k[2](x, *weights, *g, 256))
        assert [(i.name, i.engine) for i in first] == [(i.name, i.engine) for i in second]
        loops = {i.loops for i in first if i.loops}
        assert len(loops) == 3, "one trip that computes, two that fill"


def test_an_expert_that_is_not_wanted_costs_a_zero_fill():
    """Nothing of its weight is read: NaN scales and codes of any kind do not matter."""
    x, (words, power) = whole_rows(6, 2, 64), placed(whole(2, 128, 64))
    y = fp4_gated(x, words, power, flagged([0, 1]), 128)
    words[0], power[0] = 0xFF, 0xFF
    assert torch.equal(bits(fp4_gated(x, words, power, flagged([0, 1]), 128)), bits(y)) and y.any()
    (core,) = recorded(lambda: fp4_gated(x, words, power, flagged([0, 0]), 128))
    inside = [one for one in core if one.loops]
    assert [one.name for one in inside] == ["dma_copy"] * 2
    assert sum(one.outputs[0].nbytes for one in inside) == y.numel() * 2


@pytest.mark.parametrize("kernel", [fp4_gated, fp4_active], ids=lambda k: k.__name__)
def test_time_goes_with_the_active_experts(kernel):
    """Modelled, without what no expert costs: the time of an expert is the same within 10%.

    From two on: the first one's time has the wait for its first bytes in it.
    """
    x, weights = whole_rows(7, 4, 2048), placed(whole(4, 2048, 2048))
    times = []
    for n in (0, 2, 3, 4):
        flags = [int(e < n) for e in range(4)]
        gate = (flagged(flags),) if kernel is fp4_gated else listed(flags)
        times.append(cost.profile(kernel[2], x, *weights, *gate, 2048).us)
    each = [(us - times[0]) / n for us, n in zip(times[1:], (2, 3, 4), strict=True)]
    assert 0 < max(each) <= 1.1 * min(each), times


def test_the_operations_run_the_kernels():
    x, weights = whole_rows(8, 2, 64), placed(whole(2, 70, 64))
    with backend.use("sim"):
        y = ops.fp4_gated(x, *weights, flagged([1, 0]), 70)
        again = ops.fp4_active(x, *weights, *listed([1, 0]), 70)
    assert torch.equal(y, ops.fp4_gated(x, *weights, flagged([1, 0]), 70)) and y[0].any()
    assert torch.equal(again, reference_active(x, *weights, *listed([1, 0]), 70))
