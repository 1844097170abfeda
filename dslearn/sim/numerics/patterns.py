"""Patterns that GpSimd and Vector make from indices: iota and the predicates of the selects.

Legend: P partitions, F elements per partition. Source: docs/reference/nki.md,
"Selection and patterns".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dslearn.sim.numerics.casts import Array

# range_select fills with this; it is -inf once rounded to bf16, fp16 or an IEEE fp8.
FP32_MIN = float(np.finfo(np.float32).min)


def iota(
    pattern: Sequence[Sequence[int]], partitions: int, offset: int = 0, channel_multiplier: int = 0
) -> Array:
    """offset + p * channel_multiplier + sum of index * step: int32 [P, F], wrapped to 32 bits.

    Args:
        pattern: [step, count] per dimension, slowest first; F is the product of the counts.
        partitions: P.
        offset: added to every value.
        channel_multiplier: added once per partition.
    """
    row = np.zeros(1, dtype=np.int64)
    for step, count in pattern:
        row = np.add.outer(row, step * np.arange(count, dtype=np.int64)).ravel()
    column = offset + channel_multiplier * np.arange(partitions, dtype=np.int64)
    return np.add.outer(column, row).astype(np.int32)


def affine_predicate(values: Array, compare: Callable[..., Any]) -> Array:
    """Where an affine value compares true with 0: bool, shape of `values`.

    Args:
        values: int32 from `iota`; compared as integers.
        compare: a comparison of `alu.OPS`.
    """
    return np.asarray(compare(values, 0), dtype=bool)


def range_predicate(
    length: int,
    range_start: int,
    first: tuple[Callable[..., Any], Array],
    second: tuple[Callable[..., Any], Array],
) -> Array:
    """Where the position compares true with both bounds: bool [P, F].

    Positions and bounds are fp32, so positions from 2^24 on are no longer all distinct.

    Args:
        length: F.
        range_start: position of the first element.
        first: comparison and bound fp32 [P, 1]; the position is its left operand.
        second: the same.
    """
    places = (range_start + np.arange(length)).astype(np.float32)
    below, above = (compare(places, bound) for compare, bound in (first, second))
    return np.logical_and(below, above)
