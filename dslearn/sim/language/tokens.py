"""Elementwise functions of `nki.language`, which are also the names of instruction operators.

`nl.add(x, y)` computes on tiles; `op=nl.add` tells an instruction what to compute, and is
recognised by its attribute `op`. Tokens compare and hash by that name.
Source: docs/reference/nki.md, sections "Elementwise" and "Activation functions".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from dslearn.sim.binding import bound
from dslearn.sim.rules import ArgumentError


class Token:
    """One elementwise function: callable on tiles, and an operator name."""

    def __init__(self, op: str, meaning: str, call: Callable[..., Any]) -> None:
        self.op = self.__name__ = op
        self.__doc__ = meaning
        self.__signature__ = inspect.signature(call)
        self._call = bound(call, f"nl.{op}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function on tiles; see `nl.<name>.__doc__`."""
        return self._call(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Token) and other.op == self.op

    def __hash__(self) -> int:
        return hash(self.op)

    def __repr__(self) -> str:
        return f"nl.{self.op}"


def _unary(op: str, meaning: str) -> Token:
    def call(x: Any, dtype: Any = None) -> Any:
        from dslearn.sim.language.elementwise import unary  # late: instructions take tokens

        return unary(op, x, dtype)

    return Token(op, f"{meaning}, elementwise.", call)


def _binary(op: str, meaning: str) -> Token:
    def call(x: Any, y: Any, dtype: Any = None) -> Any:
        from dslearn.sim.language.elementwise import binary

        return binary(op, x, y, dtype)

    return Token(op, f"{meaning}, elementwise.", call)


def _name_only(op: str, meaning: str) -> Token:
    def call(*_: Any, **__: Any) -> Any:
        raise ArgumentError(f"nl.{op} is an operator name, it computes nothing", rule="arguments")

    return Token(op, meaning, call)


BINARY = {
    "add": "x + y", "subtract": "x - y", "multiply": "x * y", "divide": "not on this hardware",
    "maximum": "the larger of x and y", "minimum": "the smaller of x and y",
    "abs_max": "the larger by magnitude (trn3)", "abs_min": "the smaller by magnitude (trn3)",
    "power": "x to the y", "fmod": "not on this hardware", "mod": "not on this hardware",
    "equal": "1 where x == y", "not_equal": "1 where x != y", "less": "1 where x < y",
    "less_equal": "1 where x <= y", "greater": "1 where x > y", "greater_equal": "1 where x >= y",
    "bitwise_and": "bits of x and y", "bitwise_or": "bits of x or y",
    "bitwise_xor": "bits of x or y but not both", "left_shift": "x shifted up by y bits",
    "right_shift": "x shifted down by y bits, zeros coming in",
    "logical_and": "1 where both are not 0", "logical_or": "1 where one is not 0",
    "logical_xor": "1 where exactly one is not 0",
}  # fmt: skip
UNARY = {
    "abs": "|x|", "square": "x * x", "exp": "e to the x", "log": "the natural logarithm",
    "sqrt": "the square root", "rsqrt": "1 / sqrt(x)", "reciprocal": "1 / x", "tanh": "tanh(x)",
    "sigmoid": "1 / (1 + exp(-x))", "relu": "max(x, 0)", "gelu": "x * (normal CDF of x)",
    "gelu_apprx_sigmoid": "x * sigmoid(1.702 x)", "gelu_apprx_tanh": "gelu by a tanh formula",
    "gelu_dx": "the derivative of gelu",
    "gelu_apprx_sigmoid_dx": "the derivative of gelu_apprx_sigmoid", "silu": "x * sigmoid(x)",
    "silu_dx": "the derivative of silu", "softplus": "log(1 + exp(x))",
    "mish": "x * tanh(softplus(x))", "erf": "the error function",
    "erf_dx": "the derivative of erf", "copy": "x", "sin": "sin(x), |x| <= pi",
    "cos": "cos(x), |x| <= pi", "tan": "tan(x), |x| < pi / 2", "arctan": "arctan(x)",
    "ceil": "the next integer above", "floor": "the next integer below",
    "trunc": "the next integer towards 0", "negative": "-x", "sign": "-1, 0 or 1",
    "invert": "the bits of x, inverted", "logical_not": "1 where x is 0",
}  # fmt: skip
NAMES = {
    "average": "operator of tensor_partition_reduce",
    "prelu": "operator of activation",
    "bypass": "operator that passes its input through",
}
TOKENS: dict[str, Token] = {
    **{op: _binary(op, meaning) for op, meaning in BINARY.items()},
    **{op: _unary(op, meaning) for op, meaning in UNARY.items()},
    **{op: _name_only(op, meaning) for op, meaning in NAMES.items()},
}
