"""Checks of the exercises of notebook 03: open groups, index top-k, attention block by block.

As in notebook 01, each stops at the first case that is wrong with a sentence on why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dslearn.lessons.checking import Case, run
from dslearn.ops import index_topk

Block = list[tuple[float, float]]
INF = float("inf")


def check_03_1(closes: Callable[[int, int], tuple[list[int], bool]]) -> None:
    """`closes(start, length)`: entries that close at ratio 2, and whether a token waits."""

    def case(start: int, length: int) -> Case:
        closing = [t for t in range(start, start + length) if t % 2]  # the second of each pair
        due = [t // 2 for t in closing], (start + length) % 2 == 1
        why = f"the call brings positions {list(range(start, start + length))}"
        if start % 2:
            why += f", and {start - 1} was waiting"
        return (start, length), due, why

    run("03.1", "closes", closes, [case(s, n) for s in (0, 1, 6, 7) for n in (1, 2, 3, 0, 8)])


def check_03_2(select: Callable[..., list[int]]) -> None:
    """`select(dots, weights, visible, k)`: the k best entries, ascending, -1 for missing ones."""
    named: list[tuple[Any, ...]] = [
        ([[1, 2, 3]], [1], 3, 2, "the two best in ascending order, not best first"),
        ([[1, 2, 3]], [1], 2, 1, "entry 2 is not visible yet"),
        ([[5, 5, 5, 5]], [1], 4, 2, "of equal scores the lowest entry wins"),
        ([[-4, 0, 1], [3, 0, 0]], [1, -1], 3, 2, "a negative dot product counts as 0, before w"),
        ([[4, 1], [4, 0]], [1, -2], 2, 1, "weights may be negative: they come after the ReLU"),
        ([[7, 8]], [1], 2, 4, "fill up with -1"),
        ([[7, 8]], [1], 0, 2, "nothing is visible: only -1"),
    ]
    draw = np.random.default_rng(3)
    for entries, k in ((9, 4), (40, 16), (16, 16), (33, 7)):
        dots, weights = draw.integers(-3, 4, (3, entries)), draw.integers(-1, 3, 3)
        visible = entries - int(draw.integers(0, 3))
        named.append((dots.tolist(), weights.tolist(), visible, k, "as the library selects"))

    def due(dots: list[list[int]], weights: list[int], visible: int, k: int) -> list[int]:
        scores = torch.tensor(weights).float() @ torch.tensor(dots).float().relu()
        found = index_topk.reference(scores[None], torch.tensor([visible]), k)
        return [int(entry) for entry in found[0]]

    cases: list[Case] = [(tuple(args), due(*args), why) for *args, why in named]
    run("03.2", "select", select, cases)


def check_03_3(attend: Callable[..., float]) -> None:
    """`attend(blocks, sink)`: attention with a sink over keys that come block by block, once."""
    draw = np.random.default_rng(5)
    keys = [(float(s), float(v)) for s, v in draw.normal(0, 4, (12, 2))]
    cases: list[tuple[list[Block], float, str]] = [
        ([[(0.0, 3.0)]], 0.0, "the sink takes half"),
        ([[(0.0, 8.0)], [(0.0, 1.0)]], 0.0, "the second block counts as much as the first"),
        ([[(1.0, 8.0)], [(6.0, 1.0)]], 0.0, "a new maximum shrinks what was summed before"),
        ([[(9.0, 8.0)], [(6.0, 1.0)]], 0.0, "an old maximum stays"),
        ([keys[:5], keys[5:6], keys[6:]], 1.0, "any cut into blocks gives the same"),
        ([[(5000.0, 2.0)], [(4999.0, 4.0)]], 0.0, "exp(5000) overflows: subtract the maximum"),
        ([[(0.0, 2.0)]], 5000.0, "exp(5000) overflows: the sink can be the largest"),
        ([[(-5000.0, 2.0)]], -5000.0, "both are far down: the sink takes half all the same"),
        ([[(-INF, 7.0)], [(0.0, 3.0), (-INF, 5.0)]], 0.0, "-inf hides a key, even the first"),
        ([[], [(-INF, 7.0)]], 0.0, "a query without keys gives 0"),
        ([], 0.0, "a query without keys gives 0"),
    ]
    for blocks, sink, why in cases:
        _attended(attend, blocks, sink, why)
    print(f"exercise 03.3: all {len(cases)} cases are right")


def _attended(attend: Callable[..., float], blocks: list[Block], sink: float, why: str) -> None:
    """One case, compared to nine digits with all keys at once in double precision."""
    scores = torch.tensor([[s for block in blocks for s, _ in block] + [sink]], dtype=torch.float64)
    values = torch.tensor([v for block in blocks for _, v in block] + [0.0], dtype=torch.float64)
    due = float(scores.softmax(1)[0] @ values)
    shown = f"exercise 03.3: attend({blocks}, {sink})"
    got: Any
    try:
        got = attend(iter(blocks), sink)  # an iterator: there is no second look
    except (OverflowError, ZeroDivisionError) as error:
        got = f"{type(error).__name__}: {error}"
    assert got is not None, f"{shown} gives None, must be {due:.9g}: fill the hole, `...`"
    right = isinstance(got, int | float) and abs(got - due) <= 1e-9 * max(1.0, abs(due))
    assert right, f"{shown} gives {got}, must be {due:.9g}: {why}"
