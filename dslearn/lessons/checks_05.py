"""Checks of the exercises of notebook 05: padding a step, a rewrite, a reduction.

As in notebook 01, each stops at the first case that is wrong with a sentence on why.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dslearn.lessons.checking import Case, run
from dslearn.regions.lint import lint

COMPILES = 100  # what a reduction of 200 operations may take: one by one, it is 200


def check_05_1(padded: Callable[[list[int], list[int], int], list[int]]) -> None:
    """`padded(slots, buckets, scratch)`: filled up to the smallest bucket that fits."""
    cases: list[Case] = [
        (([4, 0, 3], [1, 2, 4, 8], 16), [4, 0, 3, 16], "4 is the smallest bucket for 3 rows"),
        (([4, 0, 3, 7], [1, 2, 4, 8], 16), [4, 0, 3, 7], "a bucket that fits needs no padding"),
        (([5], [8, 3, 6], 9), [5, 9, 9], "buckets come in any order, not always powers of two"),
        (([1, 2], [1], 9), [], "no bucket holds 2 rows: the step has to wait or be cut"),
        (([], [2, 4], 9), [9, 9], "a step without rows takes the smallest bucket"),
    ]
    run("05.1", "padded", padded, cases)


def check_05_2(mean_above: Callable[[Tensor, Tensor], Tensor]) -> None:
    """`mean_above(x, limit)`: values, then what the lint has against it."""
    cases: list[tuple[list[float], float, float, str]] = [
        ([1, 5, 3], 2, 4, "the mean of 5 and 3"),
        ([1, 5, 3], 9, 0, "no number is above 9"),
        ([-torch.inf, 4], 0, 4, "minus infinity is not above 0; times 0 it is NaN"),
        ([1, torch.inf], 0, torch.inf, "infinity is above 0, and so the mean is infinite"),
        ([-1, -2, -9], -3, -1.5, "the mean is over the two that are above"),
        ([2, 2], 2, 0, "2 is not above 2"),
    ]
    for numbers, bound, due, why in cases:
        x, limit = torch.tensor(numbers, dtype=torch.float32), torch.tensor(float(bound))
        got = mean_above(x, limit)
        call = f"exercise 05.2: mean_above({numbers}, {bound})"
        assert got is not None, f"{call} gives None, must be {due}: fill the hole, `...`"
        assert float(got) == due, f"{call} gives {float(got)}, must be {due}: {why}"
    found = lint(mean_above, x, limit).findings
    told = "; ".join(f"{one.rule}: {one.message}" for one in found)
    assert not found, f"exercise 05.2: right, but the compiler would refuse it: {told}"
    print(f"exercise 05.2: all {len(cases)} cases are right, and one graph serves them")


class _Compiler:
    """Crashes where all culprits come together, and counts."""

    def __init__(self, culprits: tuple[int, ...]) -> None:
        self.culprits, self.compiles = set(culprits), 0

    def fails(self, operations: list[int]) -> bool:
        """One compile."""
        self.compiles += 1
        return self.culprits <= set(operations)


def check_05_3(smallest: Callable[[list[int], Callable[[list[int]], bool]], list[int]]) -> None:
    """`smallest(operations, fails)`: the culprits, in order, after few compiles."""
    cases = ((17,), (40, 41), (3, 196), (0, 99, 199), (10, 11, 12, 150))
    for culprits in cases:
        compiler = _Compiler(culprits)
        got = smallest(list(range(200)), compiler.fails)
        due = list(culprits)
        call = f"exercise 05.3: smallest(operations, fails), where {due} crash together, gives"
        assert got is not None, f"{call} None, must be {due}: fill the hole, `...`"
        missing, extra = sorted({*due} - {*got}), sorted({*got} - {*due})
        assert not missing, f"{call} {_short(got)}, which compiles: {missing} are gone"
        assert not extra, f"{call} {_short(got)}: without {extra[0]} it still crashes"
        assert got == due, f"{call} {got}: operations keep their order"
        assert compiler.compiles <= COMPILES, (
            f"{call} them after {compiler.compiles} compiles, at most {COMPILES}: leave out halves "
            "first, then quarters"
        )
    print(f"exercise 05.3: all {len(cases)} cases are right")


def _short(numbers: list[int]) -> str:
    return f"{numbers[:6]}..." if len(numbers) > 6 else str(numbers)
