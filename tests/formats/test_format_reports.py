"""Number-format bugs that were reported against other projects, each as a test of ours.

The name of a test is the project and the number of the report.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dslearn.errors import FormatError
from dslearn.formats import device, e2m1, e4m3, rows, tiles, ue8m0
from dslearn.formats.records import Record


def test_ml_dtypes_400_and_260_overflow_is_a_choice():
    """465 and infinity: NaN in one library, 448 in another, and users were surprised by both."""
    x = torch.tensor([465.0, 1e9, torch.inf])
    assert e4m3.decode(e4m3.encode(x)).tolist()[:2] == [448, 448]
    assert e4m3.decode(e4m3.encode(x, saturate=False)).isnan().all()
    assert e4m3.decode(e4m3.encode(x[2:])).isnan().all(), "infinity is never a silent 448"


class CastsInRange(TorchDispatchMode):
    """Fails when anything beyond +-448 reaches torch's cast to float8."""

    def __init__(self):
        super().__init__()
        self.casts = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._to_copy.default and kwargs["dtype"] is torch.float8_e4m3fn:
            self.casts += 1
            assert not bool((args[0].abs() > 448).any()), "cast relies on torch's overflow rule"
        return func(*args, **(kwargs or {}))


def test_pytorch_178817_no_cast_sees_a_number_out_of_range():
    """The cast of 465 gave NaN in one torch release and 448 in the next."""
    x = torch.tensor([[465.0, 1e9, -3e38, torch.inf, 449, -1e5, 448, 7] * 4])
    with CastsInRange() as seen:
        e4m3.encode(x)
        e4m3.encode(x, 240, "ieee", saturate=False)
        rows.quantize_fp8(x.nan_to_num(posinf=2e38))
        rows.quantize_fp4(x, 16, "e4m3")
        rows.fake_fp4(x, 16, "e4m3")
        tiles.quantize(x)
        Record("window", 32).pack(x)
    assert seen.casts == 7


@pytest.mark.parametrize("sign", [1, -1])
def test_onnx_6220_infinity_into_every_8_bit_type(sign):
    """Infinity became the largest number of types that have no infinity."""
    x = torch.tensor([sign * torch.inf])
    assert e4m3.decode(e4m3.encode(x)).isnan().all()
    assert e4m3.decode(e4m3.encode(x, 240, "ieee"), "ieee").isnan().all()
    native = e4m3.encode(x, 240, "ieee", saturate=False)
    assert torch.equal(e4m3.decode(native, "ieee"), x)
    assert ue8m0.decode(ue8m0.ceil_byte(x.abs())).isnan().all()


def test_xnnpack_10460_top_binade_is_numbers():
    """0x78..0x7e were decoded as infinity and NaN."""
    codes = torch.arange(0x78, 0x7F).to(torch.uint8)
    assert e4m3.decode(codes).tolist() == [256, 288, 320, 352, 384, 416, 448]
    assert e4m3.decode(codes | 128).tolist() == [-256, -288, -320, -352, -384, -416, -448]


def test_torch_xpu_ops_2951_minus_zero_stays_zero():
    """-0.0 became NaN."""
    assert e4m3.encode(torch.tensor([-0.0])).tolist() == [0x80]
    assert e4m3.encode(torch.tensor([-1e-9])).tolist() == [0x80]


def test_aws_neuron_sdk_1393_no_code_above_240_reaches_the_device():
    """trn2 reads 0x7e as NaN; the tile must be rescaled at load."""
    codes = torch.zeros(64, 64, dtype=torch.uint8)
    codes[3, 40], codes[40, 3] = 0x7E, 0xF8
    scale = torch.full((2, 2), 120, dtype=torch.uint8)
    for mode in ("every", "needed"):
        new, byte, _ = device.to_device(codes, scale, mode=mode)
        assert (new & 0x7F).max() <= 0x77
        assert e4m3.decode(new, "ieee").isfinite().all()
        assert torch.equal(tiles.dequantize(new, byte), tiles.dequantize(codes, scale))


