"""Choosing element by element: select_reduce and range_select.

P partitions, N elements per partition.
Source: docs/reference/nki.md, section "Selection and patterns".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dslearn.sim.access import store32
from dslearn.sim.dtypes import FLOATS
from dslearn.sim.isa import accumulators, checks, operands, ops
from dslearn.sim.isa.enums import reduce_cmd as commands
from dslearn.sim.language.tokens import TOKENS
from dslearn.sim.numerics.alu import OPS
from dslearn.sim.numerics.patterns import FP32_MIN, range_predicate
from dslearn.sim.numerics.scan import reduce_free
from dslearn.sim.program import NkiInstruction, current
from dslearn.sim.rules import RuleError
from dslearn.sim.tensor import NkiTensor

MAXIMUM = TOKENS["maximum"]
_COMPARE = ("equal", "less", "less_equal", "greater", "greater_equal")
_COMMANDS = (commands.idle, commands.reset_reduce, commands.reduce)
_EXACT = 2**24  # integers below are all fp32 numbers


def select_reduce(  # noqa: PLR0913 - the vendor's signature
    dst: NkiTensor,
    predicate: NkiTensor,
    on_true: NkiTensor,
    on_false: Any,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Any = commands.idle,
    reduce_op: Any = MAXIMUM,
    reverse_pred: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """dst = on_true where predicate else on_false [P, N]; the row maximum into the accumulators.

    `predicate` is an 8- or 16-bit integer tile, `on_false` a number or a (P, 1) tile. After idle
    the accumulators are unknown. `reduce_res` (P, 1) reads them.

    Raises:
        RuleError: rules region, shape, two-psum, dtype, operand, uninitialised.
    """
    at = "select_reduce"
    dst, predicate = checks.tile(at, "dst", dst), checks.tile(at, "predicate", predicate)
    on_true = checks.tile(at, "on_true", on_true)
    checks.same_shape(at, dst, predicate=predicate, on_true=on_true)
    checks.not_both_psum(at, predicate, on_true, "predicate and on_true")
    checks.computable(at, dst=dst, on_true=on_true)
    if predicate.dtype not in ("int8", "uint8", "int16", "uint16"):
        raise RuleError(
            f"{at} predicate is {predicate.dtype}: an integer of 8 or 16 bits", rule="dtype"
        )
    if on_true.dtype in ("tfloat32", "int32", "uint32"):
        raise RuleError(f"{at} on_true is {on_true.dtype}: not allowed", rule="dtype")
    ops.one_of(reduce_op, f"{at} reduce_op", ("maximum",))
    cmd = accumulators.command(at, reduce_cmd, _COMMANDS)
    result = _result(at, reduce_res, cmd, dst.shape[0])
    chosen = operands.raw(predicate, f"{at} predicate") != 0
    if reverse_pred:
        chosen = ~chosen
    other = operands.vector(at, "on_false", on_false, dst.shape[0])
    values = _either(chosen, operands.rows(on_true, f"{at} on_true"), other)
    _finish(dst, values, on_true, cmd, result)
    inputs = (predicate, on_true, *operands.tiles(on_false))
    return current().emit(at, "vector", (dst, *operands.tiles(result)), inputs, name, cmd=cmd.name)


def range_select(  # noqa: PLR0913 - the vendor's signature
    dst: NkiTensor,
    on_true_tile: NkiTensor,
    comp_op0: Any,
    comp_op1: Any,
    bound0: NkiTensor,
    bound1: NkiTensor,
    reduce_cmd: Any = commands.reset_reduce,
    reduce_res: NkiTensor | None = None,
    reduce_op: Any = MAXIMUM,
    range_start: int = 0,
    on_false_value: Any = ...,
    name: str | None = None,
) -> NkiInstruction:
    """dst[p, i] = on_true_tile[p, i] where position range_start + i passes both bounds.

    `comp_op` compares position with bound, (P, 1) fp32 tiles. Elsewhere dst gets the smallest fp32
    number, -inf once rounded to fewer exponents or bits; read the row maximum into an fp32
    `reduce_res` to keep inf - inf out of a softmax. Row maxima go to the accumulators.

    Raises:
        RuleError: rules region, shape, dtype, operand (positions from 2^24 on), uninitialised.
    """
    at = "range_select"
    dst = checks.tile(at, "dst", dst)
    data = checks.tile(at, "on_true_tile", on_true_tile)
    checks.same_shape(at, dst, on_true_tile=data)
    checks.computable(at, dst=dst, on_true_tile=data)
    if data.dtype not in FLOATS:
        raise RuleError(f"{at} on_true_tile is {data.dtype}: must be a float", rule="dtype")
    first = OPS[ops.one_of(comp_op0, f"{at} comp_op0", _COMPARE)]
    second = OPS[ops.one_of(comp_op1, f"{at} comp_op1", _COMPARE)]
    ops.one_of(reduce_op, f"{at} reduce_op", ("maximum",))
    if on_false_value is not ... and np.float32(on_false_value) != np.float32(FP32_MIN):
        raise RuleError(
            f"{at} on_false_value={on_false_value!r}: the hardware fills with {FP32_MIN}", "operand"
        )
    start, n, p = operands.integer(at, "range_start", range_start), checks.free(data), dst.shape[0]
    if not 0 <= start <= _EXACT - n:
        raise RuleError(
            f"{at} range_start={start} with {n} elements: positions are fp32, below 2^24", "operand"
        )
    cmd = accumulators.command(at, reduce_cmd, _COMMANDS)
    result = _result(at, reduce_res, cmd, p)
    low, high = _bound(at, "bound0", bound0, p), _bound(at, "bound1", bound1, p)
    chosen = range_predicate(n, start, (first, low), (second, high))
    values = _either(chosen, operands.rows(data, f"{at} on_true_tile"), FP32_MIN)
    _finish(dst, values, data, cmd, result)
    outputs = (dst, *operands.tiles(result))
    return current().emit(at, "vector", outputs, (data, bound0, bound1), name, cmd=cmd.name)


def _bound(at: str, name: str, value: Any, p: int) -> np.ndarray:
    """A (P, 1) fp32 tile as an array.

    Raises:
        RuleError, ArgumentError: something else, a number for instance.
    """
    value = checks.tile(at, name, value)
    return np.asarray(checks.per_partition(at, name, value, p))


def _either(chosen: np.ndarray, yes: np.ndarray, no: Any) -> np.ndarray:
    """np.where in fp32: [P, N]."""
    return np.where(chosen, yes, np.asarray(no, np.float32))


def _result(at: str, value: Any, cmd: commands, p: int) -> NkiTensor | None:
    """`reduce_res`: None or a (P, 1) float tile, which needs a reduction to read.

    Raises:
        RuleError: an integer tile (rule dtype), or nothing is reduced (rule operand).
    """
    t = accumulators.result_tile(at, value, p)
    if t is not None and t.dtype not in FLOATS:
        raise RuleError(f"{at} reduce_res is {t.dtype}: must be a float", rule="dtype")
    if t is not None and cmd is commands.idle:
        raise RuleError(
            f"{at} reduce_res with reduce_cmd.idle: nothing is reduced, pass reset_reduce",
            rule="operand",
        )
    return t


def _finish(
    dst: NkiTensor, values: np.ndarray, lanes: NkiTensor, cmd: commands, result: NkiTensor | None
) -> None:
    """Reduce as `cmd` says in the lanes of tile `lanes`, write dst, read the accumulators out."""
    where = accumulators.lanes(lanes)
    if cmd is commands.idle:
        accumulators.forget("vector", where)
    else:
        start = accumulators.initial("vector", "maximum", cmd, where)
        part = reduce_free("maximum", values)
        accumulators.accumulate("vector", "maximum", start, part, where)
    store32(dst, values)
    if result is not None:
        accumulators.read_out("vector", result, where)
