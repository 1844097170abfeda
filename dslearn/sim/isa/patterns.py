"""GpSimd's affine patterns: iota and affine_select.

P partitions, N elements per partition; a pattern is [[step, count], ...], slowest first.
Source: docs/reference/nki.md, section "Selection and patterns".
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from dslearn.sim.access import store, store_as
from dslearn.sim.dtypes import NUMPY
from dslearn.sim.isa import checks, operands, ops
from dslearn.sim.language.tokens import TOKENS
from dslearn.sim.numerics import patterns
from dslearn.sim.numerics.alu import OPS
from dslearn.sim.numerics.casts import convert, narrow
from dslearn.sim.program import NkiInstruction, current
from dslearn.sim.rules import ArgumentError, RuleError
from dslearn.sim.tensor import NkiTensor

EQUAL = TOKENS["equal"]
_COMPARE = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
DIMS = 4


def _checked(at: str, pattern: Any, n: int) -> list[tuple[int, int]]:
    """`pattern` as pairs of integers that count to `n`.

    Raises:
        ArgumentError: not a list of pairs.
        RuleError: more than four dimensions (rule operand), or another count (rule shape).
    """
    if not isinstance(pattern, list | tuple) or any(
        not isinstance(pair, list | tuple) or len(pair) != 2 for pair in pattern
    ):
        raise ArgumentError(f"{at} pattern={pattern!r}: [[step, count], ...]", rule="arguments")
    pairs = [tuple(operands.integer(at, "pattern", v) for v in pair) for pair in pattern]
    if not 1 <= len(pairs) <= DIMS:
        raise RuleError(f"{at} pattern has {len(pairs)} dimensions: 1 to {DIMS}", rule="operand")
    if any(count < 1 for _, count in pairs) or prod(count for _, count in pairs) != n:
        raise RuleError(
            f"{at} pattern {pattern} must count the {n} elements per partition of dst", "shape"
        )
    return [(step, count) for step, count in pairs]


def iota(
    dst: NkiTensor,
    pattern: Sequence[Sequence[int]],
    offset: int = 0,
    channel_multiplier: int = 0,
    name: str | None = None,
) -> NkiInstruction:
    """dst[p, i] = offset + p * channel_multiplier + sum of index * step, SBUF [P, N].

    int32 arithmetic that wraps; then cast to the dtype of dst (32-bit integers keep the bits).

    Raises:
        RuleError: rules region, operand, shape, dtype.
    """
    at = "iota"
    dst = checks.tile(at, "dst", dst, checks.SBUF)
    checks.computable(at, dst=dst)
    pairs = _checked(at, pattern, checks.free(dst))
    values = patterns.iota(
        pairs,
        dst.shape[0],
        operands.integer(at, "offset", offset),
        operands.integer(at, "channel_multiplier", channel_multiplier),
    )
    if dst.dtype == "uint32":
        store(dst, values.view(np.uint32))
    else:
        store_as(dst, values)
    return current().emit(at, "gpsimd", (dst,), (), name)


def affine_select(  # noqa: PLR0913 - the vendor's signature
    dst: NkiTensor,
    pattern: Sequence[Sequence[int]],
    channel_multiplier: int,
    on_true_tile: NkiTensor,
    on_false_value: float,
    cmp_op: Any = EQUAL,
    offset: int = 0,
    name: str | None = None,
) -> NkiInstruction:
    """dst = on_true_tile where cmp_op(affine value, 0) else on_false_value, SBUF [P, N].

    The affine value is that of `iota`. Equal dtypes keep the bits of what is selected.

    Raises:
        RuleError: rules region, shape, dtype, operand, uninitialised.
    """
    at = "affine_select"
    dst = checks.tile(at, "dst", dst, checks.SBUF)
    data = checks.tile(at, "on_true_tile", on_true_tile, checks.SBUF)
    checks.same_shape(at, dst, on_true_tile=data)
    checks.computable(at, dst=dst, on_true_tile=data)
    compare = OPS[ops.one_of(cmp_op, f"{at} cmp_op", _COMPARE)]
    values = patterns.iota(
        _checked(at, pattern, checks.free(dst)),
        dst.shape[0],
        operands.integer(at, "offset", offset),
        operands.integer(at, "channel_multiplier", channel_multiplier),
    )
    chosen = patterns.affine_predicate(values, compare)
    kind, tf32 = NUMPY[dst.dtype], dst.dtype == "tfloat32"
    with np.errstate(over="ignore"):
        number = np.array(
            [operands.number(at, "on_false_value", on_false_value)], np.float64
        ).astype(np.float32)
    no = narrow(number, kind, tf32)
    yes = convert(operands.raw(data, f"{at} on_true_tile"), kind, tf32)
    store(dst, np.where(chosen, yes, no))
    return current().emit(at, "gpsimd", (dst,), (data,), name, op=compare.name)