@pytest.mark.parametrize("fp8_max", [240, 224])
def test_triton_6542_the_scale_uses_the_targets_own_maximum(fp8_max):
    """A format that ends at 240 was scaled for 448, so that the largest values overflowed."""
    x = torch.linspace(-448, 448, 32)
    codes, scale = rows.quantize_fp8(x, fp8_max=fp8_max)
    back = rows.dequantize_fp8(codes, scale)
    assert e4m3.decode(codes, "ieee").abs().max() <= fp8_max
    assert (back - x).abs().max() <= 16, "half a step at 448: nothing was cut off"


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5])
def test_sglang_29954_29956_31210_scale_just_above_a_power_of_two(steps):
    """A ceiling of an fp32 logarithm is one too small there; reported for 2^-9 (1 + 2^-23)."""
    for exponent in (-100, -17, -16, -9, -8, -4, 4, 8, 15, 16, 100):
        x = torch.tensor([2.0**exponent * (1 + steps * 2.0**-23)])
        assert ue8m0.decode(ue8m0.ceil_byte(x)).item() == 2.0 ** (exponent + 1)
    assert ue8m0.decode(ue8m0.ceil_byte(torch.tensor([0.00195312523]))).item() == 2.0**-8
    assert torch.exp2(torch.log2(torch.tensor([2.0**16 * (1 + 2.0**-23)])).ceil()) == 2.0**16


def test_sglang_39193_a_scale_with_a_mantissa_is_refused():
    """1.5 went into a ue8m0 path and lost its half: 25 % error in one projection."""
    assert ue8m0.exact_byte(torch.tensor([0.5, 1.0, 2.0])).tolist() == [126, 127, 128]
    with pytest.raises(FormatError, match="scale 1.5 is not a power of two"):
        ue8m0.exact_byte(torch.tensor([1.0, 1.5]))


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_kernels_community_681_680_slime_2256_ao_4713_aiter_4289_zero_block(zero):
    """0/0 gave NaN for a block of zeros (also ao#4762, Model-Optimizer#1397)."""
    x = torch.full((32, 32), zero)
    window, index = Record("window", 32), Record("index", 32)
    for back in (
        rows.dequantize_fp8(*rows.quantize_fp8(x)),
        rows.fake_fp8(x),
        rows.fake_fp4(x),
        rows.fake_fp4(x, 16, "e4m3"),
        tiles.dequantize(*tiles.quantize(x)),
        window.unpack(window.pack(x)),
        index.unpack(index.pack(x)),
    ):
        assert torch.equal(back, torch.zeros(32, 32))
    assert ue8m0.decode(rows.quantize_fp8(x)[1]).isfinite().all()


def test_flashinfer_2440_a_block_of_1e_36():
    """The scale underflowed to zero: NaN and +-448 came out."""
    x = torch.full((1, 32), 1e-36)
    x[0, ::2] *= -1
    codes, scale = rows.quantize_fp8(x)
    assert scale.tolist() == [[105]] and rows.dequantize_fp8(codes, scale).abs().max() == 0
    lowest = 448 * 2.0**-126
    codes, scale = rows.quantize_fp8(x, floor=lowest)
    back = rows.dequantize_fp8(codes, scale)
    assert scale.tolist() == [[1]] and ((back - x).abs() <= x.abs() / 16).all()
    packed, scale = rows.quantize_fp4(x)
    back = rows.dequantize_fp4(packed, scale)
    assert 1 <= scale.item() < 20 and ((back - x).abs() <= x.abs() / 4).all()


def test_fuser_4665_scales_do_not_go_through_a_rounding_cast():
    """Two libraries' casts of 1.5 and 1.414 to e8m0 differ; a ceiling is 2 for both."""
    x = torch.tensor([1.5, 1.414, 1.0])
    assert ue8m0.ceil_byte(x).tolist() == [128, 128, 127]


def test_tilelang_2704_small_codes():
    """Codes 0, 1, 8 and 9 were decoded wrong."""
    values = e2m1.decode(torch.tensor([0, 1, 8, 9], dtype=torch.uint8))
    assert values.tolist() == [0, 0.5, -0.0, -0.5]
    assert torch.signbit(values).tolist() == [False, False, True, True]


