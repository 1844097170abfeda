"""Exercises of notebook 05: the mistakes that readers make are caught, with a hint."""

from __future__ import annotations

import pytest
import torch

from dslearn.lessons import checks_05
from tests.support.solutions import NOTEBOOKS, load

SOLUTION_05 = NOTEBOOKS / "solutions" / "05_regions.py"


def padded_with_slot_0(slots: list, buckets: list, scratch: int) -> list:
    return load(SOLUTION_05).padded(slots, buckets, 0)


def power_of_two(slots: list, buckets: list, scratch: int) -> list:
    size = 1
    while size < len(slots):
        size *= 2
    return slots + [scratch] * (size - len(slots))


def first_that_fits(slots: list, buckets: list, scratch: int) -> list:
    size = next((size for size in buckets if size >= len(slots)), 0)
    return slots + [scratch] * (size - len(slots)) if size else []


def too_many(slots: list, buckets: list, scratch: int) -> list:
    size = min((size for size in buckets if size >= len(slots)), default=max(buckets))
    return slots[:size] + [scratch] * (size - len(slots))


def selected(x, limit):
    above = x[x > limit]
    return above.sum() / max(len(above), 1)


def multiplied(x, limit):
    above = (x > limit).float()
    return (x * above).sum() / above.sum().clamp(min=1)


def of_all(x, limit):
    return torch.where(x > limit, x, 0).mean()


def empty_is_nan(x, limit):
    above = x > limit
    return torch.where(above, x, 0).sum() / above.sum()


def nan_to_num(x, limit):
    above = x > limit
    return (torch.where(above, x, 0).sum() / above.sum()).nan_to_num(0)


def asks(x, limit):
    return torch.where(x > limit.item(), x, 0).sum() / (x > limit).sum().clamp(min=1)


def one_by_one(operations, fails):
    for one in list(operations):
        rest = [other for other in operations if other != one]
        operations = rest if fails(rest) else operations
    return operations


def half_by_half(operations, fails):
    """Keeps a half that fails: two culprits in different halves end it."""
    while len(operations) > 1:
        middle = len(operations) // 2
        parts = [part for part in (operations[:middle], operations[middle:]) if fails(part)]
        if not parts:
            return operations
        operations = parts[0]
    return operations


def passing(operations, fails):
    """Takes what compiles for what crashes."""
    return load(SOLUTION_05).smallest(operations, lambda part: not fails(part))


def unordered(operations, fails):
    return load(SOLUTION_05).smallest(operations, fails)[::-1]


@pytest.mark.parametrize(
    ("check", "wrong", "words"),
    [
        (checks_05.check_05_1, padded_with_slot_0, "[4, 0, 3, 0], must be [4, 0, 3, 16]"),
        (checks_05.check_05_1, power_of_two, "not always powers of two"),
        (checks_05.check_05_1, first_that_fits, "buckets come in any order"),
        (checks_05.check_05_1, too_many, "no bucket holds 2 rows"),
        (checks_05.check_05_2, selected, "refuse it: data-dependent"),
        (checks_05.check_05_2, asks, "refuse it: data-dependent"),
        (checks_05.check_05_2, multiplied, "times 0 it is NaN"),
        (checks_05.check_05_2, of_all, "must be 4: the mean of 5 and 3"),
        (checks_05.check_05_2, empty_is_nan, "gives nan, must be 0: no number is above 9"),
        (checks_05.check_05_2, nan_to_num, "must be inf: infinity is above 0"),
        (checks_05.check_05_3, one_by_one, "after 200 compiles, at most 100"),
        (checks_05.check_05_3, half_by_half, "without 42 it still crashes"),
        (checks_05.check_05_3, passing, "which compiles: [17] are gone"),
        (checks_05.check_05_3, unordered, "operations keep their order"),
    ],
)
def test_mistakes_with_buckets_rewrites_and_reductions_are_caught(check, wrong, words):
    with pytest.raises(AssertionError) as caught:
        check(wrong)
    assert words in str(caught.value)
