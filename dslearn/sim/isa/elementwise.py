"""Elementwise instructions on whole tiles: tensor_tensor, reciprocal.

P partitions, N elements per partition. Arithmetic is fp32 from the inputs to one rounding at dst,
whatever the dtypes; bit operators see raw integers; 32-bit integers are exact on GpSimd.
Source: docs/reference/nki.md, section "Elementwise".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dslearn.sim.access import store, store32
from dslearn.sim.dtypes import NUMPY
from dslearn.sim.isa import checks, operands, ops
from dslearn.sim.isa.enums import engine as engines
from dslearn.sim.memory import MemoryRegion
from dslearn.sim.numerics.alu import EXACT_INT, Op, exact_int
from dslearn.sim.program import NkiInstruction, current
from dslearn.sim.rules import RuleError
from dslearn.sim.tensor import NkiTensor


def tensor_tensor(  # noqa: PLR0913 - the vendor's signature
    dst: NkiTensor,
    data1: NkiTensor,
    data2: NkiTensor,
    op: Any,
    engine: Any = engines.unknown,
    name: str | None = None,
) -> NkiInstruction:
    """dst = data1 op data2, all [P, N]; nothing broadcasts.

    int32 and uint32 tiles in SBUF are computed exactly (GpSimd, wrapping) unless `engine` says
    vector; everything else rounds inputs to fp32.

    Raises:
        RuleError: rules region, shape, two-psum, dtype, engine, operand, uninitialised.
    """
    at = "tensor_tensor"
    dst, data1 = checks.tile(at, "dst", dst), checks.tile(at, "data1", data1)
    data2 = checks.tile(at, "data2", data2)
    checks.same_shape(at, dst, data1=data1, data2=data2)
    checks.not_both_psum(at, data1, data2, "data1 and data2")
    act = ops.alu(op, "tensor_tensor op", arity=2)
    exact = act.name in EXACT_INT and operands.all_int32(dst, data1, data2)
    who = checks.choose(at, engine, _engines(act, exact, dst, data1, data2), f" (nl.{act.name})")
    if act.kind == "bitvec":
        operands.same_width(at, dst, data1=data1, data2=data2)
        a, b = operands.bits(data1, f"{at} data1"), operands.bits(data2, f"{at} data2")
        operands.store_bits(dst, act(a, b))
    elif exact and who == "gpsimd":
        a, b = operands.raw(data1, f"{at} data1"), operands.raw(data2, f"{at} data2")
        store(dst, exact_int(act.name, a, b, NUMPY[dst.dtype]))
    else:
        checks.computable(at, dst=dst, data1=data1, data2=data2)
        a, b = operands.rows(data1, f"{at} data1"), operands.rows(data2, f"{at} data2")
        store32(dst, act(a, b))
    return current().emit(at, who, (dst,), (data1, data2), name, op=act.name)


def _engines(op: Op, exact: bool, *tiles: NkiTensor) -> tuple[str, ...]:
    """Who can do `op` on these tiles, the default first.

    Raises:
        RuleError: nobody.
    """
    if exact:
        return ("gpsimd", "vector")
    psum = any(t.buffer is MemoryRegion.psum for t in tiles)
    able = tuple(
        e for e in ("vector", "gpsimd") if e in op.engines and not (psum and e == "gpsimd")
    )
    if not able:
        raise RuleError(
            f"tensor_tensor op=nl.{op.name} runs on GpSimd, which does not reach PSUM: copy the "
            "tile to SBUF",
            rule="region",
        )
    return able


def reciprocal(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """dst = 1 / data, [P, N], fp32, rounded once; more precise than the activation function.

    Raises:
        RuleError: rules region, shape, dtype, uninitialised.
    """
    at = "reciprocal"
    dst, data = checks.tile(at, "dst", dst), checks.tile(at, "data", data)
    checks.same_shape(at, dst, data=data)
    checks.computable(at, dst=dst, data=data)
    with np.errstate(all="ignore"):
        store32(dst, np.reciprocal(operands.rows(data, f"{at} data")))
    return current().emit(at, "vector", (dst,), (data,), name)
