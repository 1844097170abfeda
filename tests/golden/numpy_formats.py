"""Number formats of the NumPy twin, written from the definitions of the formats alone.

Legend: K row length, B block length along the row, [..., K/B] one scale per block.
Every quantiser returns codes and scales; `fake_*` multiplies them back and gives float32.
A non-finite input is refused: a NaN would otherwise turn silently into code 0.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

E4M3 = ml_dtypes.float8_e4m3fn
E8M0 = ml_dtypes.float8_e8m0fnu
E2M1_MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
F32 = np.float32


def blocks(x: np.ndarray, block: int) -> np.ndarray:
    """[..., K] as [..., K/B, B] float32; refuses a K that B does not divide, and NaN or inf."""
    if x.shape[-1] % block:
        raise ValueError(f"row length {x.shape[-1]} is not a multiple of the block {block}")
    if not np.isfinite(x).all():
        raise ValueError("cannot quantise a row that holds NaN or inf")
    return np.asarray(x, F32).reshape(*x.shape[:-1], x.shape[-1] // block, block)


def ceil_power_of_two(y: np.ndarray) -> np.ndarray:
    """Exponent byte b with 2^(b-127) the smallest power of two >= y, from the bits of y > 0."""
    bits = np.ascontiguousarray(y, F32).view(np.uint32)
    exponent = (bits >> 23).astype(np.int64) + ((bits & 0x7FFFFF) != 0)
    return np.clip(exponent, 1, 254).astype(np.uint8)


def scale_value(byte: np.ndarray) -> np.ndarray:
    """ue8m0 byte to float32: 2^(b-127), 255 is NaN."""
    return np.where(byte == 255, np.nan, np.ldexp(1.0, byte.astype(np.int64) - 127)).astype(F32)


def quantize_fp8(
    x: np.ndarray, block: int = 32, fp8_max: int = 448
) -> tuple[np.ndarray, np.ndarray]:
    """[..., K] to e4m3 values [..., K] and ue8m0 bytes [..., K/B].

    s = 2^ceil(log2(max(amax, 1e-4) * fp32(1/fp8_max))), q = e4m3(clamp(x / s, +-fp8_max)).
    """
    rows = blocks(x, block)
    amax = np.maximum(np.abs(rows).max(-1), F32(1e-4))
    byte = ceil_power_of_two(amax * F32(1 / fp8_max))
    scaled = np.clip(rows / scale_value(byte)[..., None], -fp8_max, fp8_max)
    return scaled.astype(E4M3).reshape(x.shape), byte


def fake_fp8(x: np.ndarray, block: int = 32, fp8_max: int = 448) -> np.ndarray:
    """[..., K] float32 after a round trip through e4m3 with one power-of-two scale per block."""
    codes, byte = quantize_fp8(x, block, fp8_max)
    return (blocks(codes.astype(F32), block) * scale_value(byte)[..., None]).reshape(x.shape)


def e2m1_encode(v: np.ndarray) -> np.ndarray:
    """Nearest of 0 .5 1 1.5 2 3 4 6; a tie goes to the even code; bit 3 is the sign, -0 included.

    Magnitudes above 6 give code 7. Returns uint8 of the same shape.
    """
    magnitude = np.abs(v)
    code = np.zeros(v.shape, np.uint8)
    for below in range(7):
        middle = (E2M1_MAGNITUDES[below] + E2M1_MAGNITUDES[below + 1]) / F32(2)
        stays_on_tie = below % 2 == 0
        code += (magnitude > middle) if stays_on_tie else (magnitude >= middle)
    return code | (np.signbit(v).astype(np.uint8) << 3)


def e2m1_decode(codes: np.ndarray) -> np.ndarray:
    """Codes 0..15 to float32; code 8 is -0."""
    magnitude = E2M1_MAGNITUDES[codes & 7]
    return np.where(codes & 8, -magnitude, magnitude).astype(F32)


def unpack_nibbles(packed: np.ndarray) -> np.ndarray:
    """Bytes [..., K/2] to codes [..., K]; the low nibble is the even column."""
    raw = packed.view(np.uint8)
    return np.stack([raw & 15, raw >> 4], -1).reshape(*raw.shape[:-1], 2 * raw.shape[-1])


def quantize_fp4_ue8m0(x: np.ndarray, block: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """[..., K] to e2m1 codes [..., K] and ue8m0 bytes: scale 2^ceil(log2(amax / 6))."""
    rows = blocks(x, block)
    amax = np.maximum(np.abs(rows).max(-1), F32(6 * 2.0**-126))
    byte = ceil_power_of_two(amax * F32(1 / 6))
    return e2m1_encode(rows / scale_value(byte)[..., None]).reshape(x.shape), byte


def fake_fp4_ue8m0(x: np.ndarray, block: int = 32) -> np.ndarray:
    """[..., K] float32 after a round trip through e2m1 with ue8m0 scales (index queries, keys)."""
    codes, byte = quantize_fp4_ue8m0(x, block)
    return (blocks(e2m1_decode(codes), block) * scale_value(byte)[..., None]).reshape(x.shape)


def quantize_fp4_e4m3(
    x: np.ndarray, block: int = 16, fp8_max: int = 448
) -> tuple[np.ndarray, np.ndarray]:
    """[..., K] to e2m1 codes [..., K] and e4m3 scales [..., K/B].

    The scale is e4m3(max(amax, 6 * 2^-9) / 6), saturated at fp8_max; the floor is the smallest
    positive e4m3 value, so no scale is zero.
    """
    rows = blocks(x, block)
    amax = np.maximum(np.abs(rows).max(-1), F32(6 * 2.0**-9))
    scale = np.minimum(amax / F32(6), F32(fp8_max)).astype(E4M3)
    ratio = np.clip(rows / scale.astype(F32)[..., None], -6, 6)
    return e2m1_encode(ratio).reshape(x.shape), scale


def fake_fp4_e4m3(x: np.ndarray, block: int = 16, fp8_max: int = 448) -> np.ndarray:
    """[..., K] float32 after a round trip through e2m1 with e4m3 scales (compressed entries)."""
    codes, scale = quantize_fp4_e4m3(x, block, fp8_max)
    return (blocks(e2m1_decode(codes), block) * scale.astype(F32)[..., None]).reshape(x.shape)


def dequantize_tiles(codes: np.ndarray, scale: np.ndarray, tile: tuple[int, int]) -> np.ndarray:
    """e4m3 [out, in] with one scale per tile [ceil(out/r), ceil(in/c)] to float32 [out, in]."""
    grid = tuple(-(-n // t) for n, t in zip(codes.shape, tile, strict=True))
    if scale.shape != grid:
        raise ValueError(f"scale grid {scale.shape} for {codes.shape} in tiles {tile}: want {grid}")
    wide = np.repeat(np.repeat(scale.astype(F32), tile[0], 0), tile[1], 1)
    return codes.astype(F32) * wide[: codes.shape[0], : codes.shape[1]]


def dequantize_fp4(packed: np.ndarray, scale: np.ndarray, block: int = 32) -> np.ndarray:
    """Packed e2m1 [out, in/2] with scales [out, in/B] to float32 [out, in]."""
    values = e2m1_decode(unpack_nibbles(packed))
    if scale.shape != (values.shape[0], values.shape[1] // block):
        raise ValueError(f"fp4 scales {scale.shape} do not fit {values.shape} in blocks of {block}")
    return (blocks(values, block) * scale.astype(F32)[..., None]).reshape(values.shape)
