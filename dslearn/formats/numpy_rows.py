"""`rows.fake_fp8`, `rows.fake_fp4` and window records on NumPy arrays, equal to the bit.

For the few hundred values of a decode step, where a torch call costs more than its work. The limits
of `rows` hold: |x| < 2^100.
Legend: K row length, B block length, D values of an entry, S bytes of its record.
Source: docs/reference/formats.md, "Blocks" and "Cache records".
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dslearn.formats import e4m3, tables
from dslearn.formats.bits import count_blocks, float_bits

Floats = NDArray[np.float32]
Patterns = NDArray[np.int32]  # of fp32 numbers

_MAGNITUDE = np.int32(tables.FP32_MAGNITUDE)
_EXPONENT = np.int32(tables.FP32_INF)
_MANTISSA = np.int32(tables.FP32_MANTISSA)
_FP8_FLOOR = np.int32(float_bits(tables.FP8_AMAX_FLOOR))
_FP4_EXPONENT = dict(tables.FP4_AMAX_FLOOR_EXPONENTS)["ue8m0"]
_FP4_FLOOR = np.int32(float_bits(tables.E2M1_MAX * 2.0**_FP4_EXPONENT))
# As in `rows`: 1.5 * 2^23 times the step of a number with exponent 0, and the least exponent.
_ROUND_E4M3, _ROUND_E2M1 = np.float32(1.5 * 2.0**20), np.float32(1.5 * 2.0**22)
_E4M3_LEAST_NORMAL = 2.0**-6


def fake_fp8(x: Floats, block: int = 32, fp8_max: int = 448) -> Floats:
    """What e4m3 codes with one power-of-two scale per block would give back.

    Args:
        x: fp32 [..., K], C-contiguous.
        block: values per scale; it must divide K.
        fp8_max: 448, 240 or 224.

    Raises:
        FormatError: a K that `block` does not divide.
    """
    blocks = _split(x, block)
    least = _power(blocks, _FP8_FLOOR, 1 / fp8_max * _E4M3_LEAST_NORMAL)
    return _round(blocks, least, _ROUND_E4M3).reshape(x.shape)


def fake_fp4(x: Floats, block: int = 32) -> Floats:
    """What e2m1 codes with one power-of-two scale per block would give back.

    Args and errors as `fake_fp8`.
    """
    blocks = _split(x, block)
    least = _power(blocks, _FP4_FLOOR, 1 / tables.E2M1_MAX)
    return _round(blocks, least, _ROUND_E2M1).reshape(x.shape)


def window_record(x: Floats, fp8_max: int = 448) -> tuple[NDArray[np.uint8], Floats]:
    """An entry x [D] as its "window" record [S], and the values [D] that a reader of it decodes.

    Raises:
        FormatError: a D that 32 does not divide.
    """
    blocks = _split(x, 32)
    power = _power(blocks, _FP8_FLOOR, 1 / fp8_max)
    scale = power.view(np.float32)
    limit = np.float32(fp8_max)
    scaled = torch.from_numpy(np.minimum(np.maximum(blocks / scale, -limit), limit))
    codes = scaled.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    values = e4m3.values("ocp", scaled.device).numpy()[codes] * scale
    record = np.concatenate((codes, power >> 23), axis=None, dtype=np.uint8, casting="unsafe")
    return record, values.reshape(-1)


def _split(x: Floats, block: int) -> Floats:
    """x [..., K] -> blocks [n, B]."""
    count_blocks(x.shape, block)
    return x.reshape(-1, block)


def _power(blocks: Floats, floor: np.int32, factor: float) -> Patterns:
    """Pattern of the smallest power of two >= factor times each block's maximum, [n, 1]."""
    amax = np.maximum.reduce(blocks.view(np.int32) & _MAGNITUDE, axis=1, keepdims=True)
    amax = np.minimum(np.maximum(amax, floor), _EXPONENT)
    power: Patterns = (amax.view(np.float32) * np.float32(factor)).view(np.int32)
    return (power + _MANTISSA) & _EXPONENT


def _round(blocks: Floats, least: Patterns, magic: np.float32) -> Floats:
    """Round to the step at each number's exponent, which counts as `least` or more."""
    exponent = np.maximum(blocks.view(np.int32) & _EXPONENT, least)
    shift = exponent.view(np.float32) * magic
    return (blocks + shift) - shift
