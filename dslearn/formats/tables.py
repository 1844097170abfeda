"""The constants of every format, as plain integers and tuples; nothing is imported here.

Values that are not whole numbers are given in the format's smallest step, so that each table can
be checked by hand. Source of every row: docs/reference/formats.md.
"""

from __future__ import annotations

# --- single numbers -------------------------------------------------------------------------

E4M3_OCP_MAX = 448  # float8_e4m3fn: what checkpoints hold
E4M3_IEEE_MAX = 240  # e4m3 with infinities: what trn2 reads in the same byte
E4M3_DEVICE_MAX = 224  # half of 448: keeps scales a pure power-of-two shift away from 448
E4M3_MAXIMA = (E4M3_OCP_MAX, E4M3_IEEE_MAX, E4M3_DEVICE_MAX)
E4M3_NAN = 0x7F  # NaN in both readings
E4M3_IEEE_LAST_FINITE = 0x77  # 240; 0x78 is infinity and 0x79..0x7e are NaN in the IEEE reading
E4M3_STEP_LOG2 = -9  # the smallest positive value is 2^-9

E8M0_BIAS = 127
E8M0_NAN = 255
E8M0_LARGEST = 254  # 2^127

E2M1_HALVES = (0, 1, 2, 3, 4, 6, 8, 12)  # magnitudes of codes 0..7 in halves; bit 3 is the sign
E2M1_MAX = 6

# fp32 bit patterns
FP32_INF = 0x7F800000
FP32_MAGNITUDE = 0x7FFFFFFF
FP32_MANTISSA = 0x007FFFFF


def _steps(code: int) -> int:
    """Value of a non-NaN OCP e4m3 code in units of 2^-9."""
    exponent, mantissa = code >> 3 & 15, code & 7
    steps = mantissa if exponent == 0 else (8 + mantissa) << (exponent - 1)
    return -steps if code & 0x80 else steps


def _half(code: int) -> int:
    """Code of half the value, ties to the even code; NaN stays as it is."""
    sign, magnitude = code & 0x80, code & 0x7F
    if magnitude == E4M3_NAN:
        return code
    if magnitude >= 0x10:  # one exponent lower
        return code - 8
    return sign | (magnitude + (magnitude >> 1 & 1)) >> 1


# Entries 0x7f and 0xff (NaN) hold 0 here; decoders put the NaN in.
E4M3_STEPS = tuple(0 if code & 0x7F == E4M3_NAN else _steps(code) for code in range(256))
E4M3_HALVED = tuple(_half(code) for code in range(256))
E4M3_HALVED_INEXACT = tuple(c for c in range(256) if c & 0x7F < 0x10 and c & 1)

# --- blocks, tiles, records -----------------------------------------------------------------

ACTIVATION_BLOCKS = (32, 128)  # V4.1, V4
WEIGHT_TILES = (32, 128)  # V4.1, V4
EXPERT_BLOCK = 32  # e2m1 weights per ue8m0 scale
FP8_AMAX_FLOOR = 1e-4  # smallest block maximum of the fp8 quantisers
FP4_AMAX_FLOOR_EXPONENTS = (("ue8m0", -126), ("e4m3", -9))  # floor = 6 * 2^exponent

# Cache records: kind, bits per code, values per scale (0: one scale for the row), bytes per scale,
# values kept as bf16 at the end of the row, alignment of the scale part in bytes.
RECORDS = (
    ("window", 8, 32, 1, 0, 1),
    ("compressed", 4, 16, 1, 0, 1),
    ("index", 4, 32, 1, 0, 1),
    ("index_fp8", 8, 0, 4, 0, 1),
    ("v4", 8, 64, 1, 64, 8),
)

# Cache pages: kind, layout, alignment of a page in bytes (docs/reference/formats.md, "Pages").
PAGES = (
    ("window", "split", 512),
    ("window", "interleaved", 512),
    ("compressed", "split", 256),
    ("compressed", "interleaved", 512),
    ("index", "split", 1),
    ("index_fp8", "split", 1),
    ("v4", "split", 576),
)
