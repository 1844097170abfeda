"""Shapes and strides of views: pure arithmetic on tuples, in elements.

A view is an offset and one stride per dimension. What cannot be said that way is no view, and the
functions here answer None for it. Source: docs/reference/nki.md, section "Tensors and views".
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

Ints = tuple[int, ...]


def contiguous(shape: Sequence[int]) -> Ints:
    """Row-major strides of `shape`."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def is_contiguous(shape: Ints, strides: Ints) -> bool:
    """Whether walking the view row by row touches consecutive elements."""
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def reshape(shape: Ints, strides: Ints, new: Ints) -> Ints | None:
    """Strides under which `new` walks the same elements in the same order; None if there are none.

    Merges old dimensions into runs of one stride, then cuts the runs at the new sizes.
    """
    if prod(shape) != prod(new):
        return None
    runs: list[list[int]] = []  # [size, stride], innermost last
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == size * stride:
            runs[-1] = [runs[-1][0] * size, stride]
        else:
            runs.append([size, stride])
    out = [0] * len(new)
    left, step = 1, 1
    for i in reversed(range(len(new))):
        if new[i] == 1:
            out[i] = step
            continue
        if left == 1:
            left, step = runs.pop()
        if left % new[i]:
            return None
        out[i] = step
        left //= new[i]
        step *= new[i]
    return tuple(out)


def reach(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """Distances from the first element to the lowest and to the highest one of a view."""
    low = high = 0
    for size, stride in zip(shape, strides, strict=True):
        if stride < 0:
            low += (size - 1) * stride
        else:
            high += (size - 1) * stride
    return low, high


def overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two indices of the view are one element."""
    inner = 0
    for stride, size in sorted((abs(s), n) for s, n in zip(strides, shape, strict=True)):
        if size == 1:
            continue
        if stride == 0:
            return True
        if stride <= inner:  # dimensions interleave: count the elements
            return _distinct(shape, strides) < prod(shape)
        inner += (size - 1) * stride
    return False


def _distinct(shape: Sequence[int], strides: Sequence[int]) -> int:
    found = {0}
    for size, stride in zip(shape, strides, strict=True):
        found = {at + i * stride for at in found for i in range(size)}
    return len(found)


def infer(shape: Sequence[int], total: int) -> Ints | None:
    """`shape` with its one -1 replaced so that it holds `total` elements; None if impossible."""
    known = prod(s for s in shape if s != -1)
    if shape.count(-1) > 1 or any(s < -1 or s == 0 for s in shape):
        return None
    if -1 not in shape:
        return tuple(shape) if known == total else None
    return tuple(total // known if s == -1 else s for s in shape) if total % known == 0 else None
