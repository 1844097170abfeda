"""Running computations along a row: scans, and batch-norm statistics.

P partitions, N elements per partition, free dimensions flattened. The state is fp32; what is
written to dst is rounded once. Source: docs/reference/nki.md, section "Reductions".
"""

from __future__ import annotations

from typing import Any

from dslearn.sim.access import store32
from dslearn.sim.isa import accumulators, chain, checks, operands, ops
from dslearn.sim.isa.enums import reduce_cmd as commands
from dslearn.sim.isa.reductions import initial_value
from dslearn.sim.numerics import scan
from dslearn.sim.numerics.alu import swapped
from dslearn.sim.program import NkiInstruction, current
from dslearn.sim.rules import RuleError
from dslearn.sim.tensor import NkiTensor

BN_STATS_LIMIT = 512


def tensor_tensor_scan(  # noqa: PLR0913 - the vendor's signature
    dst: NkiTensor,
    data0: NkiTensor,
    data1: NkiTensor,
    initial: Any,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """dst[i] = op1(op0(data0[i], dst[i-1]), data1[i]) along each row [P, N]; dst[-1] = initial.

    `initial` is a number or a (P, 1) tile. `reverse` exchanges the operands of an operator.

    Raises:
        RuleError: rules region, shape, two-psum, dtype, engine, operand, uninitialised.
    """
    at = "tensor_tensor_scan"
    dst, data0 = checks.tile(at, "dst", dst), checks.tile(at, "data0", data0)
    data1 = checks.tile(at, "data1", data1)
    checks.same_shape(at, dst, data0=data0, data1=data1)
    checks.not_both_psum(at, data0, data1, "data0 and data1")
    checks.computable(at, dst=dst, data0=data0, data1=data1)
    first = chain.on_vector(at, ops.arithmetic(op0, f"{at} op0", arity=2))
    second = chain.on_vector(at, ops.arithmetic(op1, f"{at} op1", arity=2))
    values = scan.tensor_tensor_scan(
        operands.rows(data0, f"{at} data0"),
        operands.rows(data1, f"{at} data1"),
        operands.vector(at, "initial", initial, data0.shape[0]),
        swapped(first.function) if reverse0 else first.function,
        swapped(second.function) if reverse1 else second.function,
    )
    store32(dst, values)
    inputs = (data0, data1, *operands.tiles(initial))
    return current().emit(at, "vector", (dst,), inputs, name, op=(first.name, second.name))


def tensor_scalar_cumulative(  # noqa: PLR0913 - the vendor's signature
    dst: NkiTensor,
    src: NkiTensor,
    op0: Any,
    op1: Any,
    imm0: Any,
    imm1: Any = None,
    reduce_cmd: Any = commands.reset_reduce,
    name: str | None = None,
) -> NkiInstruction:
    """dst[i] = op1(src[i] op0 imm0, dst[i-1]) along each row [P, N].

    The value before the first element is op1's identity (reset_reduce), what the Vector engine's
    accumulators hold (reduce) or `imm1` (load_reduce); the last value stays in the accumulators.

    Raises:
        RuleError: rules region, shape, dtype (no 32-bit integers), operand, uninitialised.
    """
    at = "tensor_scalar_cumulative"
    dst, src = checks.tile(at, "dst", dst), checks.tile(at, "src", src)
    checks.same_shape(at, dst, src=src)
    checks.computable(at, dst=dst, src=src)
    for what, t in (("dst", dst), ("src", src)):
        if t.dtype in ("int32", "uint32"):
            raise RuleError(f"{at} {what} is {t.dtype}: 32-bit integers not allowed", rule="dtype")
    chain.on_vector(at, ops.arithmetic(op0, f"{at} op0"))
    one = chain.step(at, op0, imm0, False, "imm0")
    act = ops.one_of(op1, f"{at} op1", ("add", "subtract", "multiply", "maximum", "minimum"))
    allowed = (commands.reset_reduce, commands.reduce, commands.load_reduce)
    cmd = accumulators.command(at, reduce_cmd, allowed)
    init = initial_value(at, "imm1", cmd, imm1, src.shape[0])
    where = accumulators.lanes(src)
    start = accumulators.initial("vector", act, cmd, where, init)
    stepped = chain.arithmetic(at, operands.rows(src, f"{at} src"), [one])
    values = scan.cumulative(stepped, act, start)
    accumulators.keep("vector", values[:, -1], where)
    store32(dst, values)
    inputs = (src, *operands.tiles(imm0, imm1))
    names = (one.op.name, act)
    return current().emit(at, "vector", (dst,), inputs, name, op=names, cmd=cmd.name)


def bn_stats(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """dst (P, 6) = count, mean, variance * count of the even, then of the odd elements of a row.

    Raises:
        RuleError: rules region, shape (more than 512 elements), dtype, uninitialised.
    """
    at = "bn_stats"
    dst, data = checks.tile(at, "dst", dst), checks.tile(at, "data", data)
    _outputs(at, dst, data, 6)
    if checks.free(data) > BN_STATS_LIMIT:
        raise RuleError(
            f"{at} data has {checks.free(data)} elements per partition, at most {BN_STATS_LIMIT}: "
            "call it per piece and combine with bn_aggr",
            rule="shape",
        )
    store32(dst, scan.bn_stats(operands.rows(data, f"{at} data")))
    return current().emit(at, "vector", (dst,), (data,), name)


def bn_aggr(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """dst (P, 2) = mean and variance from any number of (count, mean, variance * count) triples.

    Raises:
        RuleError: rules region, shape (not a multiple of three), dtype, uninitialised.
    """
    at = "bn_aggr"
    dst, data = checks.tile(at, "dst", dst), checks.tile(at, "data", data)
    _outputs(at, dst, data, 2)
    if checks.free(data) % 3:
        raise RuleError(
            f"{at} data has {checks.free(data)} elements per partition: triples of bn_stats",
            "shape",
        )
    store32(dst, scan.bn_aggr(operands.rows(data, f"{at} data")))
    return current().emit(at, "vector", (dst,), (data,), name)


def _outputs(at: str, dst: NkiTensor, data: NkiTensor, n: int) -> None:
    """Check that dst is (P, n).

    Raises:
        RuleError: it is not (rule shape), or a dtype nothing computes with.
    """
    checks.computable(at, dst=dst, data=data)
    if dst.shape[0] != data.shape[0] or checks.free(dst) != n:
        raise RuleError(f"{at} dst {dst.shape}: must be ({data.shape[0]}, {n})", rule="shape")
