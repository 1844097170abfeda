"""Solutions of the exercises of notebook 05. Try first; `tests/notebooks` runs them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def padded(slots: list[int], buckets: list[int], scratch: int) -> list[int]:
    """The slots of a step's rows, filled with `scratch` up to the smallest bucket that fits."""
    fitting = [size for size in buckets if size >= len(slots)]
    return slots + [scratch] * (min(fitting) - len(slots)) if fitting else []


def mean_above(x: Tensor, limit: Tensor) -> Tensor:
    """The mean of the numbers of x [N] that are above `limit`, 0 if there are none."""
    above = x > limit
    return torch.where(above, x, 0).sum() / above.sum().clamp(min=1)


def smallest(operations: list[int], fails: Callable[[list[int]], bool]) -> list[int]:
    """A part of `operations` that fails, and does not without any one of them."""
    size = len(operations)
    while size > 1:
        size = (size + 1) // 2
        start = 0
        while start < len(operations):
            rest = operations[:start] + operations[start + size :]
            if fails(rest):
                operations = rest
            else:
                start += size
    return operations