def test_imp_567_comfy_kitchen_41_neighbours_share_a_byte():
    """GGUF files pack the two halves of a block; safetensors pack neighbours."""
    packed = e2m1.pack(torch.arange(16).to(torch.uint8))
    assert packed[:2].tolist() == [0x10, 0x32]
    x = torch.zeros(1, 32)
    x[0, 1] = 6
    assert rows.quantize_fp4(x)[0][0, 0] == 0x70, "column 1 is the high nibble of byte 0"


def test_neural_compressor_1891_the_smallest_step_is_a_half():
    """A level of 0.0625 was used."""
    x = torch.tensor([0.2, 0.25, 0.3])
    assert e2m1.decode(e2m1.encode(x)).tolist() == [0, 0, 0.5]


def test_rocm_systems_6870_no_carry_out_of_the_top_level():
    """Rounding up at the top carried into the sign."""
    x = torch.tensor([5.0, 5.5, 7, 1e9, -5.0, -1e9])
    assert e2m1.decode(e2m1.encode(x)).tolist() == [4, 6, 6, 6, -4, -6]


def test_paddle_api_test_727_each_tile_has_its_own_scale():
    """Scales were expanded along the wrong rows."""
    codes = torch.full((256, 384), 0x38, dtype=torch.uint8)  # 1.0
    scale = torch.arange(120, 126).to(torch.uint8).view(2, 3)
    want = ue8m0.decode(scale).repeat_interleave(128, 0).repeat_interleave(128, 1)
    assert torch.equal(tiles.dequantize(codes, scale, 128), want)


@pytest.mark.parametrize("tile", [32, 128])
def test_unsloth_6848_8953_sizes_that_no_tile_divides(tile):
    """[129, 257] failed, or lost its last row and column."""
    w = torch.linspace(-1, 1, 129 * 257).view(129, 257)
    codes, scale = tiles.quantize(w, tile)
    back = tiles.dequantize(codes, scale, tile)
    assert back.shape == w.shape and (back - w).abs().max() <= 1 / 16
    assert back[-1, -1] == 1 and back[0, 0] == -1


def test_v3_and_v41_tile_sizes_are_not_mixed_up():
    """Read with tiles of the other model generation, a checkpoint loads and produces noise."""
    codes = torch.zeros(256, 384, dtype=torch.uint8)
    fine = torch.full((8, 12), 127, dtype=torch.uint8)
    coarse = torch.full((2, 3), 127, dtype=torch.uint8)
    with pytest.raises(FormatError, match="must be \\(2, 3\\); it is the grid of 32x32 tiles"):
        tiles.dequantize(codes, fine, 128)
    with pytest.raises(FormatError, match="must be \\(8, 12\\); it is the grid of 128x128 tiles"):
        device.to_device(codes, coarse, 32)


def test_vllm_47716_56893_record_width_comes_from_one_table():
    """A V4 record was reshaped to 512 columns instead of 584; the same happened to V4.1's."""
    sizes = {"window": 528, "compressed": 288, "v4": 584}
    for kind, stride in sizes.items():
        record = Record(kind, 512)
        assert record.stride == stride == record.pack(torch.ones(2, 512)).shape[-1]
        with pytest.raises(FormatError, match=f"rows of {stride}"):
            record.unpack(torch.zeros(2, 512, dtype=torch.uint8))


def test_vllm_scale_bytes_copied_as_numbers_are_refused():
    """Byte 127 (scale 1) was copied into a float tensor and became the scale 127."""
    codes, scale = rows.quantize_fp8(torch.ones(2, 32))
    for numbers in (scale.float(), scale.to(torch.int32)):
        with pytest.raises(FormatError, match="without conversion"):
            rows.dequantize_fp8(codes, numbers)


def test_1cat_vllm_250_index_key_layout():
    """The index cache was read with another layout than it was written with."""
    keys = torch.linspace(-3, 3, 4 * 128).view(4, 128)
    query = torch.linspace(1, -1, 128)
    for kind, data in (("index", 64), ("index_fp8", 128)):
        record = Record(kind, 128)
        raw = record.pack(keys)
        if kind == "index":
            values = rows.dequantize_fp4(raw[:, :data], raw[:, data:])
        else:
            values = e4m3.decode(raw[:, :data]) * raw[:, data:].contiguous().view(torch.float32)
        assert torch.equal(record.unpack(raw) @ query, values @ query)
