"""e4m3 rows with block scales: exact definition, published vectors, limits, special blocks."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dslearn.errors import FormatError
from dslearn.formats import e4m3, rows, ue8m0
from tests.formats import formats_oracle as oracle

X = torch.linspace(-3, 3, 32) ** 3 + 0.01


def wild(shape, seed=0):
    """Magnitudes over 40 binades, both signs, some zeros."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-20, 20, shape)
    x[rng.random(shape) < 0.1] = 0
    return torch.from_numpy(x.astype(np.float32))


def test_published_vector():
    codes, scale = rows.quantize_fp8(X)
    assert ue8m0.decode(scale).tolist() == [0.0625]
    assert codes[:4].tolist() == [253, 251, 249, 246]


@pytest.mark.parametrize("fp8_max", [448, 240, 224])
@pytest.mark.parametrize(
    "shape,block", [((7, 96), 32), ((3, 5, 256), 128), ((1, 64), 64), ((32,), 32)]
)
def test_equals_the_exact_definition(shape, block, fp8_max):
    x = wild(shape)
    codes, scale = rows.quantize_fp8(x, block, fp8_max)
    want_codes, want_scale = oracle.quantize_fp8(x.numpy(), block, fp8_max)
    assert np.array_equal(codes.numpy(), want_codes) and np.array_equal(scale.numpy(), want_scale)
    assert e4m3.decode(codes).abs().max() <= fp8_max


@settings(max_examples=100, deadline=None)
@given(
    hnp.arrays(
        np.float32, (2, 32), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)
    )
)
def test_any_finite_block_equals_the_exact_definition(x):
    codes, scale = rows.quantize_fp8(torch.from_numpy(x))
    want_codes, want_scale = oracle.quantize_fp8(x)
    assert np.array_equal(codes.numpy(), want_codes) and np.array_equal(scale.numpy(), want_scale)
    back = rows.dequantize_fp8(codes, scale)
    assert back[torch.from_numpy(np.abs(x).max(-1) < 2.0**127)].isfinite().all()


@pytest.mark.parametrize("limit", [448, 240, 224, 6])
def test_reciprocal_gives_the_exponent_of_the_division_for_every_mantissa(limit):
    amax = torch.arange(0x3F800000, 0x40000000, dtype=torch.int32).view(torch.float32)
    byte = ue8m0.ceil_byte(amax * (1 / limit))
    exponent = limit.bit_length() - 1
    threshold = limit / 2**exponent  # 2^-exponent * limit >= amax up to here, twice that above
    want = (amax > threshold).to(torch.uint8) + (127 - exponent)
    assert byte.dtype is want.dtype and torch.equal(byte, want)


def test_error_is_at_most_half_a_step():
    x = torch.randn(64, 512, generator=torch.Generator().manual_seed(0))
    codes, scale = rows.quantize_fp8(x)
    error = (rows.dequantize_fp8(codes, scale) - x).abs().unflatten(-1, (-1, 32))
    relative = error / x.abs().unflatten(-1, (-1, 32)).clamp_min(1e-30)
    small = ue8m0.decode(scale)[..., None] * 2.0**-10
    assert bool(((relative <= 2.0**-4) | (error <= small)).all())


def test_224_is_the_448_code_halved_with_twice_the_scale():
    x = torch.from_numpy(np.random.default_rng(1).standard_normal((64, 128), np.float32))
    codes, scale = rows.quantize_fp8(x)
    half, double = rows.quantize_fp8(x, fp8_max=224)
    assert torch.equal(double, scale + 1)
    normal = half & 0x7F >= 0x10
    assert torch.equal(half[normal], codes[normal] - 8)
    assert normal.float().mean() > 0.99


