"""Checks of the exercises of notebook 01: bytes to numbers.

Each takes the learner's function, tries it on cases from small to nasty, and stops at the first
that is wrong with a sentence on why.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from dslearn.formats import rows, tables, ue8m0
from dslearn.lessons.checking import Case, run


def check_01_1(scale_byte: Callable[[float], int]) -> None:
    """`scale_byte(quotient)`: ue8m0 byte of the smallest power of two that is not below it."""
    above = 2.0**-9 * (1 + 2.0**-23)
    named: list[Case] = [
        ((1.0,), 127, "1 is 2^0, and the bias is 127"),
        ((2.0,), 128, "a power of two is its own ceiling"),
        ((3.0,), 129, "the next power of two above 3 is 4"),
        ((0.75,), 127, "the next power of two above 0.75 is 1"),
        ((above,), 119, "just above 2^-9 the next power is due; a rounded log2 says -9 here"),
        ((0.0,), 1, "there is no zero: the byte is at least 1"),
        ((1e-40,), 1, "a subnormal fp32 number lies below 2^-126, which is byte 1"),
        ((3e38,), 254, "2^128 does not exist: the byte is at most 254"),
        ((math.inf,), 255, "infinity and NaN have no scale but NaN, which is 255"),
        ((math.nan,), 255, "infinity and NaN have no scale but NaN, which is 255"),
    ]
    powers = torch.tensor([2.0**n for n in range(-120, 121, 7)])
    near = torch.cat([powers * (1 - 2.0**-24), powers, powers * (1 + 2.0**-23)])
    due = ue8m0.ceil_byte(near).tolist()
    why = "compare the mantissa bits with zero"
    rest = [((x,), byte, why) for x, byte in zip(near.tolist(), due, strict=True)]
    run("01.1", "scale_byte", scale_byte, [*named, *rest])


def check_01_2(expert_weight: Callable[[bytes, bytes, int, int, int], float]) -> None:
    """`expert_weight(payload, scales, columns, row, column)`: one number of an fp4 matrix."""
    columns = 64
    payload = (37 * torch.arange(3 * columns // 2) + 33).to(torch.uint8)  # all kinds of nibbles
    scales = torch.tensor([[127, 126], [130, 120], [124, 127]], dtype=torch.uint8)
    due = rows.dequantize_fp4(payload.view(3, columns // 2), scales)
    raw, powers = bytes(payload.tolist()), bytes(scales.flatten().tolist())

    def why(row: int, column: int) -> str:
        at = row * columns + column
        half = "high" if column % 2 else "low"
        return f"it is in the {half} nibble of payload byte {at // 2}, scale byte {at // 32}"

    cells = [(r, c) for r in range(3) for c in range(columns)]
    cases = (((raw, powers, columns, r, c), due[r, c].item(), why(r, c)) for r, c in cells)
    run("01.2", "expert_weight", expert_weight, cases)


def check_01_3(half_code: Callable[[int], int]) -> None:
    """`half_code(code)`: e4m3 code of half the value, ties to the even code, NaN kept."""

    def why(code: int) -> str:
        size = code & 0x7F
        if size == tables.E4M3_NAN:
            return "NaN has no half: it stays as it is"
        if size >= 0x10:
            return "one exponent less is 8 codes less"
        if size % 2:
            return f"{size} steps of 2^-9 halve to {size / 2}: between two codes, take the even one"
        return f"{size} steps of 2^-9 halve to {size // 2}; the sign bit stays"

    cases = (((code,), tables.E4M3_HALVED[code], why(code)) for code in range(256))
    run("01.3", "half_code", half_code, cases)
