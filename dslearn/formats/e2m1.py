"""e2m1 ("fp4"): codes 0..7 are 0, .5, 1, 1.5, 2, 3, 4, 6 and bit 3 is the sign; two per byte.

Legend: K values in a row, K/2 bytes. The low nibble is the even column, so codes 0,1,2,3 pack to
0x10, 0x32 (GGML files split a block in halves instead and must be converted on import).
Source: OCP MX v1.0, E2M1; docs/reference/formats.md, "e2m1".
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from dslearn.errors import FormatError
from dslearn.formats import tables
from dslearn.formats.bits import EXPONENT, MAGNITUDE, ONE, as_bytes, float_bits, lookup, mask

_SIX = float_bits(tables.E2M1_MAX)
_SEVEN = torch.tensor(7, dtype=torch.int32)


@cache
def values(device: torch.device) -> Tensor:
    """fp32 [16]: the value of every code; code 8 is -0."""
    magnitudes = torch.tensor(tables.E2M1_HALVES, dtype=torch.float32) / 2
    return torch.cat([magnitudes, -magnitudes]).to(device)


@cache
def pairs(device: torch.device) -> Tensor:
    """int64 [256]: both values of every packed byte, as the bit patterns of two fp32 numbers.

    One 8-byte gather per byte is four times faster than gathering rows of two floats.
    """
    byte = torch.arange(256)
    both = values(torch.device("cpu"))[torch.stack([byte & 15, byte >> 4], -1)]
    return both.view(torch.int64).squeeze(-1).to(device)


def nearest(x: Tensor) -> Tensor:
    """Codes 0..15 as int32 of x (fp32, any shape): ties to the even code, saturating, sign kept.

    For a magnitude with exponent e (at least 0) the step is m/2 with m = 2^e. Adding 2^22 * m
    makes the last bits of the sum the number of steps, k, and its exponent field 149 + e; the code
    is k + 2e. NaN has no code and gives 7 or 15.
    """
    bits = x.view(torch.int32)
    size = torch.bitwise_and(bits, mask(MAGNITUDE, bits)).clamp_(max=_SIX)
    power = torch.maximum(torch.bitwise_and(size, mask(EXPONENT, size)), ONE).view(torch.float32)
    total = torch.add(size.view(torch.float32), power, alpha=2.0**22).view(torch.int32)
    code = torch.bitwise_and(total, _SEVEN).add_(total.bitwise_right_shift(22)).sub_(2 * 149)
    return code.sub_(bits.bitwise_right_shift(31), alpha=8)


def encode(x: Tensor) -> Tensor:
    """Nearest code, ties to the even code, magnitudes above 6 to 6, the sign of zero kept.

    Args:
        x: fp32 or bf16, any shape, without NaN or infinity: fp4 has no code for them.

    Returns:
        uint8 of the same shape, 0..15.

    Raises:
        FormatError: NaN or infinity, or another dtype.
    """
    if x.dtype not in (torch.float32, torch.bfloat16):
        raise FormatError(f"cannot encode {x.dtype} as e2m1: pass float32 or bfloat16")
    if not bool(x.isfinite().all()):
        raise FormatError(
            "cannot encode NaN or infinity as e2m1, which has no code for them; "
            "quantise with a scale (dslearn.formats.rows), which carries NaN"
        )
    return nearest(x.float()).to(torch.uint8)


def decode(codes: Tensor) -> Tensor:
    """Codes 0..15 (uint8, any shape) to fp32 of the same shape.

    Raises:
        FormatError: a code above 15: packed bytes must go through `unpack` first.
    """
    codes = as_bytes(codes, "e2m1 codes")
    if bool((codes > 15).any()):
        raise FormatError(
            f"e2m1 code {int(codes.max())}: codes are 0..15; unpack packed bytes first"
        )
    return lookup(values(codes.device), codes)


def pack(codes: Tensor) -> Tensor:
    """Codes [..., K] to bytes [..., K/2]; the low nibble is the even column.

    Raises:
        FormatError: an odd K, or codes that are not uint8.
    """
    codes = as_bytes(codes, "e2m1 codes")
    if codes.shape[-1] % 2:
        raise FormatError(
            f"cannot pack {codes.shape[-1]} codes two to a byte: the row length must be even"
        )
    return codes[..., 0::2] | codes[..., 1::2] << 4


def unpack(packed: Tensor) -> Tensor:
    """Bytes [..., K/2] (uint8, or int8 as checkpoints store them) to codes [..., K]."""
    packed = as_bytes(packed, "packed e2m1", torch.int8)
    codes = torch.stack([packed & 15, packed >> 4], -1)
    return codes.view(packed.shape[:-1] + (2 * packed.shape[-1],))
