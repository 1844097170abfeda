"""Rows cut in blocks that share a scale: activations, cache entries, expert weights, Engram rows.

Legend: K row length, B block length, one scale per block: [..., K/B].
fp8: s = 2^ceil(log2(max(amax, 1e-4) / fp8_max)), code = e4m3(clamp(x / s, +-fp8_max)).
fp4: s = 2^ceil(log2(max(amax, 6*2^-126) / 6)) or s = e4m3(max(amax, 6*2^-9) / 6).
A block that holds NaN or infinity is NaN from end to end: scale NaN, every value NaN.
Source: docs/reference/formats.md, "Blocks".
"""

from __future__ import annotations

from functools import cache
from typing import Literal

import torch
from torch import Tensor

from dslearn.errors import FormatError
from dslearn.formats import e2m1, e4m3, tables, ue8m0
from dslearn.formats.bits import (
    EXPONENT,
    ONE,
    amax_bits,
    as_bytes,
    ceil_power,
    float_bits,
    lookup,
    mask,
    split,
)

ScaleFormat = Literal["ue8m0", "e4m3"]
_FP4_FLOORS = {
    name: float_bits(tables.E2M1_MAX * 2.0**log2) for name, log2 in tables.FP4_AMAX_FLOOR_EXPONENTS
}
_SIXTH = 1 / tables.E2M1_MAX
_FP8_FLOOR = float_bits(tables.FP8_AMAX_FLOOR)

# Adding and subtracting 1.5 * 2^23 times a step rounds to multiples of that step, ties to even.
# The step of a number with exponent e is 2^(e-3) in e4m3 and 2^(e-1) in e2m1.
_ROUND_E4M3 = 1.5 * 2.0**20
_ROUND_E2M1 = 1.5 * 2.0**22
_E4M3_LEAST_NORMAL = 2.0**-6


@cache
def _floor_bits(floor: float, fp8_max: int) -> int:
    """Bits of the amax floor, checked once for each pair of arguments."""
    e4m3.check_max(fp8_max)
    least = fp8_max * 2.0**-126
    if not least <= floor < float("inf"):
        raise FormatError(
            f"floor={floor!r}: a block maximum must be at least {least:.6g} ({fp8_max} * 2^-126), "
            "so that no scale is zero or subnormal"
        )
    return float_bits(floor)


def quantize_fp8(
    x: Tensor, block: int = 32, fp8_max: int = 448, floor: float = tables.FP8_AMAX_FLOOR
) -> tuple[Tensor, Tensor]:
    """e4m3 codes with one ue8m0 scale per block.

    Args:
        x: fp32 or bf16 [..., K].
        block: values per scale: 32 in V4.1, 128 in V4; it must divide K.
        fp8_max: 448 (checkpoint), 240 (IEEE e4m3) or 224 (device convention).
        floor: smallest block maximum to assume; an all-zero block gets the scale of the floor.

    Returns:
        codes uint8 [..., K] and scale bytes uint8 [..., K/block].

    Raises:
        FormatError: K is no multiple of block, another dtype, fp8_max or floor out of range.
    """
    blocks = split(x, block)
    amax = amax_bits(blocks, _floor_bits(floor, fp8_max)).view(torch.float32)
    power = ceil_power(amax.mul_(1 / fp8_max))
    scaled = blocks.div(power.view(torch.float32)).clamp_(-fp8_max, fp8_max)
    codes = scaled.to(torch.float8_e4m3fn).view(torch.uint8).reshape(x.shape)
    return codes, power.squeeze(-1).bitwise_right_shift(23).to(torch.uint8)


def dequantize_fp8(codes: Tensor, scale: Tensor) -> Tensor:
    """codes [..., K] (uint8 or float8_e4m3fn) times scale [..., K/B] (bytes) -> fp32 [..., K].

    B follows from the two shapes.

    Raises:
        FormatError: shapes that do not fit, or scales given as numbers instead of bytes.
    """
    scales = ue8m0.decode(scale)
    return _scaled(e4m3.decode(codes), scales)


def fake_fp8(x: Tensor, block: int = 32, fp8_max: int = 448) -> Tensor:
    """The values that quantise + dequantise would give, without making codes: five times faster.

    Equal to `dequantize_fp8(*quantize_fp8(x, block, fp8_max))` for |x| < 2^100, except that a zero
    comes back without its sign; larger finite values come back as NaN. No gradient flows.

    Args:
        x: fp32 or bf16 [..., K].
        block: values per scale; it must divide K.
        fp8_max: 448, 240 or 224.

    Returns:
        [..., K] in the dtype of x, which holds every result exactly.

    Raises:
        FormatError: as `quantize_fp8`.
    """
    blocks = split(x.detach(), block)
    e4m3.check_max(fp8_max)
    amax = amax_bits(blocks, _FP8_FLOOR).view(torch.float32)
    least = ceil_power(amax.mul_(1 / fp8_max * _E4M3_LEAST_NORMAL))
    return _round(blocks, least, _ROUND_E4M3).reshape(x.shape).to(x.dtype)


