"""Checks of the exercises of notebook 04: writing the streams, Sinkhorn, rows of n-grams.

As in notebook 01, each stops at the first case that is wrong with a sentence on why.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from dslearn.lessons.checking import Case, run
from dslearn.model.engram_hash import bucket_primes, multipliers
from dslearn.ops import hc_expand, hc_mixes

Matrix = list[list[float]]
VOCABULARY, PAD = 1528, 2


def check_04_1(write: Callable[..., Matrix]) -> None:
    """`write(y, h, post, comb)`: stream k is post[k] y + sum over j of comb[j][k] h[j]."""
    cases: list[Case] = []
    for streams, width in ((1, 1), (2, 1), (2, 3), (4, 5)):
        draw = np.random.default_rng([streams, width])
        shapes = ((width,), (streams, width), (streams,), (streams, streams))
        parts = [torch.from_numpy(draw.integers(-3, 4, shape)).float() for shape in shapes]
        due = hc_expand.reference(*(part.unsqueeze(0) for part in parts))[0]
        why = "comb[j][k] carries stream j INTO stream k: sum over its first index"
        cases.append((tuple(part.tolist() for part in parts), due.tolist(), why))
    run("04.1", "write", write, cases)


def check_04_2(sinkhorn: Callable[[Matrix, int, float], Matrix]) -> None:
    """`sinkhorn(logits, rounds, eps)`: compared to six decimals."""

    def rounded(logits: Matrix, rounds: int, eps: float) -> Matrix | None:
        found = sinkhorn(logits, rounds, eps)
        return None if found is None else [[round(v, 6) for v in line] for line in found]

    cases: list[Case] = []
    for size, rounds, eps, why in (
        (1, 1, 0.25, "softmax 1, plus eps 1.25, divided by 1.25 + eps"),
        (2, 1, 1e-6, "the first round is softmax of rows, plus eps, then columns"),
        (2, 2, 1e-6, "the second round divides rows, then columns"),
        (3, 2, 0.5, "eps is added once to every number, and to the sum in every division"),
        (4, 20, 1e-6, "20 rounds are 1 and 19 repetitions"),
        (4, 20, 1e-3, "the last division is by columns"),
    ):
        logits = torch.from_numpy(np.random.default_rng(size).integers(-3, 4, (size, size)))
        due = hc_mixes.balanced(logits.double() / 2, rounds, eps)
        arguments = (logits.double() / 2).tolist(), rounds, eps
        cases.append((arguments, [[round(v, 6) for v in line] for line in due.tolist()], why))
    run("04.2", "sinkhorn", rounded, cases)


def check_04_3(row: Callable[[list[int], list[int], int, int], int]) -> None:
    """`row(history, factors, prime, pad)`: the bucket of the n-gram that ends the history."""
    factors = multipliers(1, VOCABULARY)
    primes = bucket_primes(1, 3, 2, 2300)[0]
    long, short = [7, 1400, 3, 900, 12], [900]
    image = [7, 1400, -1, 900, 12]
    cases: list[Case] = []
    for history, why in (
        (long, "token b places back times factors[b], joined by exclusive or, then modulo"),
        (short, "before the start of the sequence stands the pad"),
        (image, "an image slot is the pad, and so is everything behind it"),
        ([5, -1], "a blocked current token is the pad, and so is everything behind it"),
    ):
        for size in (2, 3, 4):
            prime = primes[size - 2][0]
            due = _bucket(history, factors[:size], prime)
            cases.append(((history, factors[:size], prime, PAD), due, why))
    run("04.3", "row", row, cases)


def _bucket(history: list[int], factors: list[int], prime: int) -> int:
    """From the blocked place on, every token is the pad."""
    back = [*reversed(history), *[-1] * len(factors)][: len(factors)]
    seen = back.index(-1) if -1 in back else len(back)
    tokens = [*back[:seen], *[PAD] * (len(back) - seen)]
    mixed = np.bitwise_xor.reduce(np.array(tokens, np.int64) * np.array(factors, np.int64))
    return int(mixed % prime)
