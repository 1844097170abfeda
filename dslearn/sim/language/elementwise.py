"""How `nl.add(x, y)` and its kind compute: one instruction each, a few more for some.

Tiles have equal shapes: nothing broadcasts. The other operand may be a number or, as in
`tensor_scalar`, nothing else. Results lie in SBUF with the dtype of the input unless another is
asked for (of two different ones: `results.promote`).
Source: docs/reference/nki.md, section "High-level functions".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dslearn.sim.dtypes import DTYPES, INTEGERS
from dslearn.sim.isa.activation import activation
from dslearn.sim.isa.copies import memset, tensor_copy
from dslearn.sim.isa.elementwise import reciprocal, tensor_tensor
from dslearn.sim.isa.enums import engine
from dslearn.sim.isa.tensor_scalar import tensor_scalar
from dslearn.sim.language.results import FP32, like, new, promote, tile
from dslearn.sim.language.tokens import TOKENS
from dslearn.sim.rules import ArgumentError, NotSupportedError, RuleError
from dslearn.sim.tensor import NkiTensor

INSTEAD = {
    "divide": "multiply by nisa.reciprocal of the divisor",
    "fmod": "x - y * nl.trunc(x * reciprocal(y))",
    "mod": "x - y * nl.floor(x * reciprocal(y)), or nl.bitwise_and for powers of two",
}
TRN3 = {"abs_max": "maximum", "abs_min": "minimum"}


def binary(op: str, x: Any, y: Any, dtype: Any) -> NkiTensor:
    """`x op y` for tiles of one shape, or a tile and a number (on either side).

    Raises:
        NotSupportedError: the hardware does not have it.
        RuleError: shapes that differ, and what tensor_tensor and tensor_scalar refuse.
        ArgumentError: no tile at all.
    """
    if op in INSTEAD:
        raise NotSupportedError(f"nl.{op}: no engine divides; {INSTEAD[op]}", rule="engine")
    if op in TRN3:
        raise NotSupportedError(
            f"nl.{op} came with trn3: nl.{TRN3[op]} of nl.abs(x) and nl.abs(y)", rule="platform"
        )
    if not isinstance(x, NkiTensor) and not isinstance(y, NkiTensor):
        raise ArgumentError(f"nl.{op}({x!r}, {y!r}): at least one must be a tile", "arguments")
    if isinstance(x, NkiTensor) and isinstance(y, NkiTensor):
        return _two_tiles(op, tile(op, "x", x), tile(op, "y", y), dtype)
    swap = not isinstance(x, NkiTensor)
    data, number = (tile(op, "y", y), x) if swap else (tile(op, "x", x), y)
    dst = like(data, dtype)
    if op == "power":  # GpSimd has it for two tiles only
        filled = new(data.shape)
        memset(filled, number)
        tensor_tensor(dst, *((filled, data) if swap else (data, filled)), op=TOKENS[op])
        return dst
    tensor_scalar(dst, data, TOKENS[op], number, reverse0=swap)
    return dst


def _two_tiles(op: str, x: NkiTensor, y: NkiTensor, dtype: Any) -> NkiTensor:
    if x.shape != y.shape:
        raise RuleError(
            f"nl.{op} of {x.shape} and {y.shape}: tiles do not broadcast on hardware; use "
            ".broadcast(dim, size) on a free dimension, or nisa.tensor_scalar with a (P, 1) tile",
            rule="shape",
        )
    dst = new(x.shape, promote(x.dtype, y.dtype) if dtype is None else dtype)
    tensor_tensor(dst, x, y, TOKENS[op])
    return dst


def unary(op: str, x: Any, dtype: Any) -> NkiTensor:
    """`op(x)` for a tile.

    Raises:
        ArgumentError, RuleError: no tile, and what the instruction refuses.
    """
    x = tile(op, "x", x)
    own = _OWN.get(op)
    if own is not None:
        return own(x, dtype)
    dst = like(x, dtype)
    activation(dst, TOKENS[op], x)
    return dst


def _alu(op: str, operand: float | int = 0, **options: Any) -> Callable[..., NkiTensor]:
    def call(x: NkiTensor, dtype: Any) -> NkiTensor:
        dst = like(x, dtype)
        tensor_scalar(dst, x, TOKENS[op], operand, **options)
        return dst

    return call


def _reciprocal(x: NkiTensor, dtype: Any) -> NkiTensor:
    dst = like(x, dtype)
    reciprocal(dst, x)
    return dst


def _copy(x: NkiTensor, dtype: Any) -> NkiTensor:
    dst = new(x.shape, dtype or x.dtype, x.buffer)
    tensor_copy(dst, x)
    return dst


def _cos(x: NkiTensor, dtype: Any) -> NkiTensor:
    # sin(pi/2 - |x|) stays inside the sine's table for |x| up to 3 pi/2.
    magnitude, dst = unary("abs", x, FP32), like(x, dtype)
    activation(dst, TOKENS["sin"], magnitude, bias=math.pi / 2, scale=-1.0)
    return dst


def _tan(x: NkiTensor, dtype: Any) -> NkiTensor:
    inverse = unary("reciprocal", unary("cos", x, FP32), FP32)
    return binary("multiply", unary("sin", x, FP32), inverse, dtype or x.dtype)


def _rounded(compare: str, correct: str) -> Callable[..., NkiTensor]:
    """Through int32, which rounds to nearest, and one step back where that went too far."""

    def call(x: NkiTensor, dtype: Any) -> NkiTensor:
        if x.dtype in INTEGERS:
            return _copy(x, dtype)
        whole = unary("copy", unary("copy", x, DTYPES["int32"]), FP32)
        beyond = binary(compare, whole, x, FP32)
        return binary(correct, whole, beyond, dtype or x.dtype)

    return call


_floor, _ceil = _rounded("greater", "subtract"), _rounded("less", "add")


def _trunc(x: NkiTensor, dtype: Any) -> NkiTensor:
    below = _floor(unary("abs", x, FP32), FP32)
    return binary("multiply", below, unary("sign", x, FP32), dtype or x.dtype)


# Everything else is a function of the Scalar engine. floor, ceil and trunc are right below 2^31.
_OWN: dict[str, Callable[..., NkiTensor]] = {
    "invert": _alu("invert"),
    "logical_not": _alu("logical_not"),
    "negative": _alu("multiply", -1),
    "rsqrt": _alu("rsqrt", engine=engine.gpsimd),
    "reciprocal": _reciprocal,
    "copy": _copy,
    "cos": _cos,
    "tan": _tan,
    "floor": _floor,
    "ceil": _ceil,
    "trunc": _trunc,
}