def quantize_fp4(
    x: Tensor, block: int = 32, scale: ScaleFormat = "ue8m0", fp8_max: int = 448
) -> tuple[Tensor, Tensor]:
    """Packed e2m1 codes with one scale per block.

    Args:
        x: fp32 or bf16 [..., K], K even.
        block: values per scale: 32 with "ue8m0" (experts, index keys), 16 with "e4m3" (compressed
            entries).
        scale: format of the scale byte.
        fp8_max: where an e4m3 scale saturates; unused with "ue8m0".

    Returns:
        bytes uint8 [..., K/2] (low nibble = even column) and scale bytes uint8 [..., K/block].

    Raises:
        FormatError: K odd or no multiple of block, another dtype, an unknown scale format.
    """
    blocks = split(x, block)
    if x.shape[-1] % 2:
        raise FormatError(f"row of {x.shape[-1]} values cannot be packed in pairs: it must be even")
    factor, scales = _fp4_scale(blocks, scale, fp8_max)
    codes = e2m1.nearest(blocks / factor).reshape(x.shape[:-1] + (x.shape[-1] // 2, 2))
    packed = torch.add(codes[..., 0], codes[..., 1], alpha=16).to(torch.uint8)
    return packed, scales.squeeze(-1)


def dequantize_fp4(
    packed: Tensor, scale: Tensor, block: int = 32, scale_format: ScaleFormat = "ue8m0"
) -> Tensor:
    """packed [..., K/2] (uint8 or int8) times scale bytes [..., K/block] -> fp32 [..., K].

    Raises:
        FormatError: shapes that do not fit, an unknown format, scales given as numbers.
    """
    packed = as_bytes(packed, "packed e2m1", torch.int8)
    wide = packed.shape[:-1] + (2 * packed.shape[-1],)
    if wide[-1] != block * scale.shape[-1]:
        raise FormatError(
            f"{wide[-1]} e2m1 values with {scale.shape[-1]} scales: one scale for {block} values "
            f"needs {wide[-1] / block:g} of them"
        )
    _check_scale_format(scale_format)
    scales = ue8m0.decode(scale) if scale_format == "ue8m0" else e4m3.decode(scale)
    values = lookup(e2m1.pairs(packed.device), packed).view(torch.float32)
    return _scaled(values.view(wide), scales)


def fake_fp4(
    x: Tensor, block: int = 32, scale: ScaleFormat = "ue8m0", fp8_max: int = 448
) -> Tensor:
    """The values that `quantize_fp4` and `dequantize_fp4` would give, without making codes.

    Same limits as `fake_fp8`: |x| < 2^100, zeros come back without their sign, no gradient.

    Returns:
        [..., K] in the dtype of x, which holds every result exactly.

    Raises:
        FormatError: as `quantize_fp4`.
    """
    blocks = split(x.detach(), block)
    if scale == "ue8m0":
        amax = amax_bits(blocks, _FP4_FLOORS["ue8m0"]).view(torch.float32)
        rounded = _round(blocks, ceil_power(amax.mul_(_SIXTH)), _ROUND_E2M1)
    else:
        factor, _ = _fp4_scale(blocks, scale, fp8_max)
        ratio = blocks.div(factor).clamp_(-tables.E2M1_MAX, tables.E2M1_MAX)
        rounded = _round(ratio, ONE, _ROUND_E2M1).mul_(factor)
    return rounded.reshape(x.shape).to(x.dtype)


def _fp4_scale(blocks: Tensor, scale: str, fp8_max: int) -> tuple[Tensor, Tensor]:
    """fp32 scales and their bytes, both [..., K/B, 1]."""
    _check_scale_format(scale)
    amax = amax_bits(blocks, _FP4_FLOORS[scale]).view(torch.float32)
    if scale == "ue8m0":
        power = ceil_power(amax.mul_(_SIXTH))
        return power.view(torch.float32), power.bitwise_right_shift(23).to(torch.uint8)
    e4m3.check_max(fp8_max)
    sixth = amax / tables.E2M1_MAX
    # amax * 0 is zero, or NaN where amax is infinite, which the clamp alone would make 448.
    held = sixth.clamp_(max=fp8_max).add_(amax.mul_(0)).to(torch.float8_e4m3fn)
    return held.float(), held.view(torch.uint8)


def _round(blocks: Tensor, least: Tensor, magic: float) -> Tensor:
    """Round to the format's step at each number's exponent, which counts as `least` or more."""
    exponent = torch.bitwise_and(blocks.view(torch.int32), mask(EXPONENT, blocks))
    power = torch.maximum(exponent, least).view(torch.float32)
    return torch.add(blocks, power, alpha=magic).sub_(power, alpha=magic)


def _scaled(values: Tensor, scales: Tensor) -> Tensor:
    """values [..., K] times scales [..., n], each for K/n neighbours."""
    count = scales.shape[-1]
    if values.shape[:-1] != scales.shape[:-1] or (values.shape[-1] % count if count else count):
        raise FormatError(
            f"codes {tuple(values.shape)} with scales {tuple(scales.shape)}: rows must agree and "
            "the number of scales must divide the row length"
        )
    blocks = values.view(scales.shape + (values.shape[-1] // max(count, 1),))
    return blocks.mul_(scales.unsqueeze(-1)).view(values.shape)


def _check_scale_format(scale: str) -> None:
    """Raise FormatError unless the fp4 scale format exists."""
    if scale not in _FP4_FLOORS:
        raise FormatError(f"fp4 scale format {scale!r}: must be 'ue8m0' or 'e4m3'")
