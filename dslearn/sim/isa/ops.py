"""Operator arguments: `op=nl.add` as the ALU operator, `op=nl.exp` as the activation function.

An operator is a token, an object whose attribute `op` is its name, or a plain function of that
name such as `nl.max`. Source: docs/reference/nki.md, section "Operators".
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

from dslearn.sim.isa.checks import trn3
from dslearn.sim.numerics.activations import FUNCTIONS
from dslearn.sim.numerics.alu import OPS, Op
from dslearn.sim.rules import ArgumentError, RuleError

# Kernels also reduce with nl.max and nl.min, as the documentation of tensor_scalar_reduce writes.
_ALIASES = {"max": "maximum", "min": "minimum"}
_INSTEAD = {
    "divide": "multiply by nisa.reciprocal",
    "mod": "for powers of two, bitwise_and on integers",
    "fmod": "for powers of two, bitwise_and on integers",
    "square": "tensor_tensor with multiply, or activation(op=nl.square)",
    "relu": "maximum with 0.0",
    "abs_max": "nl.abs, then maximum",
    "abs_min": "nl.abs, then minimum",
}


def name_of(value: Any, where: str) -> str:
    """Name of the operator or function that `value` stands for.

    Raises:
        ArgumentError: a string, a NumPy function, or anything else that is no token.
    """
    name = getattr(value, "op", None)
    if not isinstance(name, str):
        name = value.__name__ if isinstance(value, FunctionType) else None
    if name is None:
        raise ArgumentError(
            f"{where}={value!r}: operators are the nl functions themselves, such as nl.add",
            rule="arguments",
        )
    return _ALIASES.get(name, name)


def alu(value: Any, where: str, arity: int = 0) -> Op:
    """`value` as an ALU operator; with `arity`, of so many operands.

    Raises:
        ArgumentError: not an operator token.
        RuleError: no ALU has it (rule engine), or another number of operands (rule operand).
        NotSupportedError: it came with trn3.
    """
    name = name_of(value, where)
    op = OPS.get(name)
    if op is None:
        hint = _INSTEAD.get(name, "activation has the transcendental functions")
        raise RuleError(f"{where}: unsupported operator '{name}'; {hint}", rule="engine")
    if op.trn3_only:
        raise trn3(f"{where}=nl.{name}", _INSTEAD[name])
    if arity and op.arity != arity:
        raise RuleError(
            f"{where}=nl.{name} takes {op.arity} operand(s), {arity} wanted", rule="operand"
        )
    return op


def arithmetic(value: Any, where: str, arity: int = 0) -> Op:
    """`value` as an arithmetic operator.

    Raises:
        ArgumentError, RuleError, NotSupportedError: see `alu`; a bit operator breaks rule operand.
    """
    op = alu(value, where, arity)
    if op.kind != "arith":
        raise RuleError(f"{where}=nl.{op.name}: only arithmetic operators", rule="operand")
    return op


def one_of(value: Any, where: str, names: tuple[str, ...]) -> str:
    """Name of an operator that must be one of `names`.

    Raises:
        ArgumentError: not a token.
        RuleError: another operator (rule operand).
    """
    name = name_of(value, where)
    if name not in names:
        raise RuleError(
            f"{where}=nl.{name}: must be nl.{' or nl.'.join(names)}",
            rule="operand",
        )
    return name


def function(value: Any, where: str) -> str:
    """Name of an activation function of the Scalar engine.

    Raises:
        ArgumentError: not a token.
        RuleError: the Scalar engine has no such function (rule engine).
    """
    name = name_of(value, where)
    if name not in FUNCTIONS:
        raise RuleError(
            f"{where}=nl.{name}: the Scalar engine has {', '.join(sorted(FUNCTIONS))}",
            rule="engine",
        )
    return name
