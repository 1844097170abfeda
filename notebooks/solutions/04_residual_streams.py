"""Solutions of the exercises of notebook 04. Try first; `tests/notebooks` runs them."""

from __future__ import annotations

import math

Matrix = list[list[float]]


def write(y: list[float], h: Matrix, post: list[float], comb: Matrix) -> Matrix:
    """The streams after a sublayer: stream k is post[k] y + sum over j of comb[j][k] h[j]."""
    streams = range(len(h))
    return [
        [post[k] * value + sum(comb[j][k] * h[j][i] for j in streams) for i, value in enumerate(y)]
        for k in streams
    ]


def sinkhorn(logits: Matrix, rounds: int, eps: float) -> Matrix:
    """Row softmax plus eps, columns divided, then `rounds` - 1 times rows and columns."""
    exponentials = [[math.exp(value - max(row)) for value in row] for row in logits]
    c = [[value / sum(row) + eps for value in row] for row in exponentials]
    for half in range(2 * rounds - 1):
        by_column = half % 2 == 0
        lines = [list(line) for line in zip(*c, strict=True)] if by_column else c
        lines = [[value / (sum(line) + eps) for value in line] for line in lines]
        c = [list(line) for line in zip(*lines, strict=True)] if by_column else lines
    return c


def row(history: list[int], factors: list[int], prime: int, pad: int) -> int:
    """Bucket of the n-gram that ends `history`; -1 there means that nothing can be seen."""
    mixed, blocked = 0, False
    for back, factor in enumerate(factors):
        token = history[-1 - back] if back < len(history) else -1
        blocked = blocked or token < 0
        mixed ^= (pad if blocked else token) * factor
    return mixed % prime
