"""Block quantisers by exact definition in float64, with ml_dtypes for the rounding.

The scale of a block is the smallest power of two s with s * limit >= amax: an exact comparison,
because both sides fit float64. Nothing here is shared with the library.
"""

import ml_dtypes
import numpy as np

E4M3 = ml_dtypes.float8_e4m3fn
E2M1 = ml_dtypes.float4_e2m1fn


def split(x, block):
    return np.asarray(x, np.float64).reshape(*x.shape[:-1], -1, block)


def power(amax, limit):
    """Exponents k of the smallest 2^k with 2^k * limit >= amax, elementwise."""
    k = np.frexp(amax / limit)[1] - 2  # surely too small by one or two
    while (low := np.ldexp(float(limit), k) < amax).any():
        k = k + low
    return k


def quantize_fp8(x, block=32, fp8_max=448, floor=1e-4):
    rows = split(x, block)
    k = power(np.maximum(np.abs(rows).max(-1), np.float64(np.float32(floor))), fp8_max)
    scaled = np.clip(rows / np.ldexp(1.0, k)[..., None], -fp8_max, fp8_max)
    codes = scaled.astype(np.float32).astype(E4M3).view(np.uint8)
    return codes.reshape(x.shape), (k + 127).astype(np.uint8)


def quantize_fp4(x, block=32, scale="ue8m0", fp8_max=448):
    rows = split(x, block)
    amax = np.abs(rows).max(-1)
    if scale == "ue8m0":
        k = power(np.maximum(amax, 6 * 2.0**-126), 6)
        factor, byte = np.ldexp(1.0, k), (k + 127).astype(np.uint8)
    else:
        sixth = np.maximum(amax, 6 * 2.0**-9).astype(np.float32) / np.float32(6)
        held = np.minimum(sixth, np.float32(fp8_max)).astype(E4M3)
        factor, byte = held.astype(np.float64), held.view(np.uint8)
    ratio = (rows.astype(np.float32) / factor.astype(np.float32)[..., None]).clip(-6, 6)
    codes = ratio.astype(E2M1).view(np.uint8).reshape(x.shape) & 15
    return codes[..., 0::2] | codes[..., 1::2] << 4, byte
