"""widened_active: exact sums by slot, written zeros, rows of each slot, two cores, bytes, time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dslearn import backend
from dslearn.formats.place_fp4 import place_widened
from dslearn.kernels.fp4_widened import fp4_widened
from dslearn.kernels.widened_active import widened_active
from dslearn.ops import widened_active as ops
from dslearn.ops.widened_active import reference
from dslearn.sim import cost
from tests.support import linear
from tests.support.kernels import bits, dma_bytes, recorded

SIZES = [(1, 512, 128), (3, 160, 200), (16, 96, 130), (64, 64, 2), (128, 32, 40)]


def weights(number, outputs, inputs, spread=3):
    """fp4 weights of `number` experts: as kernels read them, and their values."""
    stored = [linear.fp4(outputs, inputs, spread, e) for e in range(number)]
    codes, power = zip(*(place_widened(*one) for one in stored), strict=True)
    values = [linear.fp4_values(*one) for one in stored]
    return (torch.stack(codes), torch.stack(power)), values


def rows(slots, m, k):
    return torch.stack([linear.whole_rows(m, k, slot) for slot in range(slots)])


def listed(experts, used):
    """A list of experts, of which the first `used` compute."""
    order = torch.tensor(experts, dtype=torch.int32).unsqueeze(-1)
    return order, torch.tensor([[used]], dtype=torch.int32)


@pytest.mark.parametrize("own", [False, True], ids=["same rows", "own rows"])
@pytest.mark.parametrize("used", [0, 1, 3])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_slots_hold_exact_sums_and_zeros(size, used, own):
    """A result that nobody wrote would be NaN: the simulator fills memory with it."""
    m, k, n = size
    order = [4, 1, 2]
    placed, values = weights(5, n, k)
    x = rows(3 if own else 1, m, k)
    y = widened_active(x, *placed, *listed(order, used), n)
    assert y.shape == (3, m, n) and y.dtype is torch.float32
    for slot, expert in enumerate(order):
        exact = linear.product(x[slot if own else 0], values[expert])
        assert np.array_equal(y[slot].numpy(), exact if slot < used else np.zeros((m, n)))
    assert torch.equal(y, reference(x, *placed, *listed(order, used), n))


@settings(max_examples=10, deadline=None)
@given(
    m=st.integers(1, 40), k=st.integers(1, 12), n=st.integers(2, 300), span=st.integers(0, 13),
    order=st.permutations(range(3)),
)  # fmt: skip
def test_a_slot_has_the_bytes_of_the_product_by_itself(m, k, n, span, order):
    placed, values = weights(3, n, 32 * k, span)
    x = linear.rows(m, 32 * k)
    y = widened_active(x.unsqueeze(0), *placed, *listed(order, 3), n)
    for slot, e in enumerate(order):
        alone = fp4_widened(x, placed[0][e], placed[1][e], n, True)
        assert torch.equal(bits(y[slot]), bits(alone))
        linear.check_close(y[slot], x, values[e])


@pytest.mark.parametrize("outputs", [2, 100, 128, 300, 3000])
def test_two_cores_give_the_bytes_of_one_and_take_the_same_path(outputs):
    placed, _ = weights(2, outputs, 64)
    x, gate = rows(2, 3, 64), listed([1, 0], 1)
    one, two = (widened_active[cores](x, *placed, *gate, outputs) for cores in (1, 2))
    assert torch.equal(bits(one), bits(two)) and one.any()
    first, second = recorded(lambda: widened_active[2](x, *placed, *gate, outputs))
    assert [(i.name, i.engine) for i in first] == [(i.name, i.engine) for i in second]


def test_only_experts_in_use_are_read():
    """What the others hold does not matter: NaN codes, and scales of any kind."""
    (codes, power), _ = weights(4, 128, 64)
    x, gate = rows(1, 2, 64), listed([3, 0], 1)
    y = widened_active(x, codes, power, *gate, 128)
    codes[:3], power[:3] = 0xFF, 0xFF
    assert torch.equal(bits(widened_active(x, codes, power, *gate, 128)), bits(y)) and y.any()
    cores = recorded(lambda: widened_active[2](x, codes, power, *gate, 128))
    read = sum(dma_bytes(core)[0] for core in cores)
    assert read == codes[0].numel() + power[0].numel() + 2 * (x.nbytes + 2 * 4)


def test_time_goes_with_the_experts_in_use():
    """Modelled: each one after the second costs the same within 15%, for the first ones wait."""
    placed, _ = weights(4, 2048, 2048)
    x = rows(1, 4, 2048)
    times = [
        cost.profile(widened_active[2], x, *placed, *listed([0, 1, 2, 3], n), 2048).us
        for n in (2, 3, 4)
    ]
    each = np.diff(times)
    assert 0 < each.max() <= 1.15 * each.min(), times


def test_the_operation_runs_the_kernel_and_stays_whole_in_graphs():
    placed, _ = weights(2, 70, 64)
    arguments = rows(1, 2, 64), *placed, *listed([1], 1), 70
    with backend.use("sim"):
        y = ops.widened_active(*arguments)
        assert ops.widened_active(arguments[0][:, :0], *arguments[1:]).shape == (1, 0, 70)
    assert torch.equal(y, ops.widened_active(*arguments)) and y.any()
    found = torch.library.opcheck(ops.widened_active.overload, arguments)
    assert set(found.values()) == {"SUCCESS"}


def test_more_rows_than_fit_at_once_are_refused():
    placed, _ = weights(1, 40, 32)
    with pytest.raises(AssertionError, match="at most 128 rows"):
        widened_active(rows(1, 129, 32), *placed, *listed([0], 1), 40)
