"""e4m3: one sign, four exponent and three mantissa bits, in two readings of the same byte.

"ocp" is float8_e4m3fn: largest 448, NaN 0x7f and 0xff, no infinity; checkpoints hold it.
"ieee" keeps the top exponent for specials: largest 240, 0x78 infinity, 0x79..0x7f NaN; trn2 reads
this one. 242 of the 256 codes have the same value in both.
Source: OCP 8-bit Floating Point Specification v1.0; docs/reference/formats.md, "e4m3".
"""

from __future__ import annotations

from functools import cache
from typing import Literal

import torch
from torch import Tensor

from dslearn.errors import FormatError
from dslearn.formats import tables
from dslearn.formats.bits import as_bytes, lookup

Reading = Literal["ocp", "ieee"]
LIMITS: dict[str, int] = {"ocp": tables.E4M3_OCP_MAX, "ieee": tables.E4M3_IEEE_MAX}


@cache
def values(reading: Reading, device: torch.device) -> Tensor:
    """fp32 [256]: the value of every code in one reading."""
    check_reading(reading)
    table = torch.tensor(tables.E4M3_STEPS, dtype=torch.float32) * 2.0**tables.E4M3_STEP_LOG2
    magnitude = torch.arange(256) & 0x7F
    table[128:].copysign_(torch.tensor(-1.0))  # code 0x80 is -0
    table[magnitude == tables.E4M3_NAN] = torch.nan
    if reading == "ieee":
        table[magnitude > tables.E4M3_IEEE_LAST_FINITE] = torch.nan
        table[0x78], table[0xF8] = torch.inf, -torch.inf
    return table.to(device)


def check_reading(reading: str) -> None:
    """Raise FormatError unless `reading` is "ocp" or "ieee"."""
    if reading not in LIMITS:
        raise FormatError(f"reading={reading!r}: must be 'ocp' (448) or 'ieee' (240)")


def check_max(fp8_max: int, reading: str = "ocp") -> None:
    """Raise FormatError unless codes up to `fp8_max` exist and mean themselves in `reading`."""
    check_reading(reading)
    if fp8_max not in tables.E4M3_MAXIMA or fp8_max > LIMITS[reading]:
        allowed = ", ".join(str(m) for m in tables.E4M3_MAXIMA if m <= LIMITS[reading])
        raise FormatError(f"fp8_max={fp8_max!r} in the {reading!r} reading: must be {allowed}")


def decode(codes: Tensor, reading: Reading = "ocp") -> Tensor:
    """Codes (uint8 or float8_e4m3fn, any shape) to fp32 of the same shape.

    Raises:
        FormatError: an unknown reading, or codes of another dtype.
    """
    codes = as_bytes(codes, "e4m3 codes", torch.float8_e4m3fn)
    return lookup(values(reading, codes.device), codes)


def encode(
    x: Tensor, fp8_max: int = 448, reading: Reading = "ocp", saturate: bool = True
) -> Tensor:
    """Round to the nearest code, ties to the even code; the sign of zero is kept.

    Args:
        x: fp32 or bf16, any shape.
        fp8_max: largest magnitude to produce: 448 ("ocp" only), 240 or 224.
        reading: which meaning of the byte to write.
        saturate: True clamps finite numbers to +-fp8_max and turns NaN and infinity into NaN, so
            that an overflow upstream never becomes a plausible number. False follows the format
            itself: "ocp" gives NaN above 464, "ieee" gives infinity from 248 up; fp8_max must then
            be the reading's own largest value.

    Returns:
        uint8 of the same shape.

    Raises:
        FormatError: an fp8_max the reading does not have, or a wide or integer dtype.
    """
    check_max(fp8_max, reading)
    if x.dtype not in (torch.float32, torch.bfloat16):
        raise FormatError(f"cannot encode {x.dtype} as e4m3: pass float32 or bfloat16")
    x = x.float()
    # Clamp first: what a cast does above its range has changed between torch releases.
    codes = x.clamp(-fp8_max, fp8_max).to(torch.float8_e4m3fn).view(torch.uint8)
    if saturate:
        return torch.where(x.isfinite(), codes, codes | tables.E4M3_NAN)
    if fp8_max != LIMITS[reading]:
        raise FormatError(
            f"saturate=False with fp8_max={fp8_max}: overflow is defined at the reading's own "
            f"limit only; use fp8_max={LIMITS[reading]}"
        )
    over = x.abs() > 464 if reading == "ocp" else x.abs() >= 248
    special = tables.E4M3_NAN if reading == "ocp" else 0x78
    codes = torch.where(over, codes & 0x80 | special, codes)
    return torch.where(x.isnan(), codes | tables.E4M3_NAN, codes)