def test_zero_blocks_and_the_floor():
    codes, scale = rows.quantize_fp8(torch.tensor([[0.0] * 32, [-0.0] * 32]))
    assert ue8m0.decode(scale).tolist() == [[2.0**-22], [2.0**-22]]
    assert codes.tolist() == [[0] * 32, [128] * 32]
    assert rows.dequantize_fp8(codes, scale).abs().max() == 0
    tiny = torch.full((1, 32), 5e-5)
    assert torch.equal(rows.quantize_fp8(tiny)[1], scale[:1]), (
        "blocks below the floor share a scale"
    )
    assert rows.quantize_fp8(tiny, floor=1e-6)[0].unique().tolist() != [0]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_block_with_nan_or_infinity_is_nan_and_leaves_its_neighbours_alone(bad):
    x = wild((2, 96))
    spoiled = x.clone()
    spoiled[0, 40] = bad
    codes, scale = rows.quantize_fp8(spoiled)
    assert scale[0, 1] == 255 and codes[0, 40] & 0x7F == 0x7F
    back, clean = rows.dequantize_fp8(codes, scale), rows.dequantize_fp8(*rows.quantize_fp8(x))
    assert back[0, 32:64].isnan().all()
    back[0, 32:64] = clean[0, 32:64]
    assert torch.equal(back, clean)


def test_inputs_of_other_layouts():
    x = wild((64, 96))
    codes, scale = rows.quantize_fp8(x)
    column_major = x.T.contiguous().T
    assert torch.equal(rows.quantize_fp8(column_major)[0], codes)
    every_other = torch.stack((x, x), 1)[:, 0]
    assert torch.equal(rows.quantize_fp8(every_other)[1], scale)
    half = x.bfloat16()
    assert torch.equal(rows.quantize_fp8(half)[0], rows.quantize_fp8(half.float())[0])
    stored = rows.dequantize_fp8(codes.view(torch.float8_e4m3fn), scale.view(torch.float8_e8m0fnu))
    assert torch.equal(stored, rows.dequantize_fp8(codes, scale))


@pytest.mark.parametrize("shape", [(0, 64), (2, 0, 32), (3, 0)])
def test_no_rows(shape):
    codes, scale = rows.quantize_fp8(torch.zeros(shape))
    assert codes.shape == shape and scale.shape == (*shape[:-1], shape[-1] // 32)
    assert rows.dequantize_fp8(codes, scale).shape == shape
    assert rows.fake_fp8(torch.zeros(shape)).shape == shape


def test_refusals_say_the_rule():
    with pytest.raises(FormatError, match="row of 40 values.*multiple of 32"):
        rows.quantize_fp8(torch.zeros(2, 40))
    with pytest.raises(FormatError, match="448, 240, 224"):
        rows.quantize_fp8(X, fp8_max=256)
    with pytest.raises(FormatError, match="2\\^-126"):
        rows.quantize_fp8(X, floor=0.0)
    with pytest.raises(FormatError, match="float32 or bfloat16"):
        rows.quantize_fp8(X.double())
    codes, scale = rows.quantize_fp8(wild((2, 64)))
    with pytest.raises(FormatError, match="must divide"):
        rows.dequantize_fp8(codes[:, :63], scale)
    with pytest.raises(FormatError, match="rows must agree"):
        rows.dequantize_fp8(codes, scale[:1])
    with pytest.raises(FormatError, match="without conversion"):
        rows.dequantize_fp8(codes, scale.float())


def test_block_with_449_uses_the_next_power_of_two():
    """A published case: amax 449 has scale 2 and code value 224."""
    x = torch.zeros(1, 32)
    x[0, 0] = 449
    codes, scale = rows.quantize_fp8(x)
    assert ue8m0.decode(scale).item() == 2 and e4m3.decode(codes)[0, 0] == 224


def test_one_infinity_in_a_block():
    """One library gives scale 2^127 and code 448, another a NaN code: ours is NaN end to end."""
    x = torch.ones(1, 32)
    x[0, 0] = torch.inf
    codes, scale = rows.quantize_fp8(x)
    assert scale.item() == 255 and codes[0, 0] & 0x7F == 0x7F
    assert rows.dequantize_fp8(codes, scale).isnan().all()
