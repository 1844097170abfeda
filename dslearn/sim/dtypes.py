"""The kernel language's dtypes: names, sizes, and the NumPy dtype that holds each.

A `DType` is a string, as in the real package, so `nl.float32 == "float32"`.
Source: docs/reference/nki.md, section "Dtypes".
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from dslearn.errors import KernelError


class DType(str):
    """Name of an element type; compares equal to the plain string."""

    __slots__ = ()

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return NUMPY[self].itemsize


# float8_e4m3 is the IEEE-style format of trn2 (largest 240, infinities), not e4m3fn (448).
NUMPY: dict[str, np.dtype[Any]] = {
    "bool_": np.dtype(np.uint8),
    "int8": np.dtype(np.int8),
    "int16": np.dtype(np.int16),
    "int32": np.dtype(np.int32),
    "uint8": np.dtype(np.uint8),
    "uint16": np.dtype(np.uint16),
    "uint32": np.dtype(np.uint32),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "tfloat32": np.dtype(np.float32),  # 10 mantissa bits kept in an fp32 word
    "float8_e4m3": np.dtype(ml_dtypes.float8_e4m3),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "float8_e8m0fnu": np.dtype(ml_dtypes.float8_e8m0fnu),
    # Packed quadruples of the trn3 matmul: only carried, never computed with.
    "float8_e5m2_x4": np.dtype(np.uint32),
    "float8_e4m3fn_x4": np.dtype(np.uint32),
    "float4_e2m1fn_x4": np.dtype(np.uint16),
}
DTYPES: dict[str, DType] = {name: DType(name) for name in NUMPY}
FLOATS = frozenset(n for n in NUMPY if n.startswith(("float", "bfloat", "tfloat")))
INTEGERS = frozenset(NUMPY) - FLOATS
PACKED = frozenset(n for n in NUMPY if n.endswith("_x4"))
# The words in which raw bits are compared and moved.
WORDS: dict[int, np.dtype[Any]] = {n: np.dtype(f"u{n}") for n in (1, 2, 4)}
# A mask has one byte per byte of data: the marks of one element, all of them set to 1.
ONES = {n: np.array(0x01010101 & ((1 << (8 * n)) - 1), kind) for n, kind in WORDS.items()}
_ALIASES = {"bool": "bool_"}


def dtype(value: Any) -> DType:
    """`value` (a DType, its name, a NumPy, ml_dtypes or torch dtype) as a DType.

    Raises:
        KernelError: a type that the chip does not have, such as float64 or int64.
    """
    if type(value) is DType:
        return value
    text = value if isinstance(value, str) else _name(value)
    found = DTYPES.get(_ALIASES.get(text, text))
    if found is None:
        raise KernelError(f"Unsupported dtype: {text}; the chip has {', '.join(NUMPY)}")
    return found


def _name(value: Any) -> str:
    if type(value).__module__ == "torch":
        return str(value).removeprefix("torch.")
    try:
        return np.dtype(value).name
    except TypeError:
        return repr(value)
