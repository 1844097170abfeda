"""ue8m0: a scale in one byte, 2^(byte - 127); 255 is NaN, and there is no zero.

Source: OCP Microscaling Formats (MX) v1.0, E8M0; docs/reference/formats.md, "Scales".
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from dslearn.errors import FormatError
from dslearn.formats import tables
from dslearn.formats.bits import MANTISSA, as_bytes, lookup


@cache
def values(device: torch.device) -> Tensor:
    """fp32 [256]: the value of every byte."""
    powers = [2.0 ** (byte - tables.E8M0_BIAS) for byte in range(255)]
    return torch.tensor([*powers, float("nan")], dtype=torch.float32, device=device)


def ceil_byte(x: Tensor) -> Tensor:
    """Byte of the smallest power of two >= x, from the exponent bits and (mantissa != 0).

    Args:
        x: fp32, any shape, >= 0.

    Returns:
        uint8 of the same shape. 0 and everything up to 2^-126 give 1, everything above 2^127 gives
        254, NaN and infinity give 255. A logarithm would be wrong just above powers of two.

    Raises:
        FormatError: x is not fp32, or holds a negative number.
    """
    if x.dtype is not torch.float32:
        raise FormatError(f"ceil_byte of {x.dtype}: scales are computed in float32; convert first")
    if bool((x < 0).any()):
        raise FormatError(
            f"ceil_byte of {x.min().item():g}: a scale is a magnitude, so it must be >= 0; "
            "take the absolute value before the maximum"
        )
    bits = x.view(torch.int32) & tables.FP32_MAGNITUDE
    byte = (bits + MANTISSA).bitwise_right_shift(23).clamp_(1, tables.E8M0_LARGEST)
    return torch.where(bits >= tables.FP32_INF, tables.E8M0_NAN, byte).to(torch.uint8)


def exact_byte(x: Tensor) -> Tensor:
    """Byte of a scale that is already a power of two.

    Args:
        x: fp32, any shape: powers of two from 2^-127 to 2^127, or NaN.

    Raises:
        FormatError: a value that ue8m0 cannot hold. Dropping its mantissa would scale the payload
            by up to 2; quantise the payload again with `ceil_byte` instead.
    """
    table = values(x.device)[:255]
    place = torch.searchsorted(table, x.contiguous()).clamp_(max=tables.E8M0_LARGEST)
    held = (table[place] == x) | x.isnan()
    if not bool(held.all()):
        wrong = x[~held].reshape(-1)[0].item()
        raise FormatError(
            f"scale {wrong:g} is not a power of two between 2^-127 and 2^127, so ue8m0 cannot hold "
            "it; quantise the payload again with a power-of-two scale"
        )
    return torch.where(x.isnan(), tables.E8M0_NAN, place).to(torch.uint8)


def decode(byte: Tensor) -> Tensor:
    """Scale bytes (uint8 or float8_e8m0fnu, any shape) to fp32: 2^(byte - 127), 255 to NaN.

    Raises:
        FormatError: the bytes come as another dtype, that is, as numbers.
    """
    byte = as_bytes(byte, "ue8m0 scale", torch.float8_e8m0fnu)
    return lookup(values(byte.device), byte)
