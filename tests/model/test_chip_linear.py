"""One quantised linear on simulated kernels: exact, placed once, refused."""

from __future__ import annotations

import copy
import io
import warnings

import numpy as np
import pytest
import torch

from dslearn import Numerics, backend, ops
from dslearn.errors import KernelError
from dslearn.formats import rows, tiles
from dslearn.model import chip, chip_linear
from dslearn.model.arith import Arith
from dslearn.model.linear import Fused, GroupedLinear, Input, Linear
from tests.support.captured import Graphs
from tests.support.on_sim import on_sim
from tests.support.weights import fp4, fp8, of_fp4, of_fp8, whole_fp8

NUMERICS = Numerics()


def layer(weight, per_row=False, numerics=NUMERICS, quantised=True):
    """A linear whose weight was stored in tiles, or per row in fp4."""
    outputs, inputs = weight.shape
    made = Linear(inputs, outputs, Arith(numerics), quantised=quantised)
    made.weight.data = weight.float()
    made.stored_quantised, made.stored_per_row = True, per_row
    return made.requires_grad_(False)


def normal(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, np.float32))


@pytest.mark.parametrize("shape", [(1, 64, 96), (5, 70, 64), (3, 2, 33, 32)], ids=str)
def test_whole_numbers_come_out_exactly(shape):
    *lead, outputs, inputs = shape
    x = torch.from_numpy(np.random.default_rng(1).integers(-3, 4, (*lead, inputs))).float()
    weight = of_fp8(whole_fp8(2, outputs, inputs))
    y, called = on_sim(layer(weight), x)
    assert torch.equal(y.double(), x.double() @ weight.T) and y.any()
    assert y.dtype == torch.float32 and called == {"fp8_folded": 1}


@pytest.mark.parametrize(
    ("rows_", "per_row", "low", "op"),
    [
        (16, False, 114, "fp8_folded"),
        (17, False, 114, "fp8_linear"),
        (1, True, 119, "fp4_widened"),
        (40, True, 119, "fp4_widened"),
        (4, True, 100, "fp4_linear"),  # scales 2^25 apart do not widen
    ],
)
def test_each_storage_has_its_kernel_and_the_sum_is_fp32(rows_, per_row, low, op):
    weight = of_fp4(fp4(3, 48, 128, low, 125)) if per_row else of_fp8(fp8(3, 48, 128))
    linear, x = layer(weight, per_row), normal(4, rows_, 128)
    y, called = on_sim(linear, x)
    seen = rows.fake_fp8(x).double()
    error = (y.double() - seen @ weight.T).abs()
    assert called == {op: 1} and y.abs().max() > 0
    assert (error <= 2e-6 * (seen.abs() @ weight.abs().T)).all()
    assert torch.allclose(y, linear(x), rtol=1e-5, atol=1e-5 * float(y.abs().max()))


def test_codes_above_240_are_halved_and_move_by_one_step_at_most():
    codes, scale = fp8(5, 64, 64)
    codes[0, 0], codes[40, 40], codes[33:35, 32] = 0x7E, 0xFE, 0x01
    weight = tiles.dequantize(codes, scale)
    y, _ = on_sim(layer(weight), torch.eye(64))
    step = 2.0**-9 * 2.0 ** (int(scale.max()) - 127)
    assert y[0, 0] == weight[0, 0] and y[40, 40] == weight[40, 40], "448 times the scale"
    moved = (weight != y.T).nonzero().tolist()
    assert [33, 32] in moved and (y.T - weight).abs().max() <= step


def test_a_large_scale_range_is_found_again():
    """Tiles whose maximum is far below the floor of activations, and all zeros."""
    codes, scale = fp8(6, 96, 64, 20, 230)
    codes[:32, :32] = 0
    weight = of_fp8((codes, scale))
    y, _ = on_sim(layer(weight), torch.eye(64))
    assert torch.equal(y.T.double(), weight) and not y[:32, :32].any()


@pytest.mark.parametrize("replace", ["data", "in place", "joined"])
def test_a_weight_that_changed_is_placed_again(replace):
    linear, x = layer(of_fp8(whole_fp8(7, 64, 32))), torch.ones(1, 32)
    on_sim(linear, x)
    first, new = chip_linear.placed(linear), of_fp8(whole_fp8(8, 64, 32)).float()
    on_sim(linear, x)
    assert chip_linear.placed(linear) is first, "placed once"
    if replace == "data":
        linear.weight.data = new
    elif replace == "in place":
        linear.weight.copy_(new)
    else:  # on the cpu both become views of one weight
        other = layer(new)
        Fused(linear, other)(Input(x, linear.arith))
        linear, new = other, other.weight
    y, _ = on_sim(linear, x)
    assert torch.equal(y, x @ new.T) and chip_linear.placed(linear) is not first


@pytest.mark.parametrize("per_row", [False, True])
def test_a_weight_that_its_format_does_not_hold_is_refused(per_row):
    weight = of_fp4(fp4(9, 32, 32)) if per_row else of_fp8(whole_fp8(9, 32, 32))
    linear, x = layer(weight, per_row), torch.ones(1, 32)
    linear.weight[0, 0] += 1e-3
    kind = "fp4 with a scale per 32 inputs" if per_row else "fp8 in 32 x 32 tiles"
    with pytest.raises(KernelError, match=rf"1 of 1024 weights \[32, 32\] are not what {kind}"):
        on_sim(linear, x)
    assert linear(x).any(), "the cpu takes any weight"
    linear.weight.data = weight.float()
    assert on_sim(linear, x)[1]


