"""A compiled function against eager on data drawn by seed, at warm-up.

A compiler may be wrong without a word, for some rows or some values only. So the comparison is of
every element, on several draws, and two of every four draws hold special values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from dslearn.errors import UsageError
from dslearn.regions.workshop.case import describe
from dslearn.regions.workshop.rerun import FLOATS, Difference, Spec, Tolerance, compare, draw

# Special values by seed: none, none, those that are finite, all of them.
_SPECIAL = (0, 0, FLOATS.index(float("inf")), len(FLOATS))


@dataclass(frozen=True)
class Mismatch:
    """The first difference, and the seed of the inputs that show it."""

    difference: Difference
    seed: int

    def __str__(self) -> str:
        return f"{self.difference}, on inputs of seed {self.seed}"


def differential(
    compiled: Callable[..., Any],
    eager: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    seeds: Sequence[int] = range(4),
    ranges: Mapping[int, tuple[float, float]] | None = None,
    tolerance: Tolerance = None,
) -> Mismatch | None:
    """The first difference between two functions on drawn inputs, of results or of mutated inputs.

    Args:
        compiled: the function in question.
        eager: what it should compute.
        inputs: an example of its arguments, which may hold tensors at any depth. Drawn ones have
            their layout, memory that they share, and values between their least and greatest.
        seeds: one draw each; seed % 4 is 2 where zeros, -0 and tiny numbers are sprinkled in, 3
            where infinities and NaN are too.
        ranges: number of a tensor -> lowest and highest value, instead of the example's.
        tolerance: relative and absolute difference that floats may have; None takes that of
            torch.testing for the dtype. Integers, bytes and 8-bit floats are compared bit for bit.

    Raises:
        UsageError: `ranges` names no tensor, or eager fails on what was drawn.
    """
    leaves, form = tree_flatten(tuple(inputs))
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    specs = _within(describe([leaves[i] for i in at]), ranges or {})

    def arguments(tensors: list[Tensor]) -> Any:
        filled = list(leaves)
        for i, tensor in zip(at, tensors, strict=True):
            filled[i] = tensor
        return tree_unflatten(filled, form)

    for seed in seeds:
        mine, others = (draw(specs, seed, _SPECIAL[seed % 4]) for _ in range(2))
        with torch.no_grad():
            try:
                expected = tree_leaves(eager(*arguments(mine)))
            except Exception as error:
                said = f"{type(error).__name__}: {error}".splitlines()[0]
                raise UsageError(f"eager fails on inputs of seed {seed}: {said}") from error
            got = tree_leaves(compiled(*arguments(others)))
        found = compare(expected, got, (mine, others), tolerance)
        if found:
            return Mismatch(found, seed)
    return None


def _within(specs: Sequence[Spec], ranges: Mapping[int, tuple[float, float]]) -> tuple[Spec, ...]:
    for i in ranges:
        if i not in range(len(specs)):
            raise UsageError(f"ranges has {i}: the tensors are numbered 0 to {len(specs) - 1}")
    stated = {specs[i].storage: bounds for i, bounds in ranges.items()}
    return tuple(
        replace(spec, low=stated[spec.storage][0], high=stated[spec.storage][1])
        if spec.storage in stated
        else spec
        for spec in specs
    )
