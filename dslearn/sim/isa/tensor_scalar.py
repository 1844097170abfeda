"""Tiles with scalars: tensor_scalar and scalar_tensor_tensor.

P partitions, N elements per partition. fp32 from the inputs to one rounding at dst, whatever the
dtypes; bit operators see raw integers. Source: docs/reference/nki.md, section "Elementwise".
"""

from __future__ import annotations

from typing import Any

from dslearn.sim.access import store, store32
from dslearn.sim.dtypes import NUMPY
from dslearn.sim.isa import chain, checks, operands, ops
from dslearn.sim.isa.chain import Step, on_vector, step
from dslearn.sim.isa.enums import engine as engines
from dslearn.sim.memory import MemoryRegion
from dslearn.sim.program import NkiInstruction, current
from dslearn.sim.rules import ArgumentError, RuleError
from dslearn.sim.tensor import NkiTensor

SCALAR_ENGINE = {("multiply", "add"), ("multiply",), ("add",)}  # what trn2's Scalar engine does


def tensor_scalar(  # noqa: PLR0913 - the vendor's signature
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    engine: Any = engines.unknown,
    name: str | None = None,
) -> NkiInstruction:
    """dst = (data op0 operand0) op1 operand1, data [P, N], operands numbers or (P, 1) fp32 tiles.

    fp32 between the two operators, one rounding at dst. Add and multiply by Python integers of
    int32 or uint32 SBUF tiles are address arithmetic: exact, wrapping. Bit operators take integers
    and see raw bits. `reverse` puts the operand on the left.

    Raises:
        RuleError: rules region, shape, dtype, engine, operand, uninitialised.
    """
    at = "tensor_scalar"
    dst, data = checks.tile(at, "dst", dst), checks.tile(at, "data", data)
    checks.same_shape(at, dst, data=data)
    steps = [step(at, op0, operand0, reverse0, "operand0")]
    if op1 is not None:
        steps.append(step(at, op1, operand1, reverse1, "operand1"))
    elif operand1 is not None:
        raise ArgumentError(f"{at} operand1={operand1!r} without op1", rule="arguments")
    names = tuple(s.op.name for s in steps)
    if len({s.op.kind for s in steps}) > 1:
        raise RuleError(
            f"{at} op0=nl.{names[0]}, op1=nl.{names[1]}: both bit operators or both arithmetic",
            rule="operand",
        )
    who = checks.choose(at, engine, _engines(steps, dst, data), f" ({', '.join(names)})")
    if steps[0].op.kind == "bitvec":
        operands.same_width(at, dst, data=data)
        operands.store_bits(dst, chain.bitwise(at, data, steps))
    elif who != "scalar" and _is_address(steps, dst, data):
        store(dst, chain.address(data, steps, NUMPY[dst.dtype]))
    else:
        checks.computable(at, dst=dst, data=data)
        store32(dst, chain.arithmetic(at, operands.rows(data, f"{at} data"), steps))
    inputs = (data, *operands.tiles(operand0, operand1))
    return current().emit(at, who, (dst,), inputs, name, op=names)


def _engines(steps: list[Step], *tiles: NkiTensor) -> tuple[str, ...]:
    """Who can do this chain, the default first.

    Raises:
        RuleError: nobody.
    """
    names = tuple(s.op.name for s in steps)
    psum = any(t.buffer is MemoryRegion.psum for t in tiles)
    able = []
    if all("vector" in s.op.engines for s in steps):
        able.append("vector")
    if names in SCALAR_ENGINE:
        able.append("scalar")
    if "rsqrt" in names and not psum and all("gpsimd" in s.op.engines for s in steps):
        able.append("gpsimd")
    if not able:
        where = ", which does not reach PSUM" if psum and "rsqrt" in names else ""
        raise RuleError(
            f"tensor_scalar {', '.join('nl.' + n for n in names)}: no engine does this; Vector has "
            "no power and no rsqrt, GpSimd has rsqrt, alone or with add and multiply"
            f"{where}; activation(op=nl.rsqrt) is the Scalar engine's",
            rule="engine",
        )
    return tuple(able)


def _is_address(steps: list[Step], dst: NkiTensor, data: NkiTensor) -> bool:
    """Whether this is the exact integer form."""
    return operands.all_int32(dst, data) and all(
        s.op.name in ("add", "multiply") and operands.whole_number(s.operand) for s in steps
    )


def scalar_tensor_tensor(  # noqa: PLR0913 - the vendor's signature
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    op1: Any,
    operand1: NkiTensor,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """dst = (data op0 operand0) op1 operand1; data, operand1, dst [P, N], operand0 one per lane.

    operand0 is a number or a (P, 1) tile. fp32 between the operators, one rounding at dst.

    Raises:
        RuleError: rules region, shape, two-psum, dtype, engine, operand, uninitialised.
    """
    at = "scalar_tensor_tensor"
    dst, data = checks.tile(at, "dst", dst), checks.tile(at, "data", data)
    operand1 = checks.tile(at, "operand1", operand1)
    checks.same_shape(at, dst, data=data, operand1=operand1)
    checks.not_both_psum(at, data, operand1, "data and operand1")
    checks.computable(at, dst=dst, data=data, operand1=operand1)
    second = on_vector(at, ops.arithmetic(op1, f"{at} op1", arity=2))
    first = step(at, op0, operand0, reverse0, "operand0")
    on_vector(at, ops.arithmetic(op0, f"{at} op0"))
    scalar = None
    if first.operand is not None:
        scalar = operands.vector(at, "operand0", operand0, data.shape[0])
    x = chain.apply(operands.rows(data, f"{at} data"), [first], [scalar])
    y = operands.rows(operand1, f"{at} operand1")
    store32(dst, second(y, x) if reverse1 else second(x, y))
    inputs = (data, *operands.tiles(operand0), operand1)
    names = (first.op.name, second.name)
    return current().emit(at, "vector", (dst,), inputs, name, op=names)