@pytest.mark.parametrize(
    ("why", "op"),
    [
        ({}, "fp8_folded"),
        ({"numerics": Numerics(activations=False)}, "plain_linear"),  # fp32 inputs
        ({"numerics": Numerics(activations=False, arithmetic="bf16")}, "fp8_folded"),
        ({"numerics": Numerics(fp8_max=224)}, "fp8_folded"),
        ({"quantised": False}, "plain_linear"),
        ({"quantised": False, "numerics": Numerics(arithmetic="bf16")}, "plain_linear"),
        ({"stored": False}, "plain_linear"),
        ({"learns": True}, None),
    ],
)
def test_which_kernel_serves_and_what_stays_in_torch(why, op):
    numerics, quantised = why.get("numerics", NUMERICS), why.get("quantised", True)
    linear = layer(of_fp8(fp8(10, 32, 64)), numerics=numerics, quantised=quantised)
    linear.stored_quantised = why.get("stored", True)
    linear.requires_grad_(why.get("learns", False))
    x = linear.arith.round(normal(11, 3, 64))
    y, called = on_sim(linear, x)
    assert called == ({op: 1} if op else {})
    with torch.no_grad():  # nothing learns here
        assert on_sim(linear, x)[1] == {op or "fp8_folded": 1}
    want = linear(x)
    assert torch.equal(y, want) if not op else torch.allclose(y, want, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("arithmetic", ["fp32", "bf16"])
@pytest.mark.parametrize("exact", [True, False])
def test_plain_weights_are_kept_in_bf16_where_that_holds_them(exact, arithmetic):
    weight = normal(15, 40, 70).bfloat16().float() + (0 if exact else 2.0**-20)
    linear = layer(weight, numerics=Numerics(arithmetic=arithmetic), quantised=False)
    x = linear.arith.round(normal(16, 2, 3, 70))
    y, called = on_sim(linear, x)
    kept = chip_linear.plain(linear.weight, linear.arith.numerics)
    assert called == {"plain_linear": 1} and y.shape == (2, 3, 40)
    assert kept.weight.dtype is (torch.bfloat16 if exact else torch.float32)
    assert kept.narrow is (exact and arithmetic == "bf16")
    error = (y.double() - linear.arith.round((x.double() @ weight.double().T).float())).abs()
    step = 2.0**-8 if arithmetic == "bf16" else 2e-6
    assert (error <= step * (x.double().abs() @ weight.double().abs().T)).all()


@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize(
    ("arithmetic", "exact", "called"),
    [
        ("fp32", True, "plain_linear"),
        ("bf16", True, "grouped"),
        ("bf16", False, "plain_linear"),
    ],
)
def test_grouped_products(arithmetic, exact, called, groups):
    """fp32 rows are no input of the kernel `grouped`, nor a weight that bf16 does not hold."""
    arith = Arith(Numerics(arithmetic=arithmetic))
    linear = GroupedLinear(groups, 33, 20, arith).requires_grad_(False)
    linear.weight.copy_(normal(17, 20 * groups, 33).bfloat16().float() + (0 if exact else 2.0**-20))
    for rows_ in (3, 130):
        x = arith.round(normal(18, rows_, groups, 33))
        y, taken = on_sim(linear, x)
        want = linear(x)
        assert y.shape == (rows_, 20 * groups) and torch.allclose(y, want, rtol=8e-3, atol=1e-4)
        times = {"plain_linear": groups, "grouped": 1 if rows_ < 128 else 2}
        assert taken == {called: times[called]}
        if arithmetic == "fp32":
            assert torch.allclose(y, want, rtol=1e-5, atol=1e-5)
    linear.weight.mul_(2)
    assert torch.allclose(on_sim(linear, x)[0], 2 * y, rtol=8e-3)


def test_a_captured_graph_has_the_kernel_too():
    linear, x = layer(of_fp8(fp8(12, 32, 64))), normal(13, 2, 64)
    with backend.use("sim"), ops.collect() as taken:
        chip.prepare(linear)
        y = Graphs(linear.forward)(x)
    assert torch.equal(y, on_sim(linear, x)[0])
    assert taken.counts() == {"fp8_folded": {"kernel": 1}}


@pytest.mark.parametrize("arithmetic", ["fp32", "bf16"])
def test_a_captured_grouped_product_is_the_eager_one(arithmetic):
    linear = GroupedLinear(2, 33, 20, Arith(Numerics(arithmetic=arithmetic))).requires_grad_(False)
    linear.weight.copy_(normal(19, 40, 33).bfloat16())
    x, graphs = normal(20, 3, 2, 33).bfloat16().float(), Graphs(linear.forward)
    with backend.use("sim"), warnings.catch_warnings(), ops.collect() as taken:
        warnings.simplefilter("error")  # what Dynamo is not sure of, it warns about
        chip.prepare(linear)
        assert torch.equal(graphs(x), on_sim(linear, x)[0])
    assert set(taken.counts()) == {"grouped" if arithmetic == "bf16" else "plain_linear"}


def test_copies_and_pickles_know_nothing_of_it():
    linear, x = layer(of_fp8(whole_fp8(14, 32, 32))), torch.ones(1, 32)
    y, _ = on_sim(linear, x)
    buffer = io.BytesIO()
    torch.save(linear, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(linear), torch.load(buffer, weights_only=False)):
        again, called = on_sim(other, x)
        assert torch.equal(again, y) and called
