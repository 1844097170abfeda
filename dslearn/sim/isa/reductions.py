"""Reductions: tensor_reduce, tensor_scalar_reduce, tensor_partition_reduce.

P partitions, N elements per partition. Arithmetic is fp32, rounded once at dst; the order of a sum
is NumPy's pairwise one (the hardware's is not documented).
Source: docs/reference/nki.md, section "Reductions".
"""

from __future__ import annotations

from math import prod
from typing import Any

from dslearn.sim.access import load, load32, store32
from dslearn.sim.isa import accumulators, chain, checks, operands, ops
from dslearn.sim.isa.enums import reduce_cmd as commands
from dslearn.sim.numerics.alu import as_bits
from dslearn.sim.numerics.scan import reduce_free, reduce_partitions
from dslearn.sim.program import NkiInstruction, current
from dslearn.sim.rules import RuleError
from dslearn.sim.tensor import NkiTensor


def tensor_reduce(  # noqa: PLR0913 - the vendor's signature
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    axis: int | tuple[int, ...],
    negate: bool = False,
    keepdims: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """dst = reduction of `data` over its last free axes; dst holds the elements of the others.

    `axis` counts dimensions of `data` as Python does (-1 is the last). `negate` flips the sign of
    an arithmetic result. `keepdims` only says which shape dst has; elements per partition decide.

    Raises:
        RuleError: rules region, shape, operand (axis, operator), dtype, uninitialised.
    """
    at = "tensor_reduce"
    dst, data = checks.tile(at, "dst", dst), checks.tile(at, "data", data)
    act = ops.alu(op, f"{at} op", arity=2)
    if act.reduces is None:
        raise RuleError(f"{at} op=nl.{act.name} is no reduction", rule="operand")
    axes = _trailing(axis, data.ndim)
    left = prod(data.shape[1 : data.ndim - axes])
    if dst.shape[0] != data.shape[0] or checks.free(dst) != left:
        raise RuleError(
            f"{at} dst {dst.shape}: reducing {axes} axes of {data.shape} leaves "
            f"({data.shape[0]}, {left})",
            rule="shape",
        )
    if act.kind == "bitvec":
        if negate:
            raise RuleError(f"{at} negate with nl.{act.name}: arithmetic only", rule="operand")
        operands.same_width(at, dst, data=data)
        bits = as_bits(load(data, f"{at} data"))
        operands.store_bits(dst, reduce_free(act.name, bits, axes))
    else:
        checks.computable(at, dst=dst, data=data)
        store32(dst, reduce_free(act.name, load32(data, f"{at} data"), axes, bool(negate)))
    return current().emit(at, "vector", (dst,), (data,), name, op=act.name, axes=axes)


def _trailing(axis: Any, ndim: int) -> int:
    """How many trailing axes `axis` names.

    Raises:
        RuleError: axis 0, a gap, or axes that do not end at the last (rule operand).
    """
    given = axis if isinstance(axis, tuple | list) else (axis,)
    if not given or not all(operands.whole_number(a) and -ndim <= a < ndim for a in given):
        raise RuleError(f"tensor_reduce axis={axis!r} of {ndim} dimensions", rule="operand")
    found = sorted({int(a) % ndim for a in given})
    if found != list(range(ndim - len(found), ndim)) or found[0] == 0:
        raise RuleError(
            f"tensor_reduce axis={axis!r} of {ndim} dimensions: the last free axes without a gap; "
            "for the partitions (axis 0), transpose or multiply by ones with nc_matmul",
            rule="operand",
        )
    return len(found)


def tensor_partition_reduce(
    dst: NkiTensor, op: Any, data: NkiTensor, name: str | None = None
) -> NkiInstruction:
    """dst (1, N) = reduction of `data` [P, N] over partitions, on GpSimd: slow.

    `op`: add, average, maximum, bitwise_or, bitwise_and. Sums are pairwise in fp32.

    Raises:
        RuleError: rules region (SBUF only), shape, operand, dtype, uninitialised.
    """
    at = "tensor_partition_reduce"
    dst = checks.tile(at, "dst", dst, checks.SBUF)
    data = checks.tile(at, "data", data, checks.SBUF)
    allowed = ("add", "average", "maximum", "bitwise_or", "bitwise_and")
    act = ops.one_of(op, f"{at} op", allowed)
    if dst.shape[0] != 1 or checks.free(dst) != checks.free(data):
        raise RuleError(
            f"{at} dst {dst.shape}: must be (1, {checks.free(data)}) for {data.shape}", "shape"
        )
    if act.startswith("bitwise"):
        operands.same_width(at, dst, data=data)
        operands.store_bits(dst, reduce_partitions(act, operands.bits(data, f"{at} data")))
    else:
        checks.computable(at, dst=dst, data=data)
        store32(dst, reduce_partitions(act, operands.rows(data, f"{at} data")))
    return current().emit(at, "gpsimd", (dst,), (data,), name, op=act)


def tensor_scalar_reduce(  # noqa: PLR0913 - the vendor's signature
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: NkiTensor | None = None,
    reverse0: bool = False,
    reduce_cmd: Any = commands.reset_reduce,
    reduce_init: Any = None,
    reduce_res_negate: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """dst = data op0 operand0 [P, N], and its reduction over N into the accumulators.

    The reduction sees the fp32 values before they are rounded to dst. `reduce_cmd`: reset_reduce
    starts anew, reduce goes on from the last instruction, load_reduce from `reduce_init` (number or
    (P, 1) fp32 tile). `reduce_res` (P, 1) reads the accumulators, negated if asked.

    Raises:
        RuleError: rules region, shape, dtype, engine, operand, uninitialised.
    """
    at = "tensor_scalar_reduce"
    dst, data = checks.tile(at, "dst", dst), checks.tile(at, "data", data)
    checks.same_shape(at, dst, data=data)
    checks.computable(at, dst=dst, data=data)
    chain.on_vector(at, ops.arithmetic(op0, f"{at} op0"))
    if reverse0:
        raise RuleError(f"{at} reverse0=True: not supported by the vendor yet", rule="operand")
    one = chain.step(at, op0, operand0, False, "operand0")
    act = ops.one_of(reduce_op, f"{at} reduce_op", ("add", "multiply", "maximum", "minimum"))
    allowed = (commands.reset_reduce, commands.reduce, commands.load_reduce)
    cmd = accumulators.command(at, reduce_cmd, allowed)
    init = initial_value(at, "reduce_init", cmd, reduce_init, data.shape[0])
    result = accumulators.result_tile(at, reduce_res, data.shape[0])
    where = accumulators.lanes(data)
    start = accumulators.initial("vector", act, cmd, where, init)
    values = chain.arithmetic(at, operands.rows(data, f"{at} data"), [one])
    accumulators.accumulate("vector", act, start, reduce_free(act, values), where)
    store32(dst, values)
    if result is not None:
        accumulators.read_out("vector", result, where, bool(reduce_res_negate))
    inputs = (data, *operands.tiles(operand0, reduce_init))
    outputs = (dst, *operands.tiles(result))
    return current().emit(
        at, "vector", outputs, inputs, name, op=one.op.name, reduce=act, cmd=cmd.name
    )


def initial_value(at: str, operand: str, cmd: commands, value: Any, p: int) -> Any:
    """The value that load_reduce loads: given with load_reduce and never else.

    Raises:
        RuleError: missing, or given with another command (rule operand).
    """
    if (cmd is commands.load_reduce) != (value is not None):
        raise RuleError(
            f"{at} {operand}={value!r} with reduce_cmd.{cmd.name}: given for load_reduce, and only "
            "then",
            rule="operand",
        )
    return None if value is None else checks.per_partition(at, operand, value, p)
