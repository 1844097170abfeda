"""Fake quantisation: the same values as real quantisation, without the codes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dslearn.formats import rows

SAFE = st.floats(-(2.0**99), 2.0**99, width=32)
MAXIMA = pytest.mark.parametrize("fp8_max", [448, 240, 224])
FP4 = pytest.mark.parametrize("block,scale", [(32, "ue8m0"), (16, "e4m3")])


def round_trip_fp4(x, block, scale):
    return rows.dequantize_fp4(*rows.quantize_fp4(x, block, scale), block, scale)


@MAXIMA
@settings(max_examples=60, deadline=None)
@given(x=hnp.arrays(np.float32, (3, 64), elements=SAFE | st.floats(-500, 500, width=32)))
def test_fp8_values(fp8_max, x):
    x = torch.from_numpy(x)
    want = rows.dequantize_fp8(*rows.quantize_fp8(x, 32, fp8_max))
    assert torch.equal(rows.fake_fp8(x, 32, fp8_max), want)


@FP4
@settings(max_examples=60, deadline=None)
@given(x=hnp.arrays(np.float32, (3, 64), elements=SAFE | st.floats(-40, 40, width=32)))
def test_fp4_values(block, scale, x):
    x = torch.from_numpy(x)
    assert torch.equal(rows.fake_fp4(x, block, scale), round_trip_fp4(x, block, scale))


@pytest.mark.parametrize("block", [32, 64, 128])
@pytest.mark.parametrize("shape", [(256,), (2, 3, 128), (33, 640)])
def test_fp8_blocks_and_shapes(block, shape):
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal(shape) * 2.0 ** rng.integers(-30, 30, shape))
    x = x.float()
    want = rows.dequantize_fp8(*rows.quantize_fp8(x, block))
    assert torch.equal(rows.fake_fp8(x, block), want)


def test_every_tie_of_fp8():
    steps = torch.arange(-448 * 64, 448 * 64 + 1) / 64
    x = torch.cat((steps, torch.zeros(-len(steps) % 31))).view(-1, 31)
    x = torch.cat((x, torch.full((len(x), 1), 448.0)), 1)  # every block has scale 1
    assert torch.equal(rows.fake_fp8(x), x.to(torch.float8_e4m3fn).float())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_nan_and_infinity_spoil_their_block_alone(bad):
    x = torch.linspace(-5, 5, 96).repeat(2, 1)
    x[0, 40] = bad
    for fake, block in (
        (rows.fake_fp8(x), 32),
        (rows.fake_fp4(x), 32),
        (rows.fake_fp4(x, 16, "e4m3"), 16),
    ):
        first = 40 // block * block
        spoiled = torch.zeros(2, 96, dtype=torch.bool)
        spoiled[0, first : first + block] = True
        assert torch.equal(fake.isnan(), spoiled)


def test_zero_blocks_stay_zero():
    for x in (torch.zeros(2, 32), -torch.zeros(2, 32), torch.full((2, 32), 1e-36)):
        for fake in (rows.fake_fp8(x), rows.fake_fp4(x), rows.fake_fp4(x, 16, "e4m3")):
            assert fake.isfinite().all() and fake.abs().max() <= 1.25e-36


@MAXIMA
def test_blocks_around_the_floors(fp8_max):
    x = torch.linspace(-1, 1, 32) * 10.0 ** torch.arange(-10, -1)[:, None]
    want = rows.dequantize_fp8(*rows.quantize_fp8(x, 32, fp8_max))
    assert torch.equal(rows.fake_fp8(x, 32, fp8_max), want)
    assert torch.equal(rows.fake_fp4(x, 16, "e4m3"), round_trip_fp4(x, 16, "e4m3"))
    low = x * 2.0**-125
    assert torch.equal(rows.fake_fp4(low), round_trip_fp4(low, 32, "ue8m0"))
    assert want[0].unique().numel() < want[8].unique().numel(), "the floor acts on the first rows"


def test_bfloat16_is_held_exactly():
    x = torch.linspace(-9, 9, 64).bfloat16().view(2, 32)
    for fake in (rows.fake_fp8, rows.fake_fp4, lambda v: rows.fake_fp4(v, 16, "e4m3")):
        half = fake(x)
        assert half.dtype is torch.bfloat16
        assert torch.equal(half.float(), fake(x.float()))


def test_the_input_is_left_alone_and_no_gradient_flows():
    x = torch.linspace(-9, 9, 64).view(2, 32).requires_grad_()
    before = x.detach().clone()
    for fake in (rows.fake_fp8(x), rows.fake_fp4(x), rows.fake_fp4(x, 16, "e4m3")):
        assert not fake.requires_grad
        assert torch.equal(x.detach(), before)


def test_idempotent():
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((16, 128), np.float32))
    once = rows.fake_fp8(x)
    assert torch.equal(rows.fake_fp8(once), once), "stored bytes may feed a product directly"
    index = rows.fake_fp4(x)
    assert torch.equal(rows.fake_fp4(index), index)
