"""The ALU operators that kernels name as `op=nl.add`: what they compute and which engine has them.

Arithmetic operators take and give fp32; comparisons and logical operators give 1.0 or 0.0. Bitvec
operators take and give unsigned integers of the data's width, untouched by any cast. Division,
remainder and modulo are not here: the hardware has none. Source: docs/reference/nki.md,
"Elementwise".

NaN follows NumPy: it passes through maximum and minimum, compares unequal to everything and is
true for the logical operators. What the hardware does with it is not documented.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dslearn.sim.numerics.casts import Array

Function = Callable[..., Array]

VECTOR = frozenset({"vector"})
GPSIMD = frozenset({"gpsimd"})


@dataclass(frozen=True)
class Op:
    """One operator.

    Attributes:
        name: as in `nl.<name>`.
        kind: "arith" (fp32) or "bitvec" (raw unsigned integers).
        arity: number of operands, 1 or 2.
        function: NumPy function of the operands.
        engines: the trn2 engines that have it, of vector, scalar and gpsimd.
        reduces: the NumPy ufunc that reduces with it, None where that is not allowed.
        trn3_only: no trn2 engine has it as an ALU operator.
    """

    name: str
    kind: str
    arity: int
    function: Function
    engines: frozenset[str] = VECTOR
    reduces: np.ufunc | None = None
    trn3_only: bool = False

    def __call__(self, *operands: Any) -> Array:
        """The operator on arrays and Python numbers; numbers take the type of the arrays."""
        with np.errstate(all="ignore"):
            return self.function(*operands)


def _truth(compare: Callable[..., Any]) -> Function:
    """A NumPy predicate as the hardware gives it: fp32, 1.0 or 0.0."""

    def truth(*operands: Any, out: Array | None = None) -> Array:
        if out is None:
            return np.asarray(compare(*operands), dtype=np.float32)
        out[...] = compare(*operands)  # half the time of out= with a cast
        return out

    return truth


def _rsqrt(x: Array) -> Array:
    return np.asarray(1.0 / np.sqrt(np.asarray(x, dtype=np.float64)), dtype=np.float32)


def _arith(name: str, function: Function, **kwargs: Any) -> Op:
    return Op(name, "arith", kwargs.pop("arity", 2), function, **kwargs)


def _bitvec(name: str, function: np.ufunc, arity: int = 2, reduces: bool = False) -> Op:
    return Op(name, "bitvec", arity, function, reduces=function if reduces else None)


_ALL_ENGINES = frozenset({"vector", "gpsimd", "scalar"})
_TABLE = (
    _arith("add", np.add, engines=_ALL_ENGINES, reduces=np.add),
    _arith("subtract", np.subtract, reduces=np.subtract),
    _arith("multiply", np.multiply, engines=_ALL_ENGINES, reduces=np.multiply),
    _arith("maximum", np.maximum, reduces=np.maximum),
    _arith("minimum", np.minimum, reduces=np.minimum),
    _arith("equal", _truth(np.equal)),
    _arith("not_equal", _truth(np.not_equal)),
    _arith("greater", _truth(np.greater)),
    _arith("greater_equal", _truth(np.greater_equal)),
    _arith("less", _truth(np.less)),
    _arith("less_equal", _truth(np.less_equal)),
    _arith("logical_and", _truth(np.logical_and), reduces=np.logical_and),
    _arith("logical_or", _truth(np.logical_or), reduces=np.logical_or),
    _arith("logical_xor", _truth(np.logical_xor), reduces=np.logical_xor),
    _arith("logical_not", _truth(np.logical_not), arity=1),
    _arith("power", np.power, engines=GPSIMD),
    _arith("abs", np.abs, arity=1, engines=frozenset({"vector", "scalar"})),
    _arith("reciprocal", np.reciprocal, arity=1, engines=frozenset({"vector", "scalar"})),
    _arith("rsqrt", _rsqrt, arity=1, engines=frozenset({"gpsimd", "scalar"})),
    _arith("square", np.square, arity=1, trn3_only=True),
    _arith("relu", lambda x: np.maximum(x, np.float32(0)), arity=1, trn3_only=True),
    _arith("abs_max", lambda a, b: np.maximum(np.abs(a), np.abs(b)), trn3_only=True),
    _arith("abs_min", lambda a, b: np.minimum(np.abs(a), np.abs(b)), trn3_only=True),
    _bitvec("invert", np.invert, arity=1),
    _bitvec("bitwise_and", np.bitwise_and, reduces=True),
    _bitvec("bitwise_or", np.bitwise_or, reduces=True),
    _bitvec("bitwise_xor", np.bitwise_xor, reduces=True),
    # NumPy defines a shift by the width or more as 0, and unsigned right shifts as logical.
    _bitvec("left_shift", np.left_shift),
    _bitvec("right_shift", np.right_shift),
)
OPS: dict[str, Op] = {op.name: op for op in _TABLE}


def swapped(function: Function) -> Function:
    """The same function with its two operands exchanged, for `reverse0` and `reverse1`."""
    return lambda a, b, out=None: function(b, a, out=out)


_EXACT: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "less_equal": np.less_equal,
}
EXACT_INT = frozenset(_EXACT)


def exact_int(name: str, a: Any, b: Any, dtype: np.dtype[Any]) -> Array:
    """GpSimd's exact 32-bit integer arithmetic: int32 and uint32 operands, wrapped to `dtype`.

    Computed in 64 bits, so operands of both signs may be mixed; only the low 32 bits are kept.

    Args:
        name: one of EXACT_INT.
        a: int32 or uint32 array, or a Python integer.
        b: the same.
        dtype: int32 or uint32.
    Source: docs/reference/nki.md, "Elementwise".
    """
    with np.errstate(over="ignore"):
        wide = _EXACT[name](np.asarray(a).astype(np.int64), np.asarray(b).astype(np.int64))
    return np.asarray(wide).astype(dtype)


def as_bits(a: Array) -> Array:
    """An array's raw bits as unsigned integers of the same width, in the same shape (a view)."""
    return a.view(f"u{a.dtype.itemsize}")


def scalar_bits(value: int, dtype: np.dtype[Any]) -> Any:
    """A Python integer as an operand of a bitvec operator on `dtype`: its low bits, unsigned."""
    width = 8 * dtype.itemsize
    return np.dtype(f"u{dtype.itemsize}").type(value & ((1 << width) - 1))
