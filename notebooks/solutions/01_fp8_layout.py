"""Solutions of the exercises of notebook 01. Try first; `tests/notebooks` runs them."""

import struct


def scale_byte(quotient: float) -> int:
    """Byte of the smallest power of two that is not below `quotient` (fp32, not negative)."""
    bits = struct.unpack("<I", struct.pack("<f", quotient))[0]
    exponent, mantissa = bits >> 23, bits & 0x7FFFFF
    if exponent == 255:  # infinity or NaN
        return 255
    # 0 has exponent 0, and so have subnormal numbers, which lie below 2^-126
    return min(max(exponent + (mantissa != 0), 1), 254)


def expert_weight(payload: bytes, scales: bytes, columns: int, row: int, column: int) -> float:
    """Number at `row`, `column` of an fp4 matrix stored row after row."""
    at = row * columns + column
    code = payload[at // 2] >> 4 * (column % 2) & 15
    value = (0, 0.5, 1, 1.5, 2, 3, 4, 6)[code & 7] * 2.0 ** (scales[at // 32] - 127)
    return -value if code & 8 else value


def half_code(code: int) -> int:
    """E4m3 code of half the value of `code`, ties to the even code."""
    size = code & 0x7F
    if size == 0x7F:  # NaN
        return code
    if size >= 0x10:  # one exponent less
        return code - 8
    half = size // 2
    if size % 2 and half % 2:  # the tie lies between an odd code and the even one above it
        half += 1
    return code & 0x80 | half
