"""Solutions of the exercises of notebook 03. Try first; `tests/notebooks` runs them."""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, inf


def closes(start: int, length: int) -> tuple[list[int], bool]:
    """Entries that a call closes at ratio 2, and whether a token waits afterwards."""
    stop = start + length
    return list(range(start // 2, stop // 2)), stop % 2 == 1


def select(dots: list[list[int]], weights: list[int], visible: int, k: int) -> list[int]:
    """The k best visible entries by their index score, ascending, -1 where there are fewer."""
    scores = [
        sum(w * max(head[j], 0) for w, head in zip(weights, dots, strict=True))
        for j in range(visible)
    ]
    best = sorted(range(visible), key=lambda j: -scores[j])[:k]  # stable: ties stay in order
    return sorted(best) + [-1] * (k - len(best))


def attend(blocks: Iterable[list[tuple[float, float]]], sink: float) -> float:
    """Softmax attention with a sink over keys that come block by block, each seen once."""
    top, total, out = -inf, 0.0, 0.0
    for block in blocks:
        new = max([top, *(score for score, _ in block)])
        if new == -inf:
            continue
        shrink = exp(top - new)
        total, out = total * shrink, out * shrink
        for score, value in block:
            p = exp(score - new)
            total, out = total + p, out + p * value
        top = new
    if top == -inf:
        return 0.0
    # The sink may be far above all scores: then nothing is left of them.
    new = max(top, sink)
    return out * exp(top - new) / (total * exp(top - new) + exp(sink - new))
