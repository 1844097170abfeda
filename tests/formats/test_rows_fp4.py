"""e2m1 rows with ue8m0 or e4m3 scales: exact definition, published vectors, special blocks."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dslearn.errors import FormatError
from dslearn.formats import e2m1, rows, ue8m0
from tests.formats import formats_oracle as oracle

X = torch.linspace(-3, 3, 32) ** 3 + 0.01
BOTH = pytest.mark.parametrize("block,scale", [(32, "ue8m0"), (16, "e4m3"), (16, "ue8m0")])
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def wild(shape, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-8, 12, (*shape[:-1], 1))
    x[rng.random(shape) < 0.1] = 0
    return torch.from_numpy(x.astype(np.float32))


def test_published_vector_with_e4m3_scale():
    packed, scale = rows.quantize_fp4(X[:16], 16, "e4m3")
    assert scale.tolist() == [73]
    assert packed.tolist() == [239, 222, 204, 171, 153, 137, 136, 8]
    codes = [15, 14, 14, 13, 12, 12, 11, 10, 9, 9, 9, 8, 8, 8, 8, 0]
    assert e2m1.unpack(packed).tolist() == codes


def test_published_vector_with_ue8m0_scale():
    packed, scale = rows.quantize_fp4(X)
    assert ue8m0.decode(scale).tolist() == [8]
    want = [13, 13, 12, 12, 11, 10, 10, 9, 9, 8, 8, 8, 8, 8, 8]
    want += [0] * 7 + [1, 1, 1, 2, 2, 3, 4, 4, 5, 5]
    assert e2m1.unpack(packed).tolist() == want


@BOTH
@pytest.mark.parametrize("shape", [(7, 96), (3, 5, 64), (32,), (1, 2304)])
def test_equals_the_exact_definition(shape, block, scale):
    x = wild(shape)
    packed, byte = rows.quantize_fp4(x, block, scale)
    want_packed, want_byte = oracle.quantize_fp4(x.numpy(), block, scale)
    assert np.array_equal(packed.numpy(), want_packed) and np.array_equal(byte.numpy(), want_byte)


@BOTH
@settings(max_examples=60, deadline=None)
@given(x=hnp.arrays(np.float32, (2, 32), elements=FINITE | st.floats(-40, 40, width=32)))
def test_any_finite_block_equals_the_exact_definition(block, scale, x):
    packed, byte = rows.quantize_fp4(torch.from_numpy(x), block, scale)
    want_packed, want_byte = oracle.quantize_fp4(x, block, scale)
    assert np.array_equal(packed.numpy(), want_packed) and np.array_equal(byte.numpy(), want_byte)


@BOTH
def test_dequantize_multiplies_each_block_by_its_scale(block, scale):
    packed, byte = rows.quantize_fp4(wild((5, 64)), block, scale)
    factor = ue8m0.decode(byte) if scale == "ue8m0" else byte.view(torch.float8_e4m3fn).float()
    want = e2m1.decode(e2m1.unpack(packed)) * factor.repeat_interleave(block, -1)
    for stored in (packed, packed.view(torch.int8)):
        assert torch.equal(rows.dequantize_fp4(stored, byte, block, scale), want)


@BOTH
def test_zero_blocks_keep_their_signs(block, scale):
    x = torch.tensor([[0.0] * 32, [-0.0] * 32])
    packed, byte = rows.quantize_fp4(x, block, scale)
    assert packed.tolist() == [[0] * 16, [0x88] * 16]
    assert byte.unique().tolist() == [1], "the smallest scale: 2^-126, or e4m3's 2^-9"
    assert rows.dequantize_fp4(packed, byte, block, scale).abs().max() == 0


@pytest.mark.parametrize("fp8_max", [448, 240, 224])
def test_e4m3_scale_saturates_and_so_do_the_codes(fp8_max):
    x = torch.tensor([[1e5, -1e5] + [100.0] * 14])
    packed, byte = rows.quantize_fp4(x, 16, "e4m3", fp8_max)
    back = rows.dequantize_fp4(packed, byte, 16, "e4m3")
    assert byte.view(torch.float8_e4m3fn).float().item() == fp8_max
    assert back[0, :2].tolist() == [6 * fp8_max, -6 * fp8_max]


def test_a_scale_that_rounds_down_saturates_its_largest_value():
    x = torch.zeros(1, 16)
    x[0, 0] = 6 * 2.5 * 2.0**-9  # the scale is a tie and goes down to 2 * 2^-9; 7.5 is above 6
    packed, byte = rows.quantize_fp4(x, 16, "e4m3")
    assert byte.tolist() == [[2]] and packed[0, 0] == 7


@BOTH
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_block_with_nan_or_infinity_is_nan_and_leaves_its_neighbours_alone(block, scale, bad):
    x = wild((2, 96))
    spoiled = x.clone()
    spoiled[1, 40] = bad
    back = rows.dequantize_fp4(*rows.quantize_fp4(spoiled, block, scale), block, scale)
    clean = rows.dequantize_fp4(*rows.quantize_fp4(x, block, scale), block, scale)
    first = 40 // block * block
    assert back[1, first : first + block].isnan().all()
    back[1, first : first + block] = clean[1, first : first + block]
    assert torch.equal(back, clean)


def test_inputs_of_other_layouts():
    x = wild((64, 96))
    packed, byte = rows.quantize_fp4(x)
    assert torch.equal(rows.quantize_fp4(x.T.contiguous().T)[0], packed)
    half = x.bfloat16()
    assert torch.equal(rows.quantize_fp4(half)[0], rows.quantize_fp4(half.float())[0])
    assert rows.quantize_fp4(torch.zeros(0, 64))[0].shape == (0, 32)
    assert rows.dequantize_fp4(packed[:0], byte[:0]).shape == (0, 96)


def test_refusals_say_the_rule():
    with pytest.raises(FormatError, match="multiple of 32"):
        rows.quantize_fp4(torch.zeros(2, 40))
    with pytest.raises(FormatError, match="must be even"):
        rows.quantize_fp4(torch.zeros(2, 3), 3)
    for call in (rows.quantize_fp4, rows.fake_fp4):
        with pytest.raises(FormatError, match="'ue8m0' or 'e4m3'"):
            call(X, 32, "fp32")
    packed, byte = rows.quantize_fp4(X)
    with pytest.raises(FormatError, match="needs 2 of them"):
        rows.dequantize_fp4(packed, byte, 16)
    with pytest.raises(FormatError, match="'ue8m0' or 'e4m3'"):
        rows.dequantize_fp4(packed, byte, 32, "fp32")
    with pytest.raises(FormatError, match="without conversion"):
        rows.dequantize_fp4(packed, byte.int())
